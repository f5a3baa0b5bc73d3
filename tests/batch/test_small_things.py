"""Details of summaries, progress and names that save a reader's time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from evaluator import Evaluator, run_batch_sync
from evaluator.batch import NoDisplay
from evaluator.batch.summary.batch_summary import MOST_PARTS

ROWS = [
    {"question": f"What is {n} + {n}?", "target": str(2 * n), "n": f"g{n:03}"} for n in range(30)
]


@pytest.fixture
def offline() -> Evaluator:
    return Evaluator(handler="offline", tasks_dir=None)


def run(offline: Evaluator, folder: Path, rows: Any = ROWS, **options: Any) -> Any:
    options = {"scorers": ["exact"], **options}
    return run_batch_sync("answer_question", rows, evaluator=offline, output=folder, **options)


def test_a_single_scorer_that_repeats_the_verdicts_is_shown_once(offline, tmp_path) -> None:
    assert "Scorers: " not in run(offline, tmp_path / "one").summary.to_text()
    assert (
        "Scorers: "
        in run(offline, tmp_path / "two", scorers=["exact", "includes"]).summary.to_text()
    )
    # It says more if it could not decide on a row.
    partly = [*ROWS, {"question": "What is the capital of France?"}]
    assert "Scorers: " in run(offline, tmp_path / "partly", partly).summary.to_text()


def test_many_groups_are_folded_in_text_and_whole_in_json(offline, tmp_path) -> None:
    result = run(offline, tmp_path / "b", metadata=["n"], group_by="n")
    text = result.summary.to_text()
    assert sum(line.strip().startswith("g0") for line in text.splitlines()) == MOST_PARTS
    assert f"of {len(ROWS)}; --json has all" in text
    assert len(result.summary.to_dict()["groups"][0]["by"]) == len(ROWS)
    few = run(
        offline, tmp_path / "few", ROWS[:MOST_PARTS], metadata=["n"], group_by="n"
    ).summary.to_text()
    assert "has all" not in few


def test_one_result_has_no_standard_error(offline, tmp_path) -> None:
    def errors(folder: str, rows: Any) -> list[str]:
        text = run(
            offline, tmp_path / folder, rows, scorers=["exact", "includes"]
        ).summary.to_text()
        lines = [line.split() for line in text.splitlines()]
        return [
            words[5]
            for words in lines
            if words[:1] in (["exact"], ["includes"]) and words[1].isdigit()
        ]

    assert errors("one", ROWS[:1]) == ["–", "–"]
    assert errors("two", ROWS[:2]) == ["0", "0"]


class _Starts(NoDisplay):
    def __init__(self) -> None:
        self.done: list[int] = []

    def start(self, name: str, snapshot: Any) -> None:
        self.done.append(snapshot.done)

    def end(self, snapshot: Any, state: str) -> None:
        self.done.append(snapshot.done)


def test_the_progress_of_a_resumed_batch_starts_at_what_is_done(offline, tmp_path) -> None:
    run(offline, tmp_path / "b", ROWS[:10])
    display = _Starts()
    run(offline, tmp_path / "b", ROWS, resume=True, display=display)
    assert display.done == [10, 30]
    fresh = _Starts()
    run(offline, tmp_path / "c", ROWS, display=fresh)
    assert fresh.done == [0, 30]


def test_a_row_without_an_id_is_named_by_its_number_and_words(offline, tmp_path) -> None:
    results = list(run(offline, tmp_path / "b", ROWS[:2]).results())
    assert sorted(r.label for r in results) == [
        f"row {n + 1}: What is {n} + {n}? [{r.sample_id}]"
        for n, r in enumerate(sorted(results, key=lambda r: r.place))
    ]
    (named,) = run(offline, tmp_path / "c", [{"id": "au", **ROWS[0]}]).results()
    assert named.label == "au"
    (long,) = run(offline, tmp_path / "d", [{"question": "word " * 50, "target": "x"}]).results()
    assert len(long.label) < 90 and "…" in long.label
