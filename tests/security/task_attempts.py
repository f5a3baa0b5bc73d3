"""Tasks that must not be reached, and the paths by which a task starts others."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from evaluator import (
    Evaluator,
    HandlerConfig,
    ModelRequest,
    SimulatedBackend,
    TaskError,
    TaskResult,
    TemplateLibrary,
    Tool,
    ToolGrant,
    load_profiles,
    tool,
)
from evaluator.tools import PolicyRule

SECRET = "TOP-SECRET-7"
BOSS_TOOLS = ("subtask", "evaluation_request", "read_file")
DENIED = ToolGrant("read_file", None, (PolicyRule("deny", "path", "secrets/*"),))

# -- what is forbidden -------------------------------------------------------------------------------------------------

FORBIDDEN = {
    "a script": '<task type="script"><description>d</description><command>touch pwned</command></task>',
    "a shell": """<task type="script"><description>d</description><inputs><input name="x" default="; touch pwned"/>
        </inputs><command shell="true">echo {{ x }}</command></task>""",
    "a command": """<task type="atomic"><description>d</description><file_paths source="command">
        <command>touch pwned</command></file_paths></task>""",
    "a tool": """<task type="atomic"><description>d</description><tools><tool name="mark"/></tools>
        <instructions>USE mark {}</instructions></task>""",
    "a denied file": f"""<task type="atomic"><description>d</description><tools><tool name="read_file"/></tools>
        <instructions>USE read_file {json.dumps({"path": "secrets/key"})}</instructions></task>""",
    "a denied file, by another profile": f"""<task type="atomic"><description>d</description><handler ref="lax"/>
        <instructions>USE read_file {json.dumps({"path": "secrets/key"})}</instructions></task>""",
    "a tool of another profile": """<task type="atomic"><description>d</description><handler ref="lax"/>
        <instructions>USE mark {}</instructions></task>""",
    "a denied path": """<task type="atomic"><description>d</description><file_paths><path>secrets/key</path>
        </file_paths></task>""",
    "a denied path, spelled otherwise": """<task type="atomic"><description>d</description><file_paths>
        <path>./secrets//key</path></file_paths></task>""",
    "a denied pattern": """<task type="atomic"><description>d</description><file_paths source="glob">
        <path>secrets/*</path></file_paths></task>""",
}
SHIPPED = load_profiles()
BOSS = f"""<task name="boss" type="atomic"><description>lead the work</description><tools>
  {"".join(f'<tool name="{name}"/>' for name in BOSS_TOOLS)}</tools><instructions>BOSS</instructions></task>"""


# -- the paths that start a task ---------------------------------------------------------------------------------------


def named(xml: str, name: str, description: str = "d", subtype: str = "") -> str:
    """`xml`, a task without a name, as a template."""
    kind = f' subtype="{subtype}"' if subtype else ""
    return xml.replace("<task ", f'<task name="{name}"{kind} ', 1).replace(
        "<description>d</description>", f"<description>{description}</description>", 1
    )


def inside(xml: str, name: str, description: str = "d", subtype: str = "", inputs: str = "") -> str:
    """A template of type atomic with the task `xml` nested in its input."""
    return named(
        f"""<task type="atomic"><description>d</description><inputs>{inputs}<input name="it">{xml}</input></inputs>
        <instructions>got {{{{ it }}}}</instructions></task>""",
        name,
        description,
        subtype,
    )


def function(xml: str) -> str:
    return f'<template name="wrap" params="">{xml}</template>'


def hint(template: str, **inputs: Any) -> dict[str, Any]:
    return {
        "type": "atomic",
        "description": "do it",
        "inputs": inputs,
        "hints": {"template": template},
    }


STRANGE = "zebra quilting handbook"
JUDGE = '<input name="type"/><input name="criteria"/><input name="target"/>'
ASKED = {"type": "correctness", "criteria": "right", "target": "x"}
# Each path: the templates that lead to the forbidden task, and the call of the boss's model.
PATHS: dict[str, Callable[[str], tuple[str, dict[str, Any]]]] = {
    "hint": lambda xml: (named(xml, "bad"), {"tool": "subtask", "arguments": hint("bad")}),
    "match": lambda xml: (
        inside(xml, "bad", STRANGE),
        {"tool": "subtask", "arguments": {"type": "atomic", "description": STRANGE, "inputs": {}}},
    ),
    "nested input": lambda xml: (inside(xml, "bad"), {"tool": "subtask", "arguments": hint("bad")}),
    "call": lambda xml: (
        function(xml)
        + """<task name="bad" type="atomic"><description>d</description><instructions>{{ wrap() }}</instructions></task>""",
        {"tool": "subtask", "arguments": hint("bad")},
    ),
    "sequence": lambda xml: (
        f'<task name="bad" type="sequential"><description>d</description><steps>{xml}</steps></task>',
        {"tool": "subtask", "arguments": hint("bad")},
    ),
    "a subtask's tool": lambda xml: (
        named(xml, "worse")
        + """<task name="bad" type="atomic"><description>d</description><tools><tool name="worse"/></tools>
        <instructions>USE worse {}</instructions></task>""",
        {"tool": "subtask", "arguments": hint("bad")},
    ),
    "a subtask's subtask": lambda xml: (
        named(xml, "worse")
        + f"""<task name="bad" type="atomic"><description>d</description><tools><tool name="subtask"/></tools>
        <instructions>USE subtask {json.dumps(hint("worse"))}</instructions></task>""",
        {"tool": "subtask", "arguments": hint("bad")},
    ),
    "evaluation_request": lambda xml: (
        inside(
            xml, "bad", "Evaluate the correctness of a result by given criteria", "evaluator", JUDGE
        ),
        {"tool": "evaluation_request", "arguments": ASKED},
    ),
}


class World:
    """A folder with a secret, profiles, and an evaluator whose model does what its prompt says."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.seen: list[str] = []
        self.told: list[str] = []
        self.boss_call: Any = None
        for name, text in (("secrets/key", SECRET), ("public/note", "NOTE-5")):
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(text)

    def model(self, request: ModelRequest) -> Any:
        self.seen += [message.content for message in request.messages]
        prompt = next(m.content for m in request.messages if m.role == "user")
        results = [m.content for m in request.messages if m.role == "tool"]
        if "BOSS" in prompt:
            self.told += results
        if results:
            return "finished"
        if "BOSS" in prompt:
            return self.boss_call
        if "USE " in prompt:
            name, _, arguments = prompt.split("USE ", 1)[1].splitlines()[0].partition(" ")
            return {"tool": name, "arguments": json.loads(arguments)}
        return "an answer"

    def evaluator(
        self, xml: str, profile: HandlerConfig | None = None, **options: Any
    ) -> Evaluator:
        library = TemplateLibrary()
        library.add(f"<library>{xml}</library>")
        assert not library.errors, library.errors
        boss = profile or HandlerConfig(name="boss", backend="simulated", tools=(DENIED,))
        lax = HandlerConfig(
            name="lax",
            backend="simulated",
            tools=(ToolGrant("read_file", "allow"), ToolGrant("mark", "allow")),
        )
        return Evaluator(
            library,
            boss if profile else None,
            backend=SimulatedBackend(script=self.model),
            profiles={**SHIPPED, "default": boss, "boss": boss, "lax": lax},
            tools=[self.mark()],
            tasks_dir=self.folder / "tasks",
            roots=[self.folder],
            **options,
        )

    def mark(self) -> Tool:
        @tool
        def mark() -> str:
            """Leaves a mark."""
            (self.folder / "pwned").write_text("")
            return "marked"

        return mark

    def evaluate(self, xml: str, name: str = "boss", **options: Any) -> TaskResult | TaskError:
        return asyncio.run(self.evaluator(xml, **options).evaluate(name))

    @property
    def harm(self) -> list[str]:
        """What happened that was forbidden."""
        found = ["a process or a tool ran"] if (self.folder / "pwned").exists() else []
        return found + (["a secret was read"] if any(SECRET in text for text in self.seen) else [])
