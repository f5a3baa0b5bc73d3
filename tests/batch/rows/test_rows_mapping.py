"""Mapping of rows by name, path and expression, selection of rows, and ids."""

from __future__ import annotations

import asyncio
import json
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluator import UsageError
from evaluator.batch import Sample, Selection
from evaluator.batch.rows import RowError, RowMapping, RowSource, open_rows

ROW = {
    "id": 7,
    "question": "How many?",
    "target": "18",
    "answers": {"text": ["a", "b"], "a.b": 1},
    "with space": "s",
    "worked": "9 + 9\n#### 18",
    "a.b": "whole",
}


def all_of(rows: RowSource) -> list[Sample]:
    async def collect() -> list[Sample]:
        return [sample async for sample in rows]

    return asyncio.run(collect())


def one(row: Mapping[str, Any], mapping: RowMapping, **options: Any) -> Sample:
    (sample,) = all_of(open_rows([row], mapping, **options))
    return sample


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("question", "How many?"),
        ("with space", "s"),
        ("answers", {"text": ["a", "b"], "a.b": 1}),
        ("answers.text", ["a", "b"]),
        ("answers.text.1", "b"),
        ("a.b", "whole"),
        ("{{ answers.text | length }}", 2),
        ("  {{- answers.text[0] -}} ", "a"),
        ("{{ row['with space'] }}", "s"),
        ("{{ worked.split('####')[1] | trim }}", "18"),
        ("{{ -id }}", -7),
        ("{{ '}}' }}", "}}"),
        ("{{ missing | default(none) }}", None),
        ("Q: {{ question }} ({{ id }})", "Q: How many? (7)"),
        ("{{ id }}{{ id }}", "77"),
        ("{% for a in answers.text %}{{ a }},{% endfor %}", "a,b,"),
        ("{% if missing is defined %}{{ missing }}{% endif %}", ""),
        ("{{ id }} }}", "7 }}"),
    ],
)
def test_a_field_a_path_or_an_expression_is_read(text: str, expected: Any) -> None:
    assert one(ROW, RowMapping(inputs={"x": text})).inputs == {"x": expected}
    assert one(ROW, RowMapping(target=text)).target == expected


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        (
            {"target": "questoin"},
            "list:row 0 (id '7'): there is no field `questoin`; did you mean `question`? (the row has: `a.b`,",
        ),
        (
            {"inputs": {"x": "answers.txt"}},
            "there is no field `txt`; did you mean `text`? (answers has: `a.b`, `text`)",
        ),
        ({"inputs": {"x": "answers.text.2"}}, "`answers.text.2`: answers.text has only 2 items"),
        (
            {"inputs": {"x": "question.length"}},
            "`question.length`: question is string and has no field `length`",
        ),
        ({"metadata": ["subject"]}, "there is no field `subject`"),
        ({"id": "answers"}, "list:row 0: the id is object, expected text or a whole number"),
        ({"id": "{{ ' ' }}"}, "the id is an empty text"),
        (
            {"target": "{{ anwsers }}"},
            "target:1:4: 'anwsers' is not defined; did you mean `answers`?",
        ),
        ({"inputs": {"x": "{{ question + 1 }}"}}, "inputs.x:1:"),
    ],
)
def test_a_mapping_that_does_not_fit_is_an_error_before_anything_runs(
    mapping: dict[str, Any], message: str
) -> None:
    with pytest.raises(RowError) as caught:
        open_rows([ROW], RowMapping(**mapping))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ({"target": "{{ a +  }}"}, "target:1:"),
        ({"target": "{{ a | shout }}"}, "there is no filter 'shout'"),
        ({"target": "{% include 'x' %}"}, "is not allowed"),
        ({"target": "{{ summarise(question) }}"}, "there is no function summarise() here"),
        ({"target": "T: {{ summarise(question) }}"}, "there is no function summarise() here"),
        ({"inputs": {"x": " "}}, "inputs.x is empty"),
    ],
)
def test_an_invalid_expression_is_an_error_without_a_row(
    mapping: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        open_rows([ROW], RowMapping(**mapping))
    assert message in str(caught.value) and not isinstance(caught.value, RowError)


def test_a_row_is_data_and_never_an_expression() -> None:
    row = {"id": "{{ 1 }}", "question": "{{ target }}", "target": "{% raw %}"}
    sample = one(row, RowMapping(inputs={"a": "{{ question }}", "b": "question"}))
    assert (sample.id, sample.target) == ("{{ 1 }}", "{% raw %}")
    assert sample.inputs == {"a": "{{ target }}", "b": "{{ target }}"}


@pytest.mark.parametrize(
    ("mapping", "declared", "inputs", "target", "metadata"),
    [
        ({}, None, {"q": 1, "c": 2, "k": 3}, 4, {}),
        ({"metadata": ["k"]}, None, {"q": 1, "c": 2}, 4, {"k": 3}),
        ({"target": "k"}, None, {"q": 1, "c": 2, "target": 4}, 3, {}),
        ({"inputs": {"q": "c"}}, None, {"q": 2}, 4, {"q": 1, "k": 3}),
        ({}, ["q"], {"q": 1}, 4, {"c": 2, "k": 3}),
        ({}, ["q", "z"], {"q": 1}, 4, {"c": 2, "k": 3}),
        ({}, ["q", "target"], {"q": 1, "target": 4}, 4, {"c": 2, "k": 3}),
        ({"inputs": {"z": "k"}}, ["q", "z"], {"z": 3, "q": 1}, 4, {"c": 2}),
        ({"inputs": {"q": "{{ c }}"}}, ["q"], {"q": 2}, 4, {"q": 1, "c": 2, "k": 3}),
        ({"metadata": []}, ["q"], {"q": 1}, 4, {}),
    ],
)
def test_unmapped_fields_are_used_by_name(
    mapping: dict[str, Any], declared: list[str] | None, inputs: Any, target: Any, metadata: Any
) -> None:
    row = {"id": "r", "q": 1, "c": 2, "k": 3, "target": 4}
    sample = one(row, RowMapping(**mapping), declared=declared)
    assert (sample.inputs, sample.target, sample.metadata) == (inputs, target, metadata)


def test_an_input_that_the_template_does_not_have_is_refused() -> None:
    with pytest.raises(
        UsageError, match=r"no input `questoin` \(it takes: `question`\); did you mean `question`"
    ):
        open_rows([ROW], RowMapping(inputs={"questoin": "question"}), declared=["question"])


def test_a_row_without_a_required_input_is_an_error_with_its_place(tmp_path: Path) -> None:
    with pytest.raises(
        RowError,
        match=r"no field for the template's input `zebra`; map a field to it \(the row has",
    ):
        open_rows([ROW], declared=["zebra"], required=["zebra"])
    path = tmp_path / "a.jsonl"
    path.write_text('{"id": "a", "q": 1}\n\n{"id": "b", "Q": 1}\n', encoding="utf-8")
    for mapping, options in (
        (RowMapping(inputs={"q": "q"}), {}),
        (RowMapping(), {"declared": ["q"], "required": ["q"]}),
    ):
        with pytest.raises(RowError, match=r"a\.jsonl:3 \(id 'b'\): .*`q`.*`Q`") as caught:
            all_of(open_rows(path, mapping, **options))
        assert (caught.value.line, caught.value.place, caught.value.id) == (3, 1, "b")
        again = pickle.loads(pickle.dumps(caught.value))
        assert (str(again), again.line, again.id) == (str(caught.value), 3, "b")


def test_a_row_without_a_target_has_none_unless_one_is_mapped() -> None:
    rows = [{"id": 1, "target": "a"}, {"id": 2}]
    assert [sample.target for sample in all_of(open_rows(rows))] == ["a", None]
    with pytest.raises(RowError, match=r"row 1 \(id '2'\): there is no field `target`"):
        all_of(open_rows(rows, RowMapping(target="target")))


ROWS = st.lists(
    st.dictionaries(st.sampled_from("abc"), st.integers(0, 2) | st.text(max_size=2), min_size=1),
    min_size=1,
    max_size=9,
)


@given(ROWS, st.randoms())
@settings(max_examples=100, deadline=None)
def test_an_id_computed_from_content_does_not_depend_on_the_order(
    rows: list[dict[str, Any]], random: Any
) -> None:
    def ids(given: list[dict[str, Any]]) -> list[tuple[str, str]]:
        samples = all_of(open_rows(given))
        assert len({sample.id for sample in samples}) == len(given)
        return sorted(
            (json.dumps(dict(sample.inputs), sort_keys=True), sample.id) for sample in samples
        )

    shuffled = [
        dict(random.sample(list(row.items()), len(row))) for row in random.sample(rows, len(rows))
    ]
    assert ids(shuffled) == ids(rows)


def test_equal_rows_are_numbered() -> None:
    first, second, third, other = (
        sample.id for sample in all_of(open_rows([{"x": 1}] * 3 + [{"x": 2}]))
    )
    # Results of earlier batches are found again by it: another value is a break.
    assert first == "e9a986caf601b7f4"
    assert (second, third) == (f"{first}-2", f"{first}-3") and other != first


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", None])
def test_a_duplicate_id_is_an_error_that_names_both_rows(name: str | None, tmp_path: Path) -> None:
    rows = [{"id": str(n % 5)} for n in range(9)]
    source: Any = rows
    if name is not None:
        source = tmp_path / name
        lines = (
            [json.dumps(row) for row in rows]
            if name == "a.jsonl"
            else ["id", *(row["id"] for row in rows)]
        )
        source.write_text("\n".join(lines), encoding="utf-8")
    places = {
        "a.jsonl": ("a.jsonl:6", "line 1"),
        "a.csv": ("a.csv:7", "line 2"),
        None: ("list:row 5", "row 0"),
    }
    here, earlier = places[name]
    with pytest.raises(
        RowError, match=rf"{here} \(id '0'\): the id is not unique, it is first in {earlier};"
    ):
        all_of(open_rows(source))


def test_a_later_row_with_an_id_where_the_first_has_none_is_an_error() -> None:
    with pytest.raises(
        RowError, match=r"row 1: this row has the field `id`, but the first one does not"
    ):
        all_of(open_rows([{"x": 1}, {"x": 2, "id": "b"}]))


NUMBERS = [{"id": n, "kind": "even" if n % 2 == 0 else "odd"} for n in range(20)]


@pytest.mark.parametrize(
    ("selection", "expected", "total"),
    [
        ({}, list(range(20)), 20),
        ({"limit": 3}, [0, 1, 2], 3),
        ({"limit": 30}, list(range(20)), 20),
        ({"start": 5}, list(range(5, 20)), 15),
        ({"stop": 4}, [0, 1, 2, 3], 4),
        ({"start": 18, "stop": 50}, [18, 19], 2),
        ({"start": 5, "stop": 9, "limit": 2}, [5, 6], 2),
        ({"where": "kind == 'odd' and id > 10"}, [11, 13, 15, 17, 19], None),
        ({"where": "{{ kind == 'odd' }}", "limit": 2}, [1, 3], None),
        ({"where": "kind == 'odd'", "start": 10, "stop": 14}, [11, 13], None),
        ({"sample": 30}, list(range(20)), 20),
    ],
)
def test_a_selection_selects_its_rows(
    selection: dict[str, Any], expected: list[int], total: int | None
) -> None:
    rows = open_rows(NUMBERS, selection=Selection(**selection))
    assert (
        [sample.place for sample in all_of(rows)]
        == expected
        == [sample.place for sample in all_of(rows)]
    )
    assert rows.total == total


def test_a_sample_keeps_its_order_and_depends_on_its_seed_alone() -> None:
    def drawn(**options: Any) -> list[int]:
        return [
            sample.place
            for sample in all_of(open_rows(NUMBERS, selection=Selection(sample=6, **options)))
        ]

    assert drawn() == drawn(seed=0) == [0, 1, 8, 9, 13, 18]
    assert drawn() == sorted(set(drawn()))
    assert drawn(seed=1) != drawn(seed=2)
    assert drawn(seed=1, limit=2) == drawn(seed=1)[:2]
    assert all(place % 2 for place in drawn(where="kind == 'odd'"))


def test_every_row_is_equally_likely_to_be_drawn() -> None:
    counts = [0] * 10
    for seed in range(2000):
        rows = open_rows(NUMBERS[:10], selection=Selection(sample=3, seed=seed))
        for sample in all_of(rows):
            counts[sample.place] += 1
    # 600 expected; five standard deviations of a binomial distribution are 102.
    assert sum(counts) == 6000 and all(abs(count - 600) < 102 for count in counts)


@pytest.mark.parametrize(
    ("selection", "message"),
    [
        ({"start": 20}, "no row is selected: there are only 20 and start is 20"),
        ({"where": "id > 99"}, "no row is selected: `where` is true for none of 20"),
        ({"where": "kind"}, "row 0: where is 'even', expected true or false"),
        (
            {"where": "knid == 'odd'"},
            "where:1:1: 'knid' is not defined; did you mean `kind` or `id`?",
        ),
    ],
)
def test_an_empty_selection_is_an_error_before_anything_runs(
    selection: dict[str, Any], message: str
) -> None:
    with pytest.raises(RowError) as caught:
        open_rows(NUMBERS, selection=Selection(**selection))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("selection", "message"),
    [
        ({"limit": 0}, "limit is 0, expected an integer, at least 1"),
        ({"limit": True}, "limit is True"),
        ({"start": -1}, "start is -1, expected an integer, at least 0"),
        ({"sample": 2.5}, "sample is 2.5"),
        ({"start": 5, "stop": 5}, "there is no row between start 5 and stop 5"),
        ({"stop": 0}, "there is no row between start 0 and stop 0"),
        ({"seed": "x"}, "seed is 'x'"),
        ({"where": " "}, "where is ' ', expected an expression"),
    ],
)
def test_an_invalid_selection_is_refused(selection: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        Selection(**selection)
    assert message in str(caught.value)
