"""Labels and comparisons come back from every form in which they are exported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from evaluator.batch import Batch, Label, LabelVerdict, SampleResult
from evaluator.batch.folder import LABELS
from evaluator.batch.label_files import export_labels, import_labels
from evaluator.batch.labels import append_labels, read_labels, shown_digest
from evaluator.batch.preferences import pair_digest
from tests.batch.labelled import pair_batch

FORMS = ("l.csv", "l.json", "l.jsonl", "l.eval")
# Texts are read without the white space around them, and CSV has no NUL.
_texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
_texts = _texts.map(str.strip)
_answers = st.one_of(
    st.tuples(st.sampled_from(["passed", "failed", "undecided"]), st.none()),
    st.floats(0, 1).map(lambda value: ("passed" if value >= 0.5 else "failed", value)),
)
_given = st.tuples(
    _texts.map(lambda name: f"x{name}"), _answers, _texts, st.integers(0, 99_999), st.booleans()
)


@pytest.fixture(scope="module")
def batch(tmp_path_factory: pytest.TempPathFactory) -> Batch:
    return pair_batch(tmp_path_factory.mktemp("forms") / "b", samples=6, equal=0)


def labels_of(batch: Batch, given_labels: list[Any]) -> list[Label]:
    """A label, or a comparison, of each row."""
    results: dict[str, dict[str, SampleResult]] = {}
    for result in batch.results():
        results.setdefault(result.sample_id, {})[result.variant] = result
    found: list[Label] = []
    for sides, (labeller, (word, value), note, milliseconds, is_pair) in zip(
        results.values(), given_labels, strict=False
    ):
        one, other = sides["small"], sides["large"]
        verdict = LabelVerdict(word)
        if is_pair:
            turned = {"passed": LabelVerdict.BETTER, "failed": LabelVerdict.WORSE}
            verdict = turned.get(word, LabelVerdict.TIE)
        found.append(
            Label(
                one.key,
                one.identity,
                pair_digest(one, other) if is_pair else shown_digest(one),
                scorer="" if is_pair else "judge",
                labeller=labeller,
                verdict=verdict,
                value=None if is_pair else value,
                note=note,
                at="2026-01-01T00:00:00Z",
                seconds=milliseconds / 1000,
                other=other.key if is_pair else "",
            )
        )
    return found


@settings(max_examples=10)
@given(st.lists(_given, min_size=1, max_size=6))
@example([("x", ("passed", 0.5), "=1+1", 0, False), ("x", ("failed", None), '\'-a\n"b",', 1, True)])
def test_what_is_exported_is_imported(batch: Batch, given_labels: list[Any]) -> None:
    labels = labels_of(batch, given_labels)
    for form in FORMS:
        (batch.folder / LABELS).unlink(missing_ok=True)
        append_labels(batch.folder, labels)
        folder = batch.folder.parent
        for old in folder.glob("l*.*"):
            old.unlink()
        count, written = export_labels(batch, folder / form)
        assert (count, sorted(written)) == (len(labels), files(folder, form))
        (batch.folder / LABELS).unlink()
        for file in files(folder, form):
            import_labels(batch, file, scorer=None, labeller=None)
        found = {label.key: label for label in read_labels(batch.folder)}
        assert found == {label.key: label for label in labels}, form


def files(folder: Path, form: str) -> list[Path]:
    """What an export has written: a log for each variant."""
    if form == "l.eval":
        return sorted(folder.glob("l-*.eval"))
    return [folder / form]
