"""Few-shot examples: which ones a row gets, where the model sees them, and what a change of them does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evaluator import UsageError
from evaluator.batch import FewShot
from evaluator.batch.rows import RowMapping, open_rows
from evaluator.batch.rows.fewshot import read_shots
from tests.batch.conftest import QUIZ, ROWS, Calls, Run, Scripted

DEV = [
    {"question": f"What is {n} + {n}?", "target": str(2 * n), "of": "even" if n % 2 == 0 else "odd"}
    for n in range(20, 26)
]
IN_TEXT = (
    '<task name="quiz" type="atomic"><description>Answer a quiz question</description>'
    '<inputs><input name="question" required="true">it</input><input name="fewshot" type="array" default="[]"/></inputs>'
    "<instructions>{% for shot in fewshot %}Q: {{ shot.question }} A: {{ shot.answer }}\n{% endfor %}"
    "Q: {{ question }}</instructions></task>"
)


def write(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def chosen(rows: Any, pool: Any, **wanted: Any) -> list[list[str]]:
    """The questions of the examples of each row."""
    shots = read_shots(
        FewShot(rows=pool, **wanted), RowMapping(), ["question"], ["question"], lambda inputs: None
    )
    source = open_rows(rows, declared=["question"], choose_shots=shots.choose)
    return [
        [str(shot.inputs["question"]) for shot in each.shots]
        for each in source.read_ahead()
        if each is not None
    ]


def questions(*numbers: int) -> list[dict[str, Any]]:
    return [{"question": n, "target": "t"} for n in numbers]


@pytest.mark.parametrize(
    ("rows", "pool", "wanted", "expected"),
    [
        (questions(1, 2), questions(7, 8, 9), {"k": 2}, [["7", "8"], ["7", "8"]]),
        (questions(7, 8, 9), questions(7, 8, 9), {"k": 2}, [["8", "9"], ["7", "9"], ["7", "8"]]),
        (questions(1), questions(7, 7, 8), {"k": 2}, [["7", "8"]]),
    ],
)
def test_each_row_gets_the_first_examples_that_are_not_itself(
    rows: Any, pool: Any, wanted: Any, expected: list[list[str]]
) -> None:
    assert chosen(rows, pool, **wanted) == expected


def test_a_seed_gives_an_order_that_depends_on_nothing_else() -> None:
    pool = questions(*range(50))
    first = chosen(questions(100, 101), pool, k=5, seed=1)
    assert (
        first[0]
        == first[1]
        == chosen(questions(7000), pool[::-1], k=5, seed=1)[0]
        != ["0", "1", "2", "3", "4"]
    )
    assert chosen(questions(100), pool, k=5, seed=2)[0] != first[0]


def test_match_gives_examples_with_the_row_s_value() -> None:
    rows = [{"question": 1, "target": "", "of": "odd"}, {"question": 2, "target": "", "of": "even"}]
    assert chosen(rows, DEV, k=2, match="of") == [
        ["What is 21 + 21?", "What is 23 + 23?"],
        ["What is 20 + 20?", "What is 22 + 22?"],
    ]
    assert chosen(rows, DEV, k=2, match="{{ of[0] }}") == chosen(rows, DEV, k=2, match="of")


def test_examples_are_turns_before_the_prompt_the_same_for_every_model(
    run: Run, make_evaluator: Any
) -> None:
    seen: list[Any] = []

    def answer(request: Any) -> str:
        seen.append([(message.role, message.content) for message in request.messages])
        return "4"

    run(
        ROWS[2:3],
        evaluator=make_evaluator(QUIZ, backend=Scripted(script=answer)),
        models=["a", "b"],
        fewshot={"rows": DEV, "k": 2},
    )
    expected = [
        ("user", "Answer in a word: What is 20 + 20?"),
        ("assistant", "40"),
        ("user", "Answer in a word: What is 21 + 21?"),
        ("assistant", "42"),
        ("user", "Answer in a word: What is 2 + 2?"),
    ]
    assert seen == [expected, expected]


def test_a_template_with_the_input_fewshot_has_them_in_its_text(
    run: Run, make_evaluator: Any, calls: Calls
) -> None:
    result = run(
        ROWS[:1],
        evaluator=make_evaluator(IN_TEXT, backend=Scripted(script=calls)),
        fewshot={"rows": DEV, "k": 1, "answer": "{{ 'it is ' ~ target }}"},
    )
    assert calls == ["Q: What is 20 + 20? A: it is 40\nQ: What is 0 + 0?"]
    (one,) = result.results()
    assert "fewshot" not in one.inputs and "fewshot" in one.parts


def test_a_changed_example_file_is_noticed_and_the_manifest_says_which_it_was(
    run: Run, calls: Calls, tmp_path: Path
) -> None:
    path = write(tmp_path / "dev.jsonl", DEV)
    result = run(fewshot={"rows": path, "k": 2, "seed": 3})
    manifest = json.loads((result.folder / "manifest.json").read_text())["fewshot"]
    assert {**manifest, "rows": None, "checksum": None} == {
        "rows": None,
        "k": 2,
        "seed": 3,
        "match": None,
        "answer": None,
        "checksum": None,
    }
    assert (manifest["rows"]["path"], manifest["rows"]["rows"]) == (path, 6) and len(
        manifest["checksum"]
    ) == 32
    assert run(fewshot={"rows": path, "k": 2, "seed": 3}, resume=True).ended.ran == 0
    write(Path(path), [{**row, "target": f"{row['target']}!"} for row in DEV])
    again = run(fewshot={"rows": path, "k": 2, "seed": 3}, resume=True)
    assert (again.ended.ran, again.ended.counts.changed) == (0, 10)
    assert "changed fewshot" in str(again.ended.counts.explained[0])
    changed = json.loads((result.folder / "manifest.json").read_text())["fewshot"]
    assert changed["checksum"] != manifest["checksum"] and len(calls) == 10


def test_a_task_of_an_earlier_session_resumes_with_its_examples(make_evaluator: Any) -> None:
    seen: list[int] = []

    def answer(request: Any) -> str:
        seen.append(len(request.messages))
        return "4"

    evaluator = make_evaluator(QUIZ, backend=Scripted(script=answer))
    shots = [({"question": "1?"}, "1"), ({"question": "2?"}, "2")]
    outcome = evaluator.evaluate_sync("quiz", {"question": "3?"}, shots=shots)
    assert evaluator.replay_sync(outcome.task_id).ok and seen == [5]


@pytest.mark.parametrize(
    ("dev", "wanted", "message"),
    [
        (
            DEV[:2],
            {"k": 3},
            r"rows\.jsonl:1 .*: .*dev\.jsonl has 2 other examples for this row, expected 3",
        ),
        (DEV, {"k": 1, "match": "of"}, r"rows\.jsonl:1.*: there is no field `of`"),
        (
            DEV,
            {"k": 1, "match": "{{ 'x' }}", "answer": "reason"},
            r"dev\.jsonl:1: there is no field `reason`",
        ),
        (
            [{"target": "x"}],
            {"k": 1},
            r"dev\.jsonl:1: no field for the template's input `question`",
        ),
        (
            [*DEV[:1], {"question": "?"}],
            {"k": 1},
            r"dev\.jsonl:2: this example has no answer; .* fewshot\.answer",
        ),
        (DEV, {"k": 0}, r"fewshot\.k is 0, expected an integer, at least 1"),
        (DEV, {}, r"fewshot\.k is missing"),
        (DEV, {"k": 1, "sed": 1}, r"fewshot\.sed is unknown; did you mean"),
    ],
)
def test_errors_come_before_the_first_call_with_file_and_line(
    run: Run, calls: Calls, tmp_path: Path, dev: Any, wanted: Any, message: str
) -> None:
    rows = write(tmp_path / "rows.jsonl", ROWS)
    with pytest.raises(UsageError, match=message):
        run(rows, fewshot={"rows": write(tmp_path / "dev.jsonl", dev), **wanted})
    assert calls == []


def test_a_late_row_without_enough_examples_is_found_before_the_first_call(
    run: Run, calls: Calls
) -> None:
    rows = [
        *({**row, "of": "odd"} for row in ROWS),
        {"id": "z", "question": "9 + 9?", "of": "prime"},
    ]
    with pytest.raises(
        UsageError, match=r"'z'.*has 0 other examples with of 'prime' for this row, expected 2"
    ):
        run(rows, fewshot={"rows": DEV, "k": 2, "match": "of"})
    assert calls == []


def test_a_composite_template_needs_the_input(run: Run, make_evaluator: Any) -> None:
    steps = f'<task name="quiz" type="sequential"><description>d</description><inputs><input name="question"/></inputs><steps>{QUIZ}</steps></task>'
    with pytest.raises(
        UsageError, match=r'template .quiz. is not atomic.*<input name="fewshot" type="array"/>'
    ):
        run(evaluator=make_evaluator(steps), fewshot={"rows": DEV, "k": 1})
    failed = make_evaluator(steps).evaluate_sync(
        "quiz", {"question": "?"}, shots=[({"question": "?"}, "a")]
    )
    assert "not atomic" in failed.message


def test_an_example_of_the_wrong_type_is_refused_with_its_line(
    run: Run, make_evaluator: Any, tmp_path: Path
) -> None:
    numbers = QUIZ.replace('type="string"', 'type="number"')
    dev = write(
        tmp_path / "dev.jsonl",
        [{"question": "1", "target": "1"}, {"question": "one", "target": "1"}],
    )
    with pytest.raises(UsageError, match=r"dev\.jsonl:2: input 'question'"):
        run(
            [{"question": 1, "target": "1"}],
            evaluator=make_evaluator(numbers),
            fewshot={"rows": dev, "k": 1},
        )
