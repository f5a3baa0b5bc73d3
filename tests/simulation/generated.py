"""Runs that a seed generates: operators inside of operators, values of each type that later steps read, tools and
scripts that leave effects, subtasks, answers that fail once or do not fit.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "recovery"))

from recovery_cases import _TITLE, Case, Flaky, _atomic, _subtask, deliver

NAME = "generated"
MOST_DEPTH = 2
_WORDS = ("tin", "iron", "zinc", "gold", "lead", "salt")
_INPUTS = (
    '<inputs><input name="topic" type="string" required="true"/><input name="count" type="number" required="true"/>'
    '<input name="parts" type="string[]" required="true"/></inputs>'
)
_FORMATS = {
    "string": "",
    "number": '<output_format type="json" schema="number"/>',
    "boolean": '<output_format type="json" schema="boolean"/>',
    "string[]": '<output_format type="json" schema="string[]"/>',
}


@dataclass
class _Scope:
    """What the texts of a place may name: expressions by their type. `is_repeated`: a place inside of it runs once for
    each item, so that it leaves no effect whose label is fixed.
    """

    values: dict[str, list[str]] = field(
        default_factory=lambda: {
            "string": ["topic"],
            "number": ["count"],
            "string[]": ["parts"],
            "boolean": [],
        }
    )
    is_repeated: bool = False

    def inside(self, **values: str) -> _Scope:
        """A new place that sees the inputs and `values`, not the steps beside it."""
        scope = _Scope(is_repeated=True)
        for name, kind in values.items():
            scope.values[kind].append(name)
        return scope


class _Generator:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.answers: dict[str, Any] = {}
        self.effects: list[str] = []
        self.count = 0

    def case(self, seed: int) -> Case:
        body = self.steps(_Scope(), 0)
        root = f'<task name="root" type="sequential"><description>root</description>{self.context()}{_INPUTS}{body}</task>'
        closing = _atomic(
            "closing",
            "Close with {{ word }}",
            '<inputs><input name="word" type="string"/></inputs>',
        )
        parts = self.random.sample(_WORDS, self.random.randint(1, 3))
        inputs = {"topic": "metal", "count": self.random.randint(0, 9), "parts": parts}
        # Of several marks in a prompt the last one is its own.
        answers = dict(reversed(self.answers.items()))
        return Case(
            f"{NAME} {seed}",
            _TITLE + closing + root,
            "root",
            answers,
            inputs=inputs,
            effects=tuple(self.effects),
            status="",
        )

    def context(self) -> str:
        if self.random.random() < 0.5:
            return ""
        form = self.random.choice(("notes_only", "full_output"))
        return (
            "<context_management><accumulate_data>true</accumulate_data>"
            f"<accumulation_format>{form}</accumulation_format></context_management>"
        )

    def steps(self, scope: _Scope, depth: int) -> str:
        """One to four steps; each may name what those before it gave."""
        parts = []
        for _ in range(self.random.randint(1, 4 - depth)):
            name = f"s{self.number()}"
            kind, xml = self.step(name, scope, depth)
            parts.append(xml)
            scope.values["string"].append(f"steps.{name}.content")
            if kind != "string":
                scope.values[kind].append(f"steps.{name}.parsed")
        return f"<steps>{''.join(parts)}</steps>"

    def number(self) -> int:
        self.count += 1
        return self.count

    def step(self, name: str, scope: _Scope, depth: int) -> tuple[str, str]:
        """The type of a step's value, and its XML."""
        makers = [self.atomic, self.atomic, self.script, self.call, self.parallel]
        if depth < MOST_DEPTH:
            makers += [self.sequential, self.reduce, self.loop, self.cond]
        return self.random.choice(makers)(name, scope, depth)

    def text(self, scope: _Scope) -> str:
        """A text with a mark of its own, and one or two values."""
        kinds = [kind for kind, names in scope.values.items() if names]
        named = [
            self.random.choice(scope.values[self.random.choice(kinds)])
            for _ in range(self.random.randint(1, 2))
        ]
        return f"tell of {' and '.join(f'{{{{ {each} }}}}' for each in named)}"

    def value(self, kind: str) -> Any:
        values = {
            "string": "a plain answer",
            "number": self.random.randint(0, 9),
            "boolean": self.random.random() < 0.5,
            "string[]": self.random.sample(_WORDS, self.random.randint(1, 3)),
        }
        value = values[kind]
        return value if kind == "string" else json.dumps(value)

    def atomic(self, name: str, scope: _Scope, depth: int) -> tuple[str, str]:
        random = self.random
        kind = random.choice(list(_FORMATS))
        mark = f"[g{self.number()}]"
        turns: list[Any] = []
        tools: list[str] = []
        if not scope.is_repeated and random.random() < 0.4:
            label = f"fx-{self.number()}"
            self.effects.append(label)
            turns.append([deliver(label)])
            tools.append("deliver")
        if random.random() < 0.2:
            turns.append([_subtask(f"Recite a limerick [g{self.number()}]")])
            tools.append("subtask")
        answer = "no value" if kind != "string" and random.random() < 0.05 else self.value(kind)
        turns.append(Flaky(answer) if random.random() < 0.1 else answer)
        if kind != "string" or tools or random.random() < 0.2:
            self.answers[mark] = turns
        given = "".join(f'<tool name="{each}"/>' for each in tools)
        rest = _FORMATS[kind] + (f"<tools>{given}</tools>" if given else "")
        return kind, _atomic(name, f"{self.text(scope)} {mark}", rest)

    def leaf(self, tag: str, scope: _Scope) -> str:
        return f'<{tag} type="atomic"><description>{self.text(scope)} [g{self.number()}]</description></{tag}>'

    def script(self, name: str, scope: _Scope, depth: int) -> tuple[str, str]:
        if scope.is_repeated:
            return self.atomic(name, scope, depth)
        label = f"fx-{self.number()}"
        self.effects.append(label)
        return "string", (
            f'<task name="{name}" type="script"><description>leaves {label}</description><command><arg>sh</arg>'
            f'<arg>-c</arg><arg>echo "did $0"</arg><arg>{label}</arg></command></task>'
        )

    def call(self, name: str, scope: _Scope, depth: int) -> tuple[str, str]:
        value = self.random.choice(scope.values["string"])
        if self.random.random() < 0.5:
            return "string", f'<call template="title" name="{name}"><arg>{value}</arg></call>'
        return (
            "string",
            f'<call template="closing" name="{name}"><arg name="word">{value}</arg></call>',
        )

    def parallel(self, name: str, scope: _Scope, depth: int) -> tuple[str, str]:
        inputs = "".join(
            f'<input name="{each}" type="string">{self.leaf("task", scope)}</input>'
            for each in ("a", "b")
        )
        return "string", _atomic(name, "compare {{ a }} and {{ b }}", f"<inputs>{inputs}</inputs>")

    def sequential(self, name: str, scope: _Scope, depth: int) -> tuple[str, str]:
        inner = _Scope(is_repeated=scope.is_repeated)
        return "string", (
            f'<task name="{name}" type="sequential"><description>inner</description>{self.context()}'
            f"{self.steps(inner, depth + 1)}</task>"
        )

    def reduce(self, name: str, scope: _Scope, depth: int) -> tuple[str, str]:
        items = f"items{self.number()}"
        source = self.random.choice(scope.values["string[]"])
        inside = scope.inside(current_input="string")
        inner = self.leaf("inner_task", inside)
        if self.random.random() < 0.5:
            body = self.steps(inside, depth + 1)
            inner = f'<inner_task><task type="sequential"><description>inner</description>{body}</task></inner_task>'
        return "string", (
            f'<task name="{name}" type="reduce" concurrency="{self.random.randint(1, 3)}"><description>join</description>'
            f'<inputs over="{items}"><input name="{items}" type="string[]" required="true" from="{source}"/></inputs>'
            f'<initial_value>start</initial_value>{inner}<reduction_task type="atomic"><description>join '
            "{{ current_result }} to {{ accumulator }}</description></reduction_task></task>"
        )

    def loop(self, name: str, scope: _Scope, depth: int) -> tuple[str, str]:
        mark = f"[g{self.number()}]"
        success = self.random.random() < 0.5
        self.answers[mark] = [json.dumps({"success": success, "feedback": "longer"})]
        script = ""
        if not scope.is_repeated and self.random.random() < 0.5:
            label = f"fx-{self.number()}"
            self.effects += [f"{label}-{number}" for number in ((1,) if success else (1, 2))]
            script = (
                "<script_execution><description>test</description><command><arg>sh</arg><arg>-c</arg>"
                f'<arg>echo "tested $0"</arg><arg>{label}-{{{{ current_iteration }}}}</arg></command></script_execution>'
            )
        return "string", (
            f'<task name="{name}" type="director_evaluator_loop"><description>until it is good</description>'
            '<max_iterations>2</max_iterations><director type="atomic"><description>draft {{ current_iteration }} '
            f"{{{{ evaluation_feedback }}}} [g{self.number()}]</description></director>{script}"
            f'<evaluator type="atomic"><description>judge {{{{ director_result }}}} {mark}</description>'
            '<output_format type="json"/></evaluator></task>'
        )

    def cond(self, name: str, scope: _Scope, depth: int) -> tuple[str, str]:
        test = f"{self.random.choice(scope.values['number'])} &gt; 4"
        if scope.values["boolean"] and self.random.random() < 0.5:
            test = self.random.choice(scope.values["boolean"])
        first, second = (
            self.leaf("task", scope).replace("<task ", f'<task name="{name}{n}" ', 1) for n in "ab"
        )
        return (
            "string",
            f'<cond name="{name}"><case test="{test}">{first}</case><default>{second}</default></cond>',
        )


@lru_cache(64)
def generated_case(name: str) -> Case:
    """The case of a name that `name_of` gives."""
    seed = int(name.removeprefix(NAME))
    return _Generator(seed).case(seed)


def name_of(seed: int) -> str:
    """Four schedules in a row disturb the same run."""
    return f"{NAME} {seed // 4}"
