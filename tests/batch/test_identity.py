"""A sample is known again as long as what determines its answer is the same, and not a moment longer."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluator import Evaluator, HandlerConfig, UsageError
from evaluator.batch import Cell, Identity, Sample
from evaluator.batch.cells import make_cells, make_variants
from evaluator.batch.identity import changed_parts, digest, handler_settings, key_of
from tests.batch.conftest import QUIZ

CELL = Cell("quiz", "m", "t", "h", is_simulated=False)
SAMPLE = Sample("a", {"question": "Why?"}, target="x")
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


def identity(sample: Sample = SAMPLE, epoch: int = 1, cell: Cell = CELL):
    return Identity.of(cell, sample, epoch)


@settings(max_examples=30)
@given(st.dictionaries(st.text(), JSON))
def test_the_order_of_fields_does_not_matter(value) -> None:
    assert digest(value) == digest(dict(reversed(list(value.items()))))


@pytest.mark.parametrize(
    ("other", "parts"),
    [
        (identity(Sample("a", {"question": "How?"}, target="x")), ["inputs"]),
        (identity(cell=Cell("quiz", "m", "t2", "h", False)), ["template"]),
        (identity(cell=Cell("quiz", "m", "t", "h2", False)), ["handler"]),
        (identity(cell=Cell("quiz", "m", "t", "h", True)), ["target"]),
    ],
)
def test_what_changes_is_named_and_the_cell_stays_the_same(other, parts: list[str]) -> None:
    first = identity()
    assert other.value != first.value and other.key == first.key
    assert list(changed_parts(first.parts, other.parts)) == parts


def test_target_metadata_and_place_are_no_part_of_it() -> None:
    assert identity(Sample("a", {"question": "Why?"}, "y", {"n": 1}, 7)).value == identity().value


@pytest.mark.parametrize(
    "key",
    [
        key_of("a", 2, "t", "m"),
        key_of("b", 1, "t", "m"),
        key_of("a", 1, "u", "m"),
        key_of("a", 1, "t", "n"),
        key_of("\ud800", 1, "t", "m"),
    ],
)
def test_another_sample_epoch_template_or_variant_is_another_cell(key: str) -> None:
    assert key != key_of("a", 1, "t", "m")


def test_what_is_no_json_is_refused() -> None:
    with pytest.raises(UsageError, match="not a JSON value"):
        digest({"a": {1, 2}})


def test_settings_that_change_no_answer_change_no_identity() -> None:
    plain = HandlerConfig()
    same = HandlerConfig(name="other", timeout_s=5, backoff_s=(1.0,), max_cost_usd=1, prices=(1, 2))
    assert handler_settings(plain, "m", {}, ()) == handler_settings(same, "m", {}, ())
    for other in (
        HandlerConfig(temperature=0.5),
        HandlerConfig(system="Be brief."),
        HandlerConfig(max_turns=3),
    ):
        assert handler_settings(plain, "m", {}, ()) != handler_settings(other, "m", {}, ())


def test_the_model_of_a_role_counts_where_a_template_names_the_role() -> None:
    plain, roles = HandlerConfig(), {"grader": "n"}
    assert handler_settings(plain, "m", {}, ()) == handler_settings(plain, "m", roles, ())
    assert handler_settings(plain, "m", {}, ["grader"]) != handler_settings(
        plain, "m", roles, ["grader"]
    )


def test_a_template_that_another_calls_is_part_of_it(make_evaluator, tmp_path) -> None:
    calling = (
        '<task name="outer" type="sequential"><description>Both</description><steps>'
        '<call template="quiz"><arg name="question">Why?</arg></call></steps></task>'
    )

    def part(quiz: str) -> str:
        evaluator: Evaluator = make_evaluator(calling + quiz)
        (((cell, _),), _) = make_cells(evaluator, ["outer"], make_variants([], []))
        return cell.template_part

    assert part(QUIZ) == part(QUIZ) != part(QUIZ.replace("word", "phrase"))
