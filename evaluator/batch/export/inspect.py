"""Exports to Inspect AI's log format: `.eval` files, one for each template and variant, that
`inspect view` opens.

A `.eval` file is a ZIP archive: `header.json` (the task, the model, the metrics), `summaries.json`,
and `samples/ID_epoch_N.json`. docs/howto/report-and-export.md lists the fields. Two things differ:

- Inspect AI has no unscored verdict; a missing score is NaN there, which its metrics ignore.
- An error is a sample with an `error` and without scores. Where a scorer failed, the sample has no
  `error`, and that score is NaN with the reason `scoring_failed`. The metrics in the header cover
  the scored samples, as here.

Source: https://inspect.aisi.org.uk/eval-logs.html, log format version 2.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote
from zipfile import ZIP_DEFLATED, ZipFile

from evaluator import disk
from evaluator.batch.export.output_path import About, output_file
from evaluator.batch.export.result_table import as_text, clean
from evaluator.batch.label_forms import people_scores
from evaluator.batch.labels import CurrentLabels, Label
from evaluator.batch.records import SampleResult, Score, Verdict
from evaluator.batch.summary import GroupSummary, ScorerSummary
from evaluator.batch.summary.calibrated import Calibration
from evaluator.errors import RecordError, UsageError
from evaluator.errors.results import Usage

_VERSION = 2
_EPOCH_0 = "1970-01-01T00:00:00+00:00"
_UNSAFE = re.compile(r"[/\\%:\x00-\x1f\x7f]|^\.+$")
_UNSAFE_NAME = re.compile(r"[^A-Za-z0-9.+-]+")


def write_inspect(results: Iterable[SampleResult], about: About, path: Path) -> list[Path]:
    """Writes a file for each template and variant. If `path` ends in `.eval`, it is the file of a
    single one; those of several are beside it, with the template and the variant in their names.
    Else `path` is a folder.

    Labels of people are scores of their own, with an edit for each. Each file is written completely
    or not at all. An id that cannot be a file name is percent-encoded in the log; the sample's
    metadata have the original.

    Returns: the files, or the folder. Raises: UsageError, without a result.
    """
    labels = about.labels or CurrentLabels()
    pairs: dict[str, list[Label]] = {}
    for (key, _), given in labels.pairs.items():
        pairs.setdefault(key, []).extend(given.values())
    with contextlib.ExitStack() as stack:
        logs: dict[tuple[str, str], _LogWriter] = {}

        def add_all() -> Iterator[SampleResult]:
            for result in results:
                key = (result.template, result.variant)
                if key not in logs:
                    file = stack.enter_context(tempfile.TemporaryFile())
                    archive = stack.enter_context(ZipFile(file, "w", ZIP_DEFLATED))
                    logs[key] = _LogWriter(
                        file, archive, summaries=stack.enter_context(tempfile.TemporaryFile())
                    )
                own = [label for each in labels.shown(result).values() for label in each]
                logs[key].add(result, [*own, *pairs.get(result.key, ())])
                yield result

        summary = about.summarise(add_all())
        if not logs:
            raise UsageError("there is no result to export")
        is_folder = path.suffix != ".eval"
        if is_folder:
            try:
                disk.make_folders(path, 0o700)
            except OSError as error:
                raise RecordError(
                    f"{path}: the folder cannot be created: {error.strerror}"
                ) from error
        written: list[Path] = []
        for group in summary.groups:
            if (log := logs.get((group.template, group.variant))) is None:
                continue
            if is_folder:
                target = path / _file_name(group)
            elif len(logs) > 1:
                target = path.with_name(f"{path.stem}-{_file_name(group)}")
            else:
                target = path
            with output_file(target) as file:
                log.finish(group, about, file)
            written.append(target)
        return [path] if is_folder else written


class _LogWriter:
    """Writes one archive to a temporary file, and the summaries, which the archive gets last, to
    another.
    """

    def __init__(self, file: BinaryIO, archive: ZipFile, summaries: BinaryIO) -> None:
        self._file = file
        self._zip = archive
        self._summaries = summaries
        self._ids: dict[str, None] = {}
        self._usage: dict[str, Usage] = {}
        self._started = ""
        self._ended = ""

    def add(self, result: SampleResult, labels: Sequence[Label]) -> None:
        sample = _sample(result)
        if labels:
            sample["scores"] = sample.get("scores", {}) | people_scores(labels)
        self._zip.writestr(f"samples/{sample['id']}_epoch_{result.epoch}.json", _json(sample))
        summary = {name: value for name, value in sample.items() if name not in _ONLY_IN_SAMPLES}
        summary |= {"completed": True, "message_count": len(sample["messages"])}
        if "error" in sample:
            summary["error"] = sample["error"]["message"]
        self._summaries.write((b"," if self._ids else b"[") + _json(summary))
        self._ids[sample["id"]] = None
        model = result.model or "none"
        self._usage[model] = self._usage.get(model, Usage()) + result.usage
        if "started_at" in sample:
            self._started = min(self._started or sample["started_at"], sample["started_at"])
            self._ended = max(self._ended, sample["completed_at"])

    def finish(self, group: GroupSummary, about: About, file: BinaryIO) -> None:
        spec = self._spec(group, about)
        plan = {"name": "plan", "steps": [{"solver": "evaluator", "params": {}}], "config": {}}
        header = {
            "version": _VERSION,
            "status": "success",
            "eval": spec,
            "plan": plan,
            "results": _results(group, about),
            "stats": {
                "started_at": self._started,
                "completed_at": self._ended,
                "model_usage": {model: _usage(used) for model, used in self._usage.items()},
            },
        }
        self._zip.writestr(
            "_journal/start.json", _json({"version": _VERSION, "eval": spec, "plan": plan})
        )
        self._summaries.write(b"]")
        self._summaries.seek(0)
        with self._zip.open("summaries.json", "w") as member:
            shutil.copyfileobj(self._summaries, member)
        self._zip.writestr("header.json", _json(header))
        self._zip.close()
        self._file.seek(0)
        shutil.copyfileobj(self._file, file)

    def _spec(self, group: GroupSummary, about: About) -> dict[str, Any]:
        key = hashlib.blake2b(
            _json([about.name, group.template, group.variant]), digest_size=11
        ).hexdigest()
        return {
            "eval_id": key,
            "run_id": key,
            "task_id": key,
            "created": _moment(about.text("created")) or self._started or _EPOCH_0,
            "task": group.template,
            "task_args": {},
            "dataset": {
                "name": about.name,
                "samples": len(self._ids),
                "sample_ids": list(self._ids),
            },
            "model": " ".join(self._usage),
            "config": {"epochs": group.epochs},
            "metadata": {"variant": group.variant, "manifest": dict(about.manifest)},
        }


_ONLY_IN_SAMPLES = ("messages", "output", "error", "store", "events", "attachments")


def _sample(result: SampleResult) -> dict[str, Any]:
    prompt = as_text(dict(result.inputs))
    content = result.content
    model = result.model or "none"
    if _UNSAFE.search(result.sample_id):
        sample_id = quote(clean(result.sample_id), safe=" ")
    else:
        sample_id = clean(result.sample_id)
    own: dict[str, Any] = {"verdict": result.verdict.value, "place": result.place}
    own |= {"sample_id": result.sample_id} if sample_id != result.sample_id else {}
    own |= {"identity": result.identity, "parsed": result.parsed, "inputs": dict(result.inputs)}
    own |= {"task_file": result.task_file} if result.task_file else {}
    sample: dict[str, Any] = {
        "id": sample_id,
        "epoch": result.epoch,
        "input": prompt,
        "target": "" if result.target is None else _target(result.target),
        "messages": [
            {"role": "user", "content": prompt},
            {"role": "assistant", "content": content, "source": "generate", "model": model},
        ],
        "output": {
            "model": model,
            "choices": [
                {
                    "message": {"role": "assistant", "content": content},
                    "stop_reason": _stop_reason(result),
                }
            ],
            "usage": _usage(result.usage),
        },
        "metadata": {**result.metadata, "evaluator": own},
        "store": {},
        "attachments": {},
        "model_usage": {model: _usage(result.usage)},
        "total_time": result.duration_s,
        "working_time": result.duration_s,
        "uuid": result.identity,
    }
    if started := _moment(result.started):
        sample["started_at"] = started
        sample["completed_at"] = _moment(result.started, result.duration_s)
    sample["events"] = _events(result)
    failure = result.failure
    if failure is not None and result.verdict is Verdict.ERROR:
        message = f"{failure.type} ({failure.kind}): {failure.message}"
        sample["error"] = {"message": message, "traceback": message, "traceback_ansi": message}
        sample["output"]["error"] = message
    else:
        sample["scores"] = {name: _score(score) for name, score in result.scores.items()}
    return sample


def _events(result: SampleResult) -> list[dict[str, Any]]:
    """The transcript: where the conversation is recorded, and the scores. Single model calls are
    in the task file, not in a result.
    """
    recorded = result.task_file or "the log of the batch"
    about = {"source": "evaluator", "data": f"Each model call is recorded in {recorded}."}
    events: list[dict[str, Any]] = [{"event": "info", "working_start": 0.0, **about}]
    for name, score in result.scores.items():
        event = {"event": "score", "working_start": result.duration_s, "scorer": name}
        events.append(event | {"score": _score(score)})
    if moment := _moment(result.started, result.duration_s):
        for event in events:
            event["timestamp"] = moment
    return events


def _stop_reason(result: SampleResult) -> str:
    if result.failure is not None and result.failure.resource == "output":
        return "max_tokens"
    return "stop"


def _score(score: Score) -> dict[str, Any]:
    data: dict[str, Any] = {"value": math.nan if score.value is None else score.value}
    if score.answer is not None:
        data["answer"] = score.answer
    if explanation := score.error or score.explanation:
        data["explanation"] = explanation
    if score.error is not None:
        data["reason"] = "scoring_failed"
    data["metadata"] = {**score.metadata, "passed": score.passed}
    return data


def _target(target: Any) -> str | list[str]:
    if isinstance(target, list) and all(isinstance(item, str) for item in target):
        return target
    return as_text(target)


def _usage(usage: Usage) -> dict[str, Any]:
    """Inspect AI counts input tokens without those read from a cache or written to it, and has no
    unknown counts: they are 0.
    """
    cached = (usage.cached_tokens or 0) + (usage.cache_write_tokens or 0)
    data: dict[str, Any] = {
        "input_tokens": max(0, (usage.input_tokens or 0) - cached),
        "output_tokens": usage.output_tokens or 0,
        "total_tokens": (usage.input_tokens or 0) + (usage.output_tokens or 0),
    }
    for name, value in (
        ("input_tokens_cache_read", usage.cached_tokens),
        ("input_tokens_cache_write", usage.cache_write_tokens or None),
        ("reasoning_tokens", usage.reasoning_tokens),
        ("total_cost", usage.cost_usd),
    ):
        if value is not None:
            data[name] = value
    return data


def _results(group: GroupSummary, about: About) -> dict[str, Any]:
    counts = group.part.counts
    found: dict[str, Any] = {
        "total_samples": counts.total,
        "completed_samples": counts.results - counts.error,
        "scores": [
            _scorer(name, scorer, group.calibrations.get(name))
            for name, scorer in group.part.scorers.items()
        ],
    }
    metadata: dict[str, Any] = {}
    decision = about.decision
    if decision is not None:
        metadata["decision"] = decision.shown()
    for key, judges in (("calibrations", group.calibrations), ("stability", group.stability)):
        if judges:
            metadata[key] = {name: judge.to_dict() for name, judge in judges.items()}
    if metadata:
        found["metadata"] = metadata
    return found


def _scorer(name: str, scorer: ScorerSummary, calibration: Calibration | None) -> dict[str, Any]:
    metrics = {
        "mean": scorer.value.mean,
        "accuracy": scorer.pass_rate.mean,
        "stderr": scorer.value.se,
    }
    if calibration is not None:
        metrics["corrected"] = calibration.share.corrected.mean
        metrics["corrected_stderr"] = calibration.share.corrected.se
    return {
        "name": name,
        "scorer": name,
        "scored_samples": scorer.n,
        "unscored_samples": scorer.of - scorer.n,
        "metrics": {
            metric: {"name": metric, "value": value, "params": {}}
            for metric, value in metrics.items()
            if value is not None
        },
    }


def _moment(text: str, later_s: float = 0.0) -> str | None:
    try:
        moment = datetime.fromisoformat(text) + timedelta(seconds=later_s)
    except (ValueError, OverflowError):
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).isoformat()


def _file_name(group: GroupSummary) -> str:
    """A readable file name that is unique for each template and variant."""
    plain = "_".join(
        _UNSAFE_NAME.sub("-", part).strip("-.") for part in (group.template, group.variant)
    )
    key = hashlib.blake2b(
        f"{group.template}\0{group.variant}".encode(errors="replace"), digest_size=4
    ).hexdigest()
    return f"{plain[:120]}_{key}.eval"


def _json(value: Any) -> bytes:
    return clean(json.dumps(value, ensure_ascii=False)).encode()
