"""The bound on model calls is one that no run can pass."""

from __future__ import annotations

import pytest

from evaluator import Evaluator, SimulatedBackend, TemplateLibrary
from evaluator.library import bound
from evaluator.library.bounds import CallBound


def atomic(name: str = "a", turns: str = "1", text: str = "x") -> str:
    return (
        f'<task type="atomic" name="{name}"><description>d</description><handler max_turns="{turns}"/>'
        f"<instructions>{text}</instructions></task>"
    )


def role(tag: str, turns: int) -> str:
    return (
        f'<{tag} type="atomic"><description>d</description><handler max_turns="{turns}"/></{tag}>'
    )


def sequential(*steps: str) -> str:
    return f'<task type="sequential" name="t"><description>d</description><steps>{"".join(steps)}</steps></task>'


def reduction(kind: str) -> str:
    return (
        '<task type="reduce" name="t"><description>d</description>'
        f'<inputs><input name="docs" type="{kind}"/></inputs>{role("inner_task", 2)}{role("reduction_task", 3)}</task>'
    )


FUNCTION = '<template name="f" params="a">{}</template>'
ASK = '<task type="atomic"><description>{{ a }}</description><handler max_turns="2"/></task>'

# (name, template, least, most)
TABLE = [
    ("the turns of an atomic task", atomic(turns="4"), 1, 4),
    (
        "twelve turns where none are stated",
        '<task type="atomic" name="t"><description>d</description></task>',
        1,
        12,
    ),
    ("the sum of the steps", sequential(atomic("a", "2"), atomic("b", "3")), 2, 5),
    (
        "the larger branch",
        sequential(
            f'<cond><case test="1 in steps">{atomic("a", "2")}</case><default>{atomic("b", "7")}</default></cond>'
        ),
        1,
        7,
    ),
    (
        "no branch at all",
        sequential(f'<cond><case test="1 in steps">{atomic("a", "2")}</case></cond>'),
        0,
        2,
    ),
    (
        "a branch that always holds",
        sequential(f'<cond><case test="true">{atomic("a", "2")}</case></cond>'),
        1,
        2,
    ),
    (
        "a process",
        '<task type="script" name="t"><description>d</description><command>true</command></task>',
        0,
        0,
    ),
    (
        "iterations of director and evaluator",
        '<task type="director_evaluator_loop" name="t"><description>d</description><max_iterations>4</max_iterations>'
        f"{role('director', 2)}{role('evaluator', 1)}</task>",
        2,
        12,
    ),
    ("one item where the input is no list", reduction("string"), 2, 5),
    ("items that are not known", reduction("string[]"), 0, None),
    (
        "the items of a map",
        '<task type="map" name="t"><description>d</description><inputs><input name="a" type="string"/>'
        f'<input name="b" type="string"/></inputs>{role("inner_task", 3)}</task>',
        2,
        6,
    ),
    (
        "nested input tasks",
        '<task type="atomic" name="t"><description>{{ x }}</description><handler max_turns="1"/>'
        f'<inputs><input name="x">{atomic("in", "3")}</input></inputs></task>',
        2,
        4,
    ),
    (
        "a call",
        f"<library>{FUNCTION.format(ASK)}{sequential('<call template=`f`><arg>1</arg></call>'.replace('`', chr(34)))}</library>",
        1,
        2,
    ),
    (
        "a call in a text",
        f"<library>{FUNCTION.format(ASK)}{atomic('t', '1', '{{ f(1) }}')}</library>",
        2,
        3,
    ),
    (
        "a call in a loop of a text",
        f"<library>{FUNCTION.format(ASK)}{atomic('t', '1', '{% for i in [1, 2] %}{{ f(i) }}{% endfor %}')}</library>",
        1,
        None,
    ),
    (
        "a call that a text may skip",
        f"<library>{FUNCTION.format(ASK)}{atomic('t', '1', '{% if 1 > 2 %}{{ f(1) }}{% endif %}')}</library>",
        1,
        3,
    ),
    (
        "turns that a variable sets",
        '<task type="atomic" name="t"><description>d</description><handler max_turns="{{ n }}"/>'
        '<inputs><input name="n" type="integer"/></inputs></task>',
        1,
        None,
    ),
]


def the_task(tmp_path, xml: str) -> tuple[TemplateLibrary, object]:
    (tmp_path / "t.xml").write_text(xml, encoding="utf-8")
    library = TemplateLibrary.load(tmp_path, shipped=False)
    assert library.errors == ()
    name = "t" if "t" in library else next(iter(library))
    return library, library.get(name).node


@pytest.mark.parametrize(
    ("xml", "least", "most"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE]
)
def test_calls_are_bounded_by(tmp_path, xml, least, most):
    library, node = the_task(tmp_path, xml)
    found = bound(node, library, tools_granted=True)
    assert (found.min_calls, found.max_calls) == (least, most)


def loop(evaluator: str) -> str:
    return (
        '<task type="director_evaluator_loop" name="t"><description>d</description>'
        f"<max_iterations>1</max_iterations>{role('director', 1)}{evaluator}</task>"
    )


TWO_STEPS = (
    '<evaluator type="sequential"><description>d</description><steps>'
    f"{atomic('first')}{atomic('second')}</steps></evaluator>"
)


@pytest.mark.parametrize(
    ("evaluator", "least"),
    [
        (role("evaluator", 1), 2),
        (TWO_STEPS, 1),
        (
            '<evaluator type="atomic"><description>d</description><inputs><input name="i">'
            f"{atomic()}</input></inputs></evaluator>",
            1,
        ),
    ],
    ids=["one call", "steps", "an input"],
)
def test_the_least_calls_count_what_an_evaluator_that_fails_makes(tmp_path, evaluator, least):
    library, node = the_task(tmp_path, loop(evaluator))
    assert bound(node, library).min_calls == least


def test_a_run_whose_evaluator_fails_at_its_first_step_makes_no_fewer_calls_than_the_bound(
    tmp_path,
):
    answers = iter(["a draft", ""])
    calls = []

    def answer(request):
        calls.append(request)
        return next(answers)

    library, node = the_task(tmp_path, loop(TWO_STEPS))
    backend = SimulatedBackend(script=answer)
    evaluator = Evaluator(library, "offline", backend=backend, tasks_dir=None)
    assert evaluator.evaluate_sync("t").unwrap().content == "a draft"
    assert bound(node, library).min_calls <= len(calls) == 2


def test_one_step_one_item_and_one_iteration_are_singular(tmp_path):
    library, node = the_task(tmp_path, sequential(atomic("a")))
    assert bound(node, library).explanation.startswith("sequential t, 1 step: ")
    library, node = the_task(tmp_path, reduction("string[]"))
    assert ", 1 item: " in bound(node, library, {"docs": ["a"]}).explanation
    library, node = the_task(tmp_path, loop(role("evaluator", 1)))
    assert ", 1 iteration: " in bound(node, library).explanation


def test_given_inputs_make_the_items_known(tmp_path):
    library, node = the_task(tmp_path, reduction("string[]"))
    found = bound(node, library, {"docs": ["a", "b", "c"]}, tools_granted=True)
    assert (found.min_calls, found.max_calls) == (6, 15)
    assert str(found) == "6 to 15 calls"
    assert "3 items" in found.explanation


def test_a_recursion_has_no_bound(tmp_path):
    body = '<cond><case test="a"><call template="f"><arg>a</arg></call></case></cond>'
    library, node = the_task(tmp_path, FUNCTION.format(body))
    found = bound(node, library, tools_granted=True)
    assert (found.min_calls, found.max_calls) == (0, None)
    assert "calls itself" in found.explanation


def test_a_bound_says_one_call_and_several_calls():
    phrases = [CallBound(1, most, lines=()).of_model_calls() for most in (None, 1, 2_000)]
    assert phrases == [
        "at least 1 model call, no upper bound",
        "at most 1 model call",
        "at most 2,000 model calls",
    ]


def test_the_profiles_turns_count_where_the_template_states_none(tmp_path):
    library, node = the_task(
        tmp_path, '<task type="atomic" name="t"><description>d</description></task>'
    )
    assert bound(node, library, max_turns=25, tools_granted=True).max_calls == 25


def test_the_explanation_has_a_line_for_each_part(tmp_path):
    library, node = the_task(tmp_path, sequential(atomic("a", "2"), atomic("b", "3")))
    assert bound(node, library, tools_granted=True).explanation.split("\n") == [
        "sequential t, 2 steps: 2 to 5 calls",
        "  atomic a, at most 2 turns: 1 to 2 calls",
        "  atomic b, at most 3 turns: 1 to 3 calls",
    ]
    library, node = the_task(tmp_path, sequential(atomic("a", "1")))
    assert bound(node, library, tools_granted=True).explanation.split("\n") == [
        "sequential t, 1 step: 1 call",
        "  atomic a, at most 1 turn: 1 call",
    ]
    library, node = the_task(tmp_path, reduction("string[]"))
    found = bound(node, library, {"docs": ["a"]}, tools_granted=True)
    assert "t, 1 item:" in found.explanation


def test_a_task_that_is_offered_no_tool_takes_one_turn(tmp_path):
    library, node = the_task(
        tmp_path, '<task name="t" type="atomic"><description>d</description></task>'
    )
    assert bound(node, library).max_calls == 1
    xml = '<task name="t" type="atomic"><description>d</description><tools><tool name="x"/></tools></task>'
    library, node = the_task(tmp_path, xml)
    assert bound(node, library).max_calls == 12
