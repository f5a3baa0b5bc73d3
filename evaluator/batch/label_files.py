"""Labels in files of other programs: CSV, JSON as Label Studio exports it, and logs of Inspect AI
(see `label_forms`).

A CSV file has a row for each label. A result is named by `key`, or by `sample_id` with `epoch`,
`template` and `variant` where these are needed to tell it from others. A row that compares two
answers names the other one by `other`, a key, or by `other_template` and `other_variant`.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from evaluator.batch.export.inspect import write_inspect
from evaluator.batch.export.output_path import About, output_file
from evaluator.batch.export.result_table import guarded, unguarded
from evaluator.batch.label_forms import (
    OTHER,
    RESULT,
    Answer,
    Labelled,
    LabelRow,
    LabelSheet,
    as_text,
    read_json,
    read_log,
    task_of,
)
from evaluator.batch.label_session import scorer_to_label
from evaluator.batch.labels import (
    Label,
    LabelVerdict,
    append_labels,
    shown_digest,
)
from evaluator.batch.preferences import pair_digest
from evaluator.batch.reading import Batch
from evaluator.batch.records import SampleResult
from evaluator.batch.rows.file_rows import read_csv
from evaluator.errors import UsageError
from evaluator.record.journal import now
from evaluator.record.steps import Scrub

_LABEL = ("scorer", "labeller", "verdict", "value", "grade", "note", "at", "seconds", "shown")
_MARKS = {"C": "passed", "I": "failed", "N": "failed", "P": "0.5"}
"""Values of Inspect AI: correct, incorrect, no answer, partial."""
_TURNED = {LabelVerdict.BETTER: LabelVerdict.WORSE, LabelVerdict.WORSE: LabelVerdict.BETTER}
_PREFERENCES = (*_TURNED, LabelVerdict.TIE, LabelVerdict.UNDECIDED)


def import_labels(
    batch: Batch,
    path: Path,
    *,
    scorer: str | None,
    labeller: str | None,
    scrub: Scrub | None = None,
) -> int:
    """Appends the labels of a file, all or none. `scorer` and `labeller` are for rows that name
    none. Returns: their number.

    Raises: UsageError, with the row, for a result that the batch does not have, a verdict that
    cannot be read, or a row without a labeller or a scorer.
    """
    rows = list(_read(path))
    results = _find_results(batch, rows)
    others = _find_results(
        batch, [_other_row(row, results[row.where]) for row in rows if row.is_pair]
    )
    labels: list[Label] = []
    for row in rows:
        try:
            label = _label(
                batch,
                row,
                result=results[row.where],
                other=others.get(row.where),
                scorer=scorer,
                labeller=row.get("labeller") or labeller or "",
            )
            labels.append(label)
        except (ValueError, UsageError) as error:
            hint = ""
            if not (row.get("labeller") or labeller):
                hint = "; name the labeller with --labeller NAME"
            raise UsageError(f"{row.where}: {error}{hint}") from error
    append_labels(batch.folder, labels, scrub)
    return len(labels)


def _label(
    batch: Batch,
    row: LabelRow,
    *,
    result: SampleResult,
    other: SampleResult | None,
    scorer: str | None,
    labeller: str,
) -> Label:
    if other is None:
        scorer = row.get("scorer") or scorer_to_label(batch, scorer)
        sheet = LabelSheet.of((batch.manifest.get("scorers") or {}).get(scorer) or {})
        word = row.get("grade") or row.get("value") or row.get("verdict")
        if word not in sheet.grades:
            word = _MARKS.get(word, word)
        answer = sheet.read(word)
        _check_verdict(row, answer)
        shown = shown_digest(result)
    else:
        if result.key == other.key:
            raise UsageError("compares a result with itself; name two variants or templates")
        if (result.sample_id, result.epoch) != (other.sample_id, other.epoch):
            raise UsageError("compares results of different rows")
        scorer = ""
        answer = Answer(_preference(row))
        places = [batch.cells.index((each.template, each.variant)) for each in (result, other)]
        # As `label_pairs` asks: the variant that the batch has first is the first one.
        if places[0] > places[1]:
            result, other = other, result
            answer = Answer(_TURNED.get(answer.verdict, answer.verdict))
        shown = pair_digest(result, other)
    return Label(
        result.key,
        result.identity,
        row.get("shown") or shown,
        scorer=scorer,
        labeller=labeller,
        verdict=answer.verdict,
        value=answer.value,
        grade=answer.grade,
        note=row.get("note"),
        at=row.get("at") or now(),
        seconds=float(row.get("seconds") or 0),
        other="" if other is None else other.key,
    )


def _check_verdict(row: LabelRow, answer: Answer) -> None:
    """Raises: UsageError, if the row's value or grade says something else than its verdict."""
    said = row.get("verdict").lower()
    if said in map(str, LabelVerdict) and said != answer.verdict.value:
        column = "grade" if row.get("grade") else "value"
        raise UsageError(
            f"the verdict is {said}, but the {column} {row.get(column)!r:.40} means "
            f"{answer.verdict.value}; correct one of them, or leave it empty"
        )


def _preference(row: LabelRow) -> LabelVerdict:
    for verdict in _PREFERENCES:
        if row.get("verdict").lower() == verdict.value:
            return verdict
    words = ", ".join(verdict.value for verdict in _PREFERENCES)
    raise UsageError(f"the verdict is {row.get('verdict')!r:.40}, expected one of {words}")


def _other_row(row: LabelRow, result: SampleResult) -> LabelRow:
    """A row that names the other result of a comparison."""
    return LabelRow(
        row.where,
        {
            "key": row.get("other"),
            "sample_id": result.sample_id,
            "epoch": str(result.epoch),
            "template": row.get("other_template") or result.template,
            "variant": row.get("other_variant") or result.variant,
        },
    )


def export_labels(batch: Batch, path: Path) -> tuple[int, list[Path]]:
    """Writes the labels that count into a file, in the form that its name ends with. Returns: their
    number, and what was written: `path`, or a log for each of several templates or variants.

    Raises: UsageError, for another ending, or a file of the batch's own record; RecordError, if it
    cannot be written.
    """
    found = _labelled(batch)
    written = [path]
    if path.suffix == ".eval":
        about = About(
            batch.manifest, batch.totals, summary=batch.summarise(), labels=batch.labels()
        )
        written = write_inspect(batch.results(), about, path)
    else:
        if path.suffix == ".csv":
            text = _csv_text(found)
        elif path.suffix in (".json", ".jsonl"):
            tasks = [task_of(number, each) for number, each in enumerate(found, 1)]
            if path.suffix == ".json":
                text = json.dumps(tasks, ensure_ascii=False, indent=1) + "\n"
            else:
                text = "".join(json.dumps(task, ensure_ascii=False) + "\n" for task in tasks)
        else:
            raise _unknown_form(path)
        with output_file(path) as file:
            file.write(text.encode("utf-8", "backslashreplace"))
    return sum(len(each.labels) for each in found), written


def _labelled(batch: Batch) -> list[Labelled]:
    """The results with labels by scorer, and then the pairs of results."""
    labels = batch.labels()
    found: list[Labelled] = []
    of_pairs: dict[str, SampleResult] = {}
    wanted = {key for keys in labels.pairs for key in keys}
    for result in batch.results():
        if result.key in wanted:
            of_pairs[result.key] = result
        for scorer in labels.scorers:
            own = labels.of(scorer).get(result.key, {}).values()
            if own:
                found.append(Labelled(result, list(own)))
    for (one, other), own in labels.pairs.items():
        if one in of_pairs and other in of_pairs:
            found.append(Labelled(of_pairs[one], list(own.values()), of_pairs[other]))
    return found


def _unknown_form(path: Path) -> UsageError:
    return UsageError(f"{path}: labels are in files that end with .csv, .json, .jsonl or .eval")


def _read(path: Path) -> Iterator[LabelRow]:
    if path.suffix == ".csv":
        for line, values in read_csv(path, ","):
            texts = {name: value for name, value in values.items() if isinstance(value, str)}
            yield LabelRow(
                f"{path}:{line}", {name: unguarded(text) for name, text in texts.items()}
            )
    elif path.suffix in (".json", ".jsonl"):
        yield from read_json(path)
    elif path.suffix == ".eval":
        yield from read_log(path)
    else:
        raise _unknown_form(path)


def _find_results(batch: Batch, rows: Sequence[LabelRow]) -> dict[str, SampleResult]:
    """The result of each row, by where the row is. Raises: UsageError, for a row without one, or
    with several.
    """
    wanted: dict[str, list[LabelRow]] = {}
    for row in rows:
        wanted.setdefault(row.get("key") or row.get("sample_id"), []).append(row)
    found: dict[str, SampleResult] = {}
    for result in batch.results():
        for row in (*wanted.get(result.key, ()), *wanted.get(result.sample_id, ())):
            if not _fits(row, result):
                continue
            if row.where in found:
                raise UsageError(
                    f"{row.where}: the batch has several results of the sample "
                    f"{result.sample_id!r}; name one by epoch, template and variant, or by key"
                )
            found[row.where] = result
    for row in rows:
        if row.where not in found:
            name = row.get("key") or row.get("sample_id")
            raise UsageError(
                f"{row.where}: the batch has no result {name!r:.80}; a row needs the column key, "
                "or sample_id, as evaluator label --export writes them"
            )
    return found


def _fits(row: LabelRow, result: SampleResult) -> bool:
    if row.get("key"):
        return row.get("key") == result.key
    own = {
        "epoch": str(result.epoch),
        "template": result.template,
        "variant": result.variant,
    }
    return all(row.get(name) in ("", value) for name, value in own.items())


def _csv_text(found: Iterable[Labelled]) -> str:
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow((*RESULT, *_LABEL, "inputs", "target", "answer", *OTHER, "other_answer"))
    for each in found:
        result = each.result
        names = each.names()
        texts = [as_text(dict(result.inputs))]
        texts.append("" if result.target is None else as_text(result.target))
        texts.append(result.content)
        texts += [names.get(name, "") for name in OTHER]
        texts.append("" if each.other is None else each.other.content)
        for label in each.labels:
            values = label.to_dict()
            cells = [names[name] for name in RESULT]
            cells += ["" if values[name] is None else values[name] for name in _LABEL]
            writer.writerow([guarded(str(value)) for value in (*cells, *texts)])
    return text.getvalue()
