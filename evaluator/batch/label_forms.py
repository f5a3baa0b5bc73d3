"""The forms of labels: what a labeller sees, and the files of other programs.

Label Studio's JSON is an array of tasks, or one task a line. A task has the names of a result in
its `data`; each annotation is a label: its choice the verdict, its number the value, its text the
note, and the side that it selects the better one of two answers.

In a log of Inspect AI (`.eval`), a label is an edit in the `history` of a score, with its author.
The score of a judge may be edited there; our labels are in scores of their own, named `SCORER
(people)` and `preference`.

The sheet of a labeller has the inputs, the target and the answer of a sample, and the criteria of
the scorer that is checked: its rubric or its grades. It has neither the verdict nor the model.
"""

from __future__ import annotations

import contextlib
import json
import math
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any, cast
from zipfile import BadZipFile, ZipFile

from evaluator.batch.labels import Label, LabelVerdict
from evaluator.batch.records import SampleResult
from evaluator.errors import UsageError
from evaluator.errors.messages import json_problem
from evaluator.fields.records import items_of, mapping_of
from evaluator.files.open_below import open_regular, read_regular
from evaluator.lazy_dataclass import frozen

PASS_AT = 0.5
_WORDS = {
    "p": LabelVerdict.PASSED,
    "f": LabelVerdict.FAILED,
    "?": LabelVerdict.UNDECIDED,
    "passed": LabelVerdict.PASSED,
    "pass": LabelVerdict.PASSED,
    "failed": LabelVerdict.FAILED,
    "fail": LabelVerdict.FAILED,
    "undecided": LabelVerdict.UNDECIDED,
}


@frozen
class Answer:
    """The answer of a labeller for a result, see `labels.Label`."""

    verdict: LabelVerdict
    value: float | None = None
    grade: str = ""


@frozen
class LabelSheet:
    """The question of a scorer. A value of at least `pass_at` passes. `grades` are the names of
    grades with their values; None for a grade that does not decide.
    """

    criteria: str = ""
    grades: Mapping[str, float | None] = field(default_factory=dict[str, float | None])
    pass_at: float = PASS_AT

    @classmethod
    def of(cls, described: Mapping[str, Any]) -> LabelSheet:
        """The sheet of a scorer by its description in the manifest, which may have graders
        inside.
        """
        grades: dict[str, float | None] = {}
        given = _find(described, "grades")
        if isinstance(given, Mapping):
            for name, value in cast("Mapping[str, Any]", given).items():
                grades[name] = float(value) if _is_number(value) else None
        pass_at = _find(described, "pass_at")
        rubric = _find(described, "rubric")
        criteria = ""
        if isinstance(rubric, Mapping):
            points = cast("Mapping[str, Any]", rubric)
            criteria = "\n".join(f"{name} ({most} points)" for name, most in points.items())
        elif rubric is not None:
            criteria = as_text(rubric)
        return cls(criteria, grades, pass_at=float(pass_at) if _is_number(pass_at) else PASS_AT)

    @property
    def choices(self) -> tuple[tuple[str, str], ...]:
        """The keys that answer, with their meanings."""
        grades = [(str(number), name) for number, name in enumerate(self.grades, 1)]
        return (("p", "passed"), ("f", "failed"), *grades, ("?", "cannot decide"))

    def sections(self, result: SampleResult) -> Iterator[tuple[str, str]]:
        """Titles and texts, in the order in which they are shown."""
        for name, value in result.inputs.items():
            yield name, as_text(value)
        if result.target is not None:
            yield "target", as_text(result.target)
        if self.criteria:
            yield "criteria", self.criteria
        yield "answer", result.content

    def read(self, word: str) -> Answer:
        """The answer for a key, a verdict, a grade or a value. Raises: ValueError, with the
        reason.
        """
        verdict = _WORDS.get(word.lower())
        if verdict is not None:
            return Answer(verdict)
        names = list(self.grades)
        if word in names:
            return self._grade(word)
        if names:
            if word.isdecimal() and 1 <= int(word) <= len(names):
                return self._grade(names[int(word) - 1])
            raise ValueError(f"{word!r:.40} is none of the keys")
        try:
            value = float(word)
        except ValueError:
            raise ValueError(f"{word!r:.40} is neither a key nor a number from 0 to 1") from None
        if not 0 <= value <= 1:
            raise ValueError(f"{word!r:.40} is not a number from 0 to 1")
        return self._value(value, grade="")

    def _grade(self, name: str) -> Answer:
        value = self.grades[name]
        if value is None:
            return Answer(LabelVerdict.UNDECIDED, grade=name)
        return self._value(value, grade=name)

    def _value(self, value: float, grade: str) -> Answer:
        if value >= self.pass_at:
            return Answer(LabelVerdict.PASSED, value, grade=grade)
        return Answer(LabelVerdict.FAILED, value, grade=grade)


def as_text(value: Any) -> str:
    """A string as it is, any other JSON value as indented JSON."""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, indent=2)


def _find(described: Any, name: str) -> Any:
    """The first value under `name` in a description, or in one inside of it."""
    if isinstance(described, Mapping):
        mapping = cast("Mapping[str, Any]", described)
        if mapping.get(name) is not None:
            return mapping[name]
        inner: Sequence[Any] = list(mapping.values())
    elif isinstance(described, list):
        inner = cast("list[Any]", described)
    else:
        return None
    for each in inner:
        value = _find(each, name)
        if value is not None:
            return value
    return None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


RESULT = ("key", "sample_id", "epoch", "template", "variant")
OTHER = ("other", "other_template", "other_variant")
PREFERENCE = "preference"
_PEOPLE = " (people)"
_MAX_BYTES = 1_000_000_000
_MAX_SAMPLE_BYTES = 100_000_000
_SIDES = {"left": LabelVerdict.BETTER, "right": LabelVerdict.WORSE}


@frozen
class LabelRow:
    """A label of a file: where it is, and its texts by the names of columns."""

    where: str
    values: Mapping[str, str]

    def get(self, name: str) -> str:
        return self.values.get(name, "").strip()

    @property
    def is_pair(self) -> bool:
        """Whether it compares the answers of two results."""
        return any(self.get(name) for name in OTHER)


@frozen
class Labelled:
    """A result with its labels for one scorer, or those that compare it with `other`."""

    result: SampleResult
    labels: Sequence[Label]
    other: SampleResult | None = None

    def names(self) -> dict[str, Any]:
        """What names the results in a file."""
        found = {name: getattr(self.result, name) for name in RESULT}
        if self.other is not None:
            found |= {
                "other": self.other.key,
                "other_template": self.other.template,
                "other_variant": self.other.variant,
            }
        return found


def read_json(path: Path) -> Iterator[LabelRow]:
    """The labels of a file of Label Studio, or of a log of Inspect AI as JSON. Raises: UsageError,
    for anything else.
    """
    data = _json_in(path)
    if isinstance(data, Mapping) and "samples" in data:
        log = mapping_of(data)
        names = _names_of_log(log)
        for number, sample in enumerate(items_of(log["samples"]), 1):
            yield from _edits_of_sample(f"{path}, sample {number}", mapping_of(sample), names)
        return
    for number, task in enumerate([data] if isinstance(data, Mapping) else items_of(data), 1):
        yield from _labels_of_task(f"{path}, task {number}", task)


def _json_in(path: Path) -> Any:
    """The JSON of a file, or a list of that of its lines."""
    try:
        text = read_regular(path, _MAX_BYTES).decode("utf-8-sig")
        if text.lstrip().startswith("["):
            return json.loads(text)
        try:
            return json.loads(text)
        except ValueError:
            return [json.loads(line) for line in text.splitlines() if line.strip()]
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: invalid JSON: {json_problem(error)}") from error


def _labels_of_task(where: str, task: Any) -> Iterator[LabelRow]:
    """Each annotation of a task of Label Studio."""
    fields = mapping_of(task)
    data = {
        name: as_text(value)
        for name, value in mapping_of(fields.get("data")).items()
        if name in (*RESULT, *OTHER, "scorer")
    }
    annotations: Any = fields.get("annotations")
    if not isinstance(annotations, list):
        raise UsageError(f"{where}: has no annotations; export it from Label Studio as JSON")
    for number, each in enumerate(cast("list[Any]", annotations), 1):
        annotation = mapping_of(each)
        if annotation.get("was_cancelled"):
            continue
        values = dict(data)
        by = annotation.get("completed_by")
        if isinstance(by, Mapping):
            by = mapping_of(by).get("email") or mapping_of(by).get("id")
        if by is not None:
            values["labeller"] = str(by)
        values["at"] = str(annotation.get("created_at") or "")
        values["seconds"] = str(annotation.get("lead_time") or 0)
        results: Any = annotation.get("result")
        for result in cast("list[Any]", results) if isinstance(results, list) else ():
            value = mapping_of(mapping_of(result).get("value"))
            choices: Any = value.get("choices")
            texts: Any = value.get("text")
            if isinstance(choices, list) and choices:
                values["verdict"] = str(cast("list[Any]", choices)[0])
            elif (side := _SIDES.get(str(value.get("selected")))) is not None:
                values["verdict"] = side.value
            elif "number" in value:
                values["value"] = str(value["number"])
            elif texts:
                if isinstance(texts, list):
                    note = cast("list[Any]", texts)
                else:
                    note = [texts]
                values["note"] = "\n".join(map(str, note))
        yield LabelRow(f"{where}, annotation {number}", values)


def task_of(number: int, labelled: Labelled) -> dict[str, Any]:
    """A result as a task of Label Studio, for a project with the fields verdict, value and note, or
    preference and note.
    """
    result = labelled.result
    data: dict[str, Any] = labelled.names()
    data |= {
        "inputs": as_text(dict(result.inputs)),
        "target": "" if result.target is None else as_text(result.target),
        "answer": result.content,
    }
    if labelled.other is None:
        data["scorer"] = labelled.labels[0].scorer
    else:
        data["other_answer"] = labelled.other.content
    annotations = [_annotation(label) for label in labelled.labels]
    return {"id": number, "data": data, "annotations": annotations}


def _annotation(label: Label) -> dict[str, Any]:
    parts: list[tuple[str, str, dict[str, Any]]] = []
    sides = {verdict: side for side, verdict in _SIDES.items()}
    if label.verdict in sides:
        parts.append((PREFERENCE, "pairwise", {"selected": sides[label.verdict]}))
    else:
        parts.append(("verdict", "choices", {"choices": [label.grade or label.verdict.value]}))
    if label.value is not None and not label.grade:
        parts.append(("value", "number", {"number": label.value}))
    if label.note:
        parts.append(("note", "textarea", {"text": [label.note]}))
    return {
        "completed_by": label.labeller,
        "created_at": label.at,
        "lead_time": label.seconds,
        "was_cancelled": False,
        "result": [
            {"from_name": name, "to_name": "answer", "type": kind, "value": value}
            for name, kind, value in parts
        ],
    }


def read_log(path: Path) -> Iterator[LabelRow]:
    """The edits of scores in a log of Inspect AI. Raises: UsageError, for anything else."""
    try:
        with open(open_regular(path), "rb") as file, ZipFile(file) as archive:
            names = _names_of_log(_member(archive, "header.json"))
            for name in archive.namelist():
                if name.startswith("samples/"):
                    yield from _edits_of_sample(f"{path}, {name}", _member(archive, name), names)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from error
    except NotImplementedError as error:
        raise UsageError(
            f"{path}: its compression cannot be read; convert it to JSON with: inspect log convert "
            "--to json --output-dir FOLDER LOG"
        ) from error
    except (
        BadZipFile,
        *_decompression_errors(),
        KeyError,
        ValueError,
        EOFError,
        RuntimeError,
    ) as error:
        raise UsageError(f"{path}: is not a log of Inspect AI that can be read") from error


def _decompression_errors() -> list[type[Exception]]:
    """What damaged data raises, of each compression that `zipfile` of this Python reads."""
    errors: list[type[Exception]] = [zlib.error]
    with contextlib.suppress(ImportError):
        from lzma import LZMAError

        errors.append(LZMAError)
    if sys.version_info >= (3, 14):
        with contextlib.suppress(ImportError):
            from compression.zstd import ZstdError

            errors.append(ZstdError)
    return errors


def _names_of_log(log: Mapping[str, Any]) -> dict[str, str]:
    """The template and the variant of a log that we wrote."""
    spec = mapping_of(log.get("eval"))
    metadata = mapping_of(spec.get("metadata"))
    if "variant" not in metadata:
        return {}
    return {"template": str(spec.get("task")), "variant": str(metadata["variant"])}


def _member(archive: ZipFile, name: str) -> Mapping[str, Any]:
    with archive.open(name) as member:
        data = member.read(_MAX_SAMPLE_BYTES + 1)
    if len(data) > _MAX_SAMPLE_BYTES:
        raise ValueError(f"{name} is too large")
    return mapping_of(json.loads(data))


def _edits_of_sample(
    where: str, sample: Mapping[str, Any], names: Mapping[str, str]
) -> Iterator[LabelRow]:
    own = mapping_of(mapping_of(sample.get("metadata")).get("evaluator"))
    result = {
        **names,
        "sample_id": str(own.get("sample_id", sample.get("id"))),
        "epoch": str(sample.get("epoch", "")),
    }
    for scorer, score in mapping_of(sample.get("scores")).items():
        edits = items_of(mapping_of(score).get("history"))
        for number, edit in enumerate(map(mapping_of, edits), 1):
            provenance = mapping_of(edit.get("provenance"))
            value = edit.get("value")
            # The first entry is the score before any edit.
            if provenance and value != "UNCHANGED":
                values = {name: str(text) for name, text in _label_values(provenance).items()}
                is_unknown = isinstance(value, float) and math.isnan(value)
                values.setdefault("verdict", "undecided" if is_unknown else str(value))
                values["scorer"] = scorer.removesuffix(_PEOPLE)
                yield LabelRow(f"{where}, {scorer}, edit {number}", result | values)


def _label_values(provenance: Mapping[str, Any]) -> dict[str, Any]:
    ours = mapping_of(provenance.get("metadata"))
    found = {
        name: ours[name]
        for name in ("verdict", "value", "grade", "seconds", "shown", *OTHER)
        if ours.get(name) is not None
    }
    note = provenance.get("reason")
    return found | {
        "labeller": provenance.get("author") or "",
        "at": provenance.get("timestamp") or "",
        "note": note or "",
    }


def people_scores(labels: Iterable[Label]) -> dict[str, dict[str, Any]]:
    """Scores of Inspect AI with the labels of a result, as if people had added them there."""
    found: dict[str, dict[str, Any]] = {}
    for label in labels:
        if label.other:
            name = PREFERENCE
        else:
            name = f"{label.scorer}{_PEOPLE}"
        edit = _edit(label)
        score = found.setdefault(name, {"history": []})
        score["value"] = edit["value"]
        score["history"].append(edit)
    return found


def _edit(label: Label) -> dict[str, Any]:
    value: Any = label.verdict.value
    if label.value is not None:
        value = label.value
    elif label.passed is not None:
        value = "C" if label.passed else "I"
    elif label.verdict is LabelVerdict.UNDECIDED:
        value = math.nan
    own = {"verdict": label.verdict.value, "value": label.value, "grade": label.grade}
    own |= {"seconds": label.seconds, "shown": label.shown, "other": label.other}
    return {
        "value": value,
        "provenance": {
            "timestamp": label.at,
            "author": label.labeller,
            "reason": label.note or None,
            "metadata": {name: text for name, text in own.items() if text not in (None, "")},
        },
    }
