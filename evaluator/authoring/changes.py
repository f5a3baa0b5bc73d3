"""What changed between two versions of templates: prompts as rendered, bounds, price, tools and
authority.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from difflib import unified_diff
from typing import Any

from evaluator.authoring.portraits import Portrait, calls_text, portrait
from evaluator.authoring.revisions import Version
from evaluator.errors import EvaluatorError
from evaluator.lazy_dataclass import dataclass

# What the simulated model makes up depends on the whole prompt, so it would differ in each of them.
_SIMULATED = re.compile(r"simulated \d+|\[simulated\] an answer to: [^\n]*")


@dataclass(frozen=True, slots=True)
class FieldChange:
    """A fact that changed: what it was and what it is."""

    what: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class TemplateChange:
    """What changed of one template. `kind` is added, removed, changed or broken. `prompts` are
    unified diffs, by the title of their inputs.
    """

    name: str
    kind: str
    facts: tuple[FieldChange, ...] = ()
    gained: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    prompts: Mapping[str, str] | None = None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def changes_between(
    before: Version,
    after: Version,
    *,
    name: str | None = None,
    inputs: Mapping[str, Any] | None = None,
    model: str | None = None,
) -> Iterator[TemplateChange]:
    """What changed of each template, or of the one called `name`, by name. `inputs` are for its
    prompts; without them those of its examples are used.
    """
    if name is None:
        names = sorted(before.names | after.names)
    else:
        names = [name]
    for each in names:
        old = _portrait(before, each, inputs, model)
        new = _portrait(after, each, inputs, model)
        if isinstance(new, str) or isinstance(old, str):
            if isinstance(new, str):
                reason = new
            else:
                reason = f"before: {old}"
            if new != old:
                fact = FieldChange("errors", "", str(reason))
                yield TemplateChange(each, "broken", facts=(fact,))
        elif old is None and new is not None:
            facts = [FieldChange(what, "", value) for what, value in _facts(new).items() if value]
            yield TemplateChange(each, "added", facts=tuple(facts), gained=new.reaches)
        elif new is None and old is not None:
            yield TemplateChange(each, "removed")
        elif old is not None and new is not None:
            found = _change(old, new)
            if found is not None:
                yield found


def _portrait(
    version: Version, name: str, inputs: Mapping[str, Any] | None, model: str | None
) -> Portrait | str | None:
    """A template's portrait, None where there is none, the first error of a broken one."""
    if name not in version.library and name not in version.library.broken:
        return None
    try:
        return portrait(version.library, version.profiles, name, inputs=inputs, model=model)
    except EvaluatorError as error:
        return str(error).partition("\n")[0]


def _facts(one: Portrait) -> dict[str, str]:
    return {
        "type": one.kind,
        "version": one.version or "",
        "description": one.description,
        "inputs": "; ".join(one.inputs),
        "output": one.output,
        "calls": calls_text(one.bound),
        "price": one.price,
        "calls of templates": ", ".join(one.calls),
    }


def _change(old: Portrait, new: Portrait) -> TemplateChange | None:
    old_facts = _facts(old)
    new_facts = _facts(new)
    facts = [
        FieldChange(what, old_facts[what], value)
        for what, value in new_facts.items()
        if old_facts[what] != value
    ]
    prompts = _prompt_diffs(old, new)
    gained = tuple(line for line in new.reaches if line not in old.reaches)
    lost = tuple(line for line in old.reaches if line not in new.reaches)
    if not (facts or prompts or gained or lost):
        if old.sha256 == new.sha256:
            return None
        facts = [FieldChange("content", old.sha256[:12], new.sha256[:12])]
    return TemplateChange(
        new.name, "changed", facts=tuple(facts), gained=gained, lost=lost, prompts=prompts
    )


def _prompt_diffs(old: Portrait, new: Portrait) -> dict[str, str]:
    earlier = {each.title: each for each in old.prompts}
    later = {each.title: each for each in new.prompts}
    found: dict[str, str] = {}
    for title in {**earlier, **later}:
        texts: list[list[str]] = []
        for one in (earlier.get(title), later.get(title)):
            if one is None:
                text = ""
            else:
                text = "\n".join(one.requests)
            if text:
                lines = _SIMULATED.sub("[simulated]", text).split("\n")
            else:
                lines = []
            if one is not None and one.error is not None:
                lines.append(f"error: {one.error}")
            texts.append(lines)
        diff = list(unified_diff(texts[0], texts[1], "before", "after", lineterm="", n=2))
        if diff:
            found[title] = "\n".join(diff)
    return found


def as_text(changes: list[TemplateChange]) -> str:
    """The changes for a terminal."""
    lines: list[str] = []
    for change in changes:
        lines.append(f"{change.name}: {change.kind}")
        for fact in change.facts:
            if fact.before:
                arrow = f"{fact.before} → {fact.after}"
            else:
                arrow = fact.after
            lines.append(f"  {fact.what}: {arrow}")
        lines += [f"  + {line}" for line in change.gained]
        lines += [f"  - {line}" for line in change.lost]
        for title, diff in (change.prompts or {}).items():
            lines.append(f"  prompts, {title}:")
            lines += [f"    {line}" for line in diff.split("\n")]
    lines.append(_count(changes))
    return "\n".join(lines)


def as_markdown(changes: list[TemplateChange]) -> str:
    """The changes for a review."""
    lines: list[str] = ["## Templates", ""]
    for change in changes:
        lines += [f"### {_code(change.name)}: {change.kind}", ""]
        rows = [(fact.what, fact.before, fact.after) for fact in change.facts]
        rows += [("reaches now", "", line) for line in change.gained]
        rows += [("reaches no longer", line, "") for line in change.lost]
        if rows:
            lines += ["| what | before | after |", "|---|---|---|"]
            lines += [
                f"| {what} | {_code(before)} | {_code(after)} |" for what, before, after in rows
            ]
            lines.append("")
        for title, diff in (change.prompts or {}).items():
            lines += [f"Prompts, {title}:", "", *code_block(diff, "diff"), ""]
    lines.append(f"{_count(changes)}.")
    return "\n".join(lines)


def code_block(text: str, language: str) -> list[str]:
    """The lines of a block of code in Markdown, which nothing in `text` can end."""
    fence = "`" * max(3, _longest_run(text) + 1)
    return [f"{fence}{language}", text, fence]


def _count(changes: list[TemplateChange]) -> str:
    return f"{len(changes)} template{'' if len(changes) == 1 else 's'} changed"


def _code(text: str) -> str:
    """Text in a cell of a table, which nothing in it can end."""
    plain = " ".join(text.split()).replace("|", "\\|")
    if not plain:
        return ""
    ticks = "`" * (_longest_run(plain) + 1)
    return f"{ticks} {plain} {ticks}" if "`" in plain else f"`{plain}`"


def _longest_run(text: str) -> int:
    longest = 0
    run = 0
    for character in text:
        run = run + 1 if character == "`" else 0
        longest = max(longest, run)
    return longest
