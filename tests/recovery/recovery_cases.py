"""What is run, killed and resumed: a template or two for each operator, and what the model answers in it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

MODEL = "sweep-1"
NOTES = "Tin melts at 232 degrees.\n"


@dataclass(frozen=True)
class Flaky:
    """An answer that comes at the second asking; the first gets a 500."""

    answer: Any


@dataclass(frozen=True)
class Case:
    """A run. `answers` are the model's turns by a mark in the prompt; a list of `(tool, arguments)` calls tools.

    `effects` are the lines that the run leaves in effects.txt, once each; `commands` those of commands that only
    look, so that they may be run again if nobody knows how they ended.
    """

    name: str
    xml: str
    request: str
    answers: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    inputs: Mapping[str, Any] = field(default_factory=dict)
    effects: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    reparse: bool = False
    sync: str = "off"
    status: str = "COMPLETE"

    def __str__(self) -> str:
        return self.name


def reply_to(case: Case, body: Mapping[str, Any], nth: int) -> tuple[int, dict[str, Any]]:
    """Status and JSON of the answer to the `nth` request with this body, which is all that it depends on.

    The answer's `model` is the hash of the request, so that a task file tells which request an answer was for.
    """
    digest = hash_of(body)
    answer = _answer(case, body["messages"], digest)
    if isinstance(answer, Flaky):
        if nth == 1:
            return 500, {
                "error": {"message": "try again", "type": "error", "param": None, "code": None}
            }
        answer = answer.answer
    message: dict[str, Any] = {"role": "assistant", "content": answer}
    if isinstance(answer, list):
        calls = [
            {
                "id": f"call-{n}",
                "type": "function",
                "function": {"name": name, "arguments": json.dumps(arguments)},
            }
            for n, (name, arguments) in enumerate(answer, 1)
        ]
        message = {"role": "assistant", "content": None, "tool_calls": calls}
    size = len(json.dumps(body))
    usage = {"prompt_tokens": size // 4, "completion_tokens": 5, "total_tokens": size // 4 + 5}
    reason = "tool_calls" if isinstance(answer, list) else "stop"
    choice = {"index": 0, "message": message, "finish_reason": reason}
    return 200, {
        "id": "c",
        "object": "chat.completion",
        "created": 1,
        "model": digest,
        "choices": [choice],
        "usage": usage,
    }


def hash_of(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:16]


def _answer(case: Case, messages: Sequence[Mapping[str, Any]], digest: str) -> Any:
    last = max(n for n, message in enumerate(messages) if message["role"] == "user")
    turn = sum(message["role"] == "assistant" for message in messages[last:])
    prompt = messages[last]["content"]
    for mark, turns in case.answers.items():
        if mark in prompt and turn < len(turns):
            return turns[turn]
    return f"answer {digest}"


def _atomic(name: str, text: str, rest: str = "") -> str:
    return f'<task name="{name}" type="atomic"><description>{text}</description>{rest}</task>'


def _tools(*names: str) -> str:
    return "<tools>" + "".join(f'<tool name="{name}"/>' for name in names) + "</tools>"


def _script(name: str, label: str) -> str:
    return (
        f'<task name="{name}" type="script"><description>leaves {label}</description><command><arg>sh</arg>'
        f'<arg>-c</arg><arg>echo "$0" &gt;&gt; effects.txt; echo "did $0"</arg><arg>{label}</arg></command></task>'
    )


def _subtask(description: str, **more: Any) -> tuple[str, dict[str, Any]]:
    return "subtask", {"type": "atomic", "description": description, "inputs": {}, **more}


READ = ("read_file", {"path": "notes.txt"})


def deliver(label: str) -> tuple[str, dict[str, Any]]:
    return "deliver", {"what": label}


_FULL = (
    "<context_management><accumulate_data>true</accumulate_data><accumulation_format>full_output"
    "</accumulation_format></context_management>"
)
_TITLE = (
    '<template name="title" params="of" returns="string"><description>Give a title</description>'
    + _atomic("inside", "Write a title of {{ of }}").replace(' name="inside"', "")
    + "</template>"
)
_LOOK = (
    "<file_paths source=\"command\"><command>sh -c 'echo {label} &gt;&gt; effects.txt; echo notes.txt'</command>"
    "</file_paths>"
)
_EXHAUSTED = '<handler max_turns="1"/>' + _tools("read_file")
_DECOMPOSED = (
    '<task type="sequential"><description>two parts</description><steps>'
    + _atomic("one", "part one of the whole")
    + _atomic("two", "{{ steps.one.content }} and part two")
    + "</steps></task>"
)
_SCOUT = _atomic("scout", "Look around and report [scout]", _tools("deliver", "subtask"))

CASES: tuple[Case, ...] = (
    Case(
        "atomic with read_file",
        _atomic("reads", "read the notes [r]", _tools("read_file")),
        "reads",
        {"[r]": [[READ]]},
    ),
    Case(
        "atomic with effects",
        _atomic(
            "acts",
            "deliver things [e]",
            _tools("deliver", "read_file", "break_it") + '<output_format type="json"/>',
        ),
        "acts",
        {
            "[e]": [
                [deliver("fx-a")],
                [deliver("fx-b"), READ],
                [("break_it", {"what": "fx-c"})],
                '{"done": 3}',
            ]
        },
        effects=("fx-a", "fx-b", "fx-c"),
    ),
    Case(
        "atomic, every step synced",
        _atomic("acts", "deliver one thing [e]", _tools("deliver")),
        "acts",
        {"[e]": [[deliver("fx-a")]]},
        effects=("fx-a",),
        sync="step",
    ),
    Case(
        "sequential",
        '<task name="steps" type="sequential"><description>three steps</description>'
        + _FULL
        + "<steps>"
        + _atomic("first", "first")
        + _atomic("second", "second")
        + _atomic("third", "third {{ steps.first.content }}")
        + "</steps></task>",
        "steps",
    ),
    *(
        Case(
            f"reduce, concurrency {n}",
            f'<task name="joins" type="reduce" concurrency="{n}"><description>join</description>{_FULL}'
            '<inputs over="parts"><input name="parts" type="string[]" required="true"/></inputs><initial_value>start'
            '</initial_value><inner_task type="atomic"><description>inner {{ current_input }}</description></inner_task>'
            '<reduction_task type="atomic"><description>join {{ current_result }} to {{ accumulator }}</description>'
            "</reduction_task></task>",
            "joins",
            inputs={"parts": ["iron", "zinc", "gold", "lead"][: 4 if n > 1 else 3]},
        )
        for n in (1, 3)
    ),
    Case("script", _script("runs", "fx-s"), "runs", effects=("fx-s",)),
    Case(
        "director_evaluator_loop",
        '<task name="loop" type="director_evaluator_loop"><description>until it is good</description><max_iterations>3'
        '</max_iterations><director type="atomic"><description>draft {{ current_iteration }} {{ evaluation_feedback }}'
        "</description></director><script_execution><description>test it</description><command><arg>sh</arg><arg>-c</arg>"
        '<arg>echo "$0" &gt;&gt; effects.txt; echo "tested $0"; test "$0" != fx-loop-1</arg>'
        "<arg>fx-loop-{{ current_iteration }}</arg></command></script_execution>"
        '<evaluator type="atomic"><description>judge {{ script_output.stdout }} {{ script_output.exit_code }}</description>'
        '<output_format type="json"/></evaluator></task>',
        "loop",
        {
            "judge tested fx-loop-1": ['{"success": false, "feedback": "longer"}'],
            "judge tested fx-loop-2": ['{"success": true, "feedback": "good"}'],
        },
        effects=("fx-loop-1", "fx-loop-2"),
    ),
    Case(
        "cond, calls of a function and of a task",
        _TITLE
        + _atomic(
            "closing",
            "Close with {{ word }}",
            '<inputs><input name="word" type="string"/></inputs>',
        )
        + '<task name="calls" type="sequential"><description>calls</description><steps>'
        + _atomic("ask", "yes or no [ask]")
        + '<cond name="either"><case test="steps.ask.content == \'yes\'">'
        + _atomic("taken", "it was yes")
        + "</case><default>"
        + _atomic("other", "it was no")
        + "</default></cond>"
        '<call template="title" name="named"><arg>steps.either.content</arg></call>'
        '<call template="closing" name="end"><arg name="word">steps.named.content</arg></call></steps></task>',
        "calls",
        {"[ask]": ["yes"]},
    ),
    Case(
        "a function inside a text",
        _TITLE + _atomic("speaks", "Say {{ title('iron') }} and {{ title('zinc') }}"),
        "speaks",
    ),
    Case(
        "nested inputs in parallel",
        '<task name="parallel" type="atomic"><description>compare {{ a }}, {{ b }} and {{ c }}</description><inputs>'
        + "".join(
            f'<input name="{n}" type="string">{_atomic(n, f"tell of {n}").replace(f" name={chr(34)}{n}{chr(34)}", "")}</input>'
            for n in "ab"
        )
        + '<input name="c" type="string">'
        + _script("c", "fx-c")
        + "</input></inputs></task>",
        "parallel",
        effects=("fx-c",),
    ),
    Case(
        "subtask",
        _atomic("boss", "delegate [boss]", _tools("subtask")),
        "boss",
        {"[boss]": [[_subtask("Recite a limerick [limerick]")]]},
    ),
    Case(
        "subtask, two side by side, one a template",
        _atomic("boss", "delegate [boss]", _tools("subtask", "helper"))
        + _atomic(
            "helper",
            "Help with {{ what }} [helper]",
            _tools("deliver") + '<inputs><input name="what" type="string"/></inputs>',
        ),
        "boss",
        {
            "[boss]": [[("helper", {"what": "tin"}), _subtask("Recite a limerick [limerick]")]],
            "[helper]": [[deliver("fx-h")]],
        },
        effects=("fx-h",),
    ),
    Case(
        "subtask in a subtask",
        _atomic("boss", "delegate [boss]", _tools("scout")) + _SCOUT,
        "boss",
        {
            "[boss]": [[("scout", {})]],
            "[scout]": [[deliver("fx-scout")], [_subtask("Dig a hole [dig]")]],
        },
        effects=("fx-scout",),
    ),
    Case(
        "subtask that fails",
        _atomic("boss", "delegate [boss]", _tools("listing"))
        + _atomic(
            "listing",
            "List it as JSON [listing]",
            _tools("deliver") + '<output_format type="json" schema="array"/>',
        ),
        "boss",
        {"[boss]": [[("listing", {})]], "[listing]": [[deliver("fx-l")], "no list"]},
        effects=("fx-l",),
    ),
    Case(
        "a limit that counts what a subtask used",
        _atomic("boss", "delegate [boss]", '<handler max_turns="2"/>' + _tools("subtask")),
        "boss",
        {"[boss]": [[_subtask("Recite a limerick [limerick]")]]},
        status="FAILED",
    ),
    Case(
        "a run that fails",
        '<task name="fails" type="sequential"><description>fails</description><steps>'
        + _atomic("first", "first")
        + _script("then", "fx-f")
        + _atomic("last", "an object", '<output_format type="json" schema="object"/>')
        + "</steps></task>",
        "fails",
        effects=("fx-f",),
        status="FAILED",
    ),
    Case(
        "retries",
        '<task name="flaky" type="sequential"><description>twice</description><steps>'
        + _atomic("a", "one [f1]")
        + _atomic("b", "two [f2]")
        + "</steps></task>",
        "flaky",
        {"[f1]": [Flaky("first")], "[f2]": [Flaky("second")]},
    ),
    Case(
        "retries of a tool",
        _atomic("knocks", "knock [k]", _tools("knock")),
        "knocks",
        {"[k]": [[("knock", {"what": "the door"})]]},
    ),
    Case(
        "words",
        _atomic(
            "capital",
            "Name the capital city of a country",
            '<inputs><input name="country" type="string" required="true">The country</input></inputs>'
            "<instructions>capital of {{ country }}</instructions>",
        ),
        "name the capital city of the country Peru",
        {"Find in the request": ['{"country": "Peru"}']},
    ),
    Case(
        "reparse",
        _atomic("large", "a large task [large]", _EXHAUSTED),
        "large",
        {"Split it into smaller tasks": [_DECOMPOSED], "[large]": [[READ]]},
        reparse=True,
    ),
    Case(
        "file_paths from a command",
        _atomic("sees", "what do they say", _LOOK.format(label="fx-look")),
        "sees",
        commands=("fx-look",),
    ),
)

# The script is come to later than the call beside it is sent: each model of its own is looked for in a thread.
BESIDE = Case(
    "a script in doubt beside a call",
    '<task name="beside" type="atomic"><description>compare {{ a }} and {{ b }}</description><inputs>'
    '<input name="a" type="string"><task type="atomic"><description>tell of a</description></task></input>'
    '<input name="b" type="string"><task type="sequential"><description>branch</description><steps>'
    + "".join(
        _atomic(name, f"{name} by its own", f"<model>{name}</model>")
        for name in ("one", "two", "three")
    )
    + _script("runs", "fx-beside")
    + "</steps></task></input></inputs></task>",
    "beside",
    effects=("fx-beside",),
)

COMPOSITE = Case(
    "composite",
    _TITLE
    + _SCOUT
    + '<task name="gather" type="reduce" concurrency="2"><description>gather</description>'
    + _FULL
    + '<inputs over="parts"><input name="parts" type="string[]" required="true"/></inputs><inner_task>'
    '<task type="sequential"><description>look at one</description><steps>'
    + _atomic("say", "Say {{ title(current_input) }}")
    + '</steps></task></inner_task><reduction_task type="atomic"><description>join {{ current_result }} to '
    "{{ accumulator }}</description></reduction_task></task>"
    '<task name="everything" type="sequential"><description>all of it</description>'
    + _FULL
    + '<inputs><input name="parts" type="string[]" required="true"/></inputs><steps>'
    '<call template="gather" name="gathered"><arg name="parts">parts</arg></call>'
    '<task name="loop" type="director_evaluator_loop"><description>until it is good</description><max_iterations>2'
    '</max_iterations><director><task type="sequential"><description>direct</description><steps>'
    + _atomic(
        "act",
        "act in {{ current_iteration }} [act{{ current_iteration }}]",
        _tools("deliver", "scout"),
    )
    + "</steps></task></director><script_execution><description>test</description><command><arg>sh</arg><arg>-c</arg><arg>"
    'echo "$0" &gt;&gt; effects.txt; echo "tested $0"</arg><arg>fx-loop-{{ current_iteration }}</arg></command>'
    '</script_execution><evaluator type="atomic"><description>judge {{ script_output.stdout }}</description>'
    '<output_format type="json"/></evaluator></task>'
    '<cond name="either"><case test="steps.gathered.content != \'\'">'
    '<task type="atomic"><description>compare {{ a }} and {{ b }} [flaky]</description><inputs>'
    '<input name="a" type="string"><task type="atomic"><description>tell of a</description></task></input>'
    '<input name="b" type="string"><call template="title"><arg>tin</arg></call></input></inputs>'
    + _LOOK.format(label="fx-look")
    + "</task></case></cond>"
    + _atomic("large", "a large task [large]", _EXHAUSTED)
    + "</steps></task>",
    "everything",
    {
        "Split it into smaller tasks": [_DECOMPOSED],
        "[scout]": [[deliver("fx-scout")], [_subtask("Dig a hole [dig]")]],
        "[act1]": [[deliver("fx-act"), ("scout", {})]],
        "judge tested fx-loop-1": ['{"success": false, "feedback": "longer"}'],
        "judge tested fx-loop-2": ['{"success": true, "feedback": "good"}'],
        "[flaky]": [Flaky("compared")],
        "[large]": [[READ]],
    },
    inputs={"parts": ["iron", "zinc"]},
    effects=("fx-act", "fx-scout", "fx-loop-1", "fx-loop-2"),
    commands=("fx-look",),
    reparse=True,
)

BY_NAME: Mapping[str, Case] = {case.name: case for case in (*CASES, BESIDE, COMPOSITE)}
