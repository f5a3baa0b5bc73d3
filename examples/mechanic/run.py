"""A feature from the first question to the closed task list, offline: python
examples/mechanic/run.py [FOLDER]

The model is simulated. It decides as a model would, from what it has seen in its conversation, so
that a run that was killed continues from the task list: start the program again with the same
folder.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from evaluator import (
    Evaluator,
    ModelRequest,
    SimulatedBackend,
    TaskResult,
    TemplateLibrary,
    load_profiles,
)
from evaluator.tools import CallbackAsker

HERE = Path(__file__).parent
NAME = "2026-02-20-greeting"
Call = dict[str, Any]


def tool(name: str, /, **arguments: Any) -> Call:
    """A call of a tool, as the simulated model makes it."""
    return {"tool": name, "arguments": arguments}


def task(action: str, /, **arguments: Any) -> Call:
    return tool("manage_task", action=action, **arguments)


def tick(text: str, *sections: str) -> str:
    """The text of a task list with all steps of these sections, and of their parts, marked as
    done.
    """
    parts = re.split(r"(?m)^(?=## )", text)
    return "".join(
        part.replace("- [ ]", "- [x]") if part[3:].startswith(sections) else part for part in parts
    )


def fill_in(text: str, wish: str) -> str:
    """The list with the details of the worker's part: one file to write, nothing else."""
    file = f"- [ ] `src/greeting.py`: print the greeting {wish!r}"
    text = text.replace("- [ ] Path, purpose and content of each file", file)
    text = re.sub(r"(?ms)^### \[SKILLS\].*?(?=^## )", "", text)
    return tick(text, "[MECHANIC] Preparation")


def mechanic(request: ModelRequest) -> Call | str:
    """The next action of the model that plans: it looks at its last call and the answer to it."""
    calls = [call for message in request.messages for call in message.tool_calls]
    answers = [message.content for message in request.messages if message.role == "tool"]
    if not answers:
        return task("list_active")
    last, answer = calls[len(answers) - 1], answers[-1]
    done: Call = json.loads(last.arguments)
    text = _seen_text(calls, answers)
    if last.name == "ask_user" and "confirm" in done["question"]:
        return task("update", name=NAME, content=tick(text, "[MECHANIC] Acceptance"))
    if last.name == "ask_user":
        return task("update", name=NAME, content=fill_in(text, answer)) if text else _create()
    if last.name == "subtask":
        return task("update", name=NAME, content=tick(text, "[WORKER]"))
    shown: Call = json.loads(answer)
    match done["action"]:
        case "list_active":
            if runs := shown["interrupted_runs"]:
                return task("read_run", id=runs[-1]["id"])
            return _begin(shown)
        case "read_run":
            return _begin(json.loads(answers[0]))
        case "close":
            return f"The feature is done: {shown['path']}"
    return _next_action(shown, text, answers)


def _begin(listed: Call) -> Call:
    if listed["tasks"]:
        return task("read", name=listed["tasks"][0]["name"])
    return _clarify()


def _clarify() -> Call:
    return tool("ask_user", question="Which greeting shall the program print?")


def _create() -> Call:
    return task("create", name=NAME, template="feature")


def _seen_text(calls: Any, answers: list[str]) -> str:
    """The text of the task list as the model saw or wrote it last."""
    text = ""
    for call, answer in zip(calls, answers, strict=False):
        if call.name == "manage_task":
            text = (
                json.loads(call.arguments).get("content")
                or json.loads(answer).get("content")
                or text
            )
    return text


def _next_action(shown: Call, text: str, answers: list[str]) -> Call:
    """What to do at the first open step."""
    step = shown["next"]
    if step is None:
        return task("close", name=NAME)
    if step["section"] == "Preparation":
        wish = next((answer for answer in answers if not answer.startswith("{")), None)
        # The run that clarified the requirements may have been killed before it wrote them down.
        return (
            _clarify() if wish is None else task("update", name=NAME, content=fill_in(text, wish))
        )
    if step["role"] == "WORKER":
        return tool(
            "subtask",
            type="atomic",
            description="Implement the section [WORKER]",
            inputs={},
            hints={"template": "implement_feature"},
            file_paths=[shown["path"]],
        )
    return tool("ask_user", question="The greeting is written. Do you confirm the result?")


def worker(request: ModelRequest) -> Call | str:
    """The model that implements: it reads the task list in its context and writes the file."""
    if request.messages[-1].role == "tool":
        return "The file is written."
    prompt = "\n".join(message.content for message in request.messages)
    found = re.search(r"`(src/[\w.]+)`: print the greeting '([^']*)'", prompt)
    if found is None:
        return "The task list names no file."
    return tool("write_file", path=found[1], content=f"print({found[2]!r})\n")


def answer(question: str) -> str:
    """The user of this example."""
    print(f"? {question}")
    return "yes" if "confirm" in question else "Good morning"


def make_evaluator(
    folder: Path, before_call: Callable[[ModelRequest], None] = lambda _: None
) -> Evaluator:
    """The Evaluator of this example in `folder`. `before_call` is called before each answer of the
    model.
    """

    def script(request: ModelRequest) -> Call | str:
        before_call(request)
        is_mechanic = any("You are the MECHANIC" in message.content for message in request.messages)
        return mechanic(request) if is_mechanic else worker(request)

    return Evaluator(
        TemplateLibrary.load(HERE / "templates"),
        profiles=load_profiles(HERE / "handlers"),
        backend=SimulatedBackend(script=script),
        tasks_dir=folder / "tasks",
        roots=[folder],
        asker=CallbackAsker(answer),
    )


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    outcome = make_evaluator(folder).evaluate_sync("build_feature")
    if not isinstance(outcome, TaskResult):
        sys.exit(f"{outcome.type}: {outcome.message}")
    print(outcome.content)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "greeting"))
