"""Commands to a running batch, as `evaluator batch pause` and the others send them, with their
states.

A command goes through the log in the batch's folder, see `evaluator.batch.control`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, get_args

from evaluator.batch import Batch, control_batch
from evaluator.batch.control import Action, ControlLog
from evaluator.batch.options import BatchLimits
from evaluator.batch.reading import open_batch
from evaluator.errors import RecordError, UsageError
from evaluator.viewer.server.state import State, mapping, minute

MAX_COMMANDS = 10
WAIT_S = 2.0
"""How long an action waits for the answer of the session; its page shows it later too."""
_AT_ONCE = ("pause", "continue", "stop")
"""What a click is enough for: each of them can be taken back."""
_LIMIT = "limit."


def control_data(state: State, batch: Batch, *, is_running: bool, errors: list[str]) -> Any:
    """What can be commanded, and the last commands; None for a batch that is complete and never had
    any. `errors` are the kinds of errors of its results.
    """
    log = ControlLog(batch.folder, str(batch.manifest.get("created")))
    try:
        commands = log.read()
    except RecordError as error:
        return {"problem": str(error), "commands": [], "form": None}
    is_complete = batch.manifest.get("state") == "complete"
    if is_complete and not commands:
        return None
    form = None
    if not is_complete:
        limits = mapping(batch.manifest.get("limits"))
        form = {
            "is_running": is_running,
            "is_paused": any(each.action == "pause" and not each.is_final for each in commands),
            "limits": [(each.name, limits.get(each.name)) for each in fields(BatchLimits)],
            "errors": errors,
            "token": state.form_token,
        }
    shown = [
        {"text": str(each), "state": each.state, "message": each.message, "at": minute(each.at)}
        for each in reversed(commands[-MAX_COMMANDS:])
    ]
    return {"problem": "", "commands": shown, "form": form}


def control(state: State, query: Mapping[str, str]) -> str:
    """Sends a command to a batch. Returns: the address of its page.

    Raises: UsageError, without the form's token, for a command that cannot be carried out, or
    without the confirmation of one that changes results or may cost money.
    """
    action = query.get("action", "")
    if action in _AT_ONCE:
        state.check_form(query)
    else:
        state.check_confirmed(query, "the command")
    folder = state.project.batch(query["folder"])
    for known in get_args(Action):
        if known == action:
            arguments = _arguments(open_batch(folder), action, query)
            control_batch(folder, known, arguments, wait_s=WAIT_S)
            return f"/batch/{query['folder']}"
    raise UsageError(f"the action is {action!r:.60}, expected {', '.join(get_args(Action))}")


def _arguments(batch: Batch, action: str, query: Mapping[str, str]) -> list[str]:
    match action:
        case "set":
            current = mapping(batch.manifest.get("limits"))
            changed = [
                f"{name.removeprefix(_LIMIT)}={text.strip() or 'none'}"
                for name, text in query.items()
                if name.startswith(_LIMIT)
                and text.strip() != _text(current.get(name.removeprefix(_LIMIT)))
            ]
            if not changed:
                raise UsageError("no limit was changed")
            return changed
        case "retry":
            return [query["error"]] if query.get("error") else []
        case "skip":
            sample = query.get("sample", "").strip()
            return [sample] if sample else []
        case _:
            return []


def _text(limit: Any) -> str:
    """A limit as its field in the form has it."""
    if isinstance(limit, float) and limit.is_integer():
        return str(int(limit))
    return "" if limit is None else str(limit)
