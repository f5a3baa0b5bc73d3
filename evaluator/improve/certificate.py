"""The certificate of a search: what was gained, and the hashes of the records that show it.

`content` is a function of the settings, the rows and the recorded answers: a search that was killed
and resumed has the same. `measured` has what depends on the time. Both are signed with the user's
key. `verify` repeats the search from its records, without a call and without the project. What is
shown: the decision with its interval, prices, flipped rows, the candidates as a tree, and the diff
of the template.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from difflib import unified_diff
from math import fsum
from pathlib import Path
from typing import Any, cast

from evaluator.authoring.changes import diff_block
from evaluator.batch.identity import digest, indented_json
from evaluator.batch.reading import open_batch
from evaluator.batch.records import Sample
from evaluator.batch.summary.tables import Table, as_markdown, as_text, percent
from evaluator.errors import RecordError
from evaluator.errors.messages import visible
from evaluator.files.atomic import write_atomic
from evaluator.files.open_below import read_regular
from evaluator.files.trust import is_signed, signature
from evaluator.improve.decide import Decision
from evaluator.improve.edits import apply_edits, read_edit
from evaluator.improve.evidence import BATCHES, Events, Recorded, Recorder
from evaluator.improve.log import read_log
from evaluator.improve.propose import hash_of
from evaluator.improve.search import BASE, OutOfBudget, Row, Search, Settings, Split, part_of
from evaluator.lazy_dataclass import frozen

FORMAT = "evaluator-improve/1"
CERTIFICATE = "certificate.json"
LOG = "log.jsonl"
TEMPLATE_FILE = "template.xml"
_MAX_BYTES = 64_000_000


@frozen
class Certificate:
    """A certificate as JSON. `path` is its file."""

    path: Path
    content: Mapping[str, Any]
    measured: Mapping[str, Any]

    @property
    def folder(self) -> Path:
        return self.path.parent

    @property
    def digest(self) -> str:
        """The hash of `content`, by which templates name the certificate."""
        return digest(dict(self.content))

    @property
    def decision(self) -> Decision | None:
        found = self.content["decision"]
        if found is None:
            return None
        return Decision.from_table(found)

    @property
    def is_accepted(self) -> bool:
        decision = self.decision
        return decision is not None and decision.accepted

    def base_text(self) -> str:
        """The template as it was. Raises: RecordError, if the file was changed."""
        text = _read(self.folder / TEMPLATE_FILE).decode("utf-8", "surrogatepass")
        if hash_of(text) != self.content["base"]:
            raise RecordError(f"{self.folder / TEMPLATE_FILE}: was changed after it was written")
        return text

    def candidate_text(self, candidate: Mapping[str, Any]) -> str:
        """The text of a candidate of the certificate."""
        edits = [read_edit(edit, is_proposed=False) for edit in candidate["edits"]]
        return apply_edits(self.base_text(), self.content["template"], edits)

    def candidates(self) -> list[Mapping[str, Any]]:
        """All candidates with their `mean` on the selection rows, or where they were `dropped`.
        `missing` rows had no value, and count as 0 in the mean.
        """
        found: list[Mapping[str, Any]] = [
            {
                "id": BASE,
                "parents": [],
                "why": "",
                "edits": [],
                "mean": self.content["mean"],
                "missing": self.content.get("missing", 0),
            }
        ]
        for event in self.content["rounds"]:
            for candidate in event["candidates"]:
                name = candidate["id"]
                found.append(
                    {
                        **candidate,
                        "mean": event["means"].get(name),
                        "dropped": event["dropped"].get(name),
                        "missing": event.get("missing", {}).get(name, 0),
                    }
                )
        return found

    def to_dict(self) -> dict[str, Any]:
        return {
            "digest": self.digest,
            "content": dict(self.content),
            "measured": dict(self.measured),
        }

    def write(self) -> None:
        """Raises: RecordError, if the file cannot be written."""
        found = self.to_dict()
        found["signature"] = signature(_signed(found))
        write_atomic(self.path, indented_json(found))


@frozen
class Verification:
    """`is_own`: this user's program signed the certificate and all of its log."""

    certificate: Certificate
    is_own: bool


def read_certificate(path: Path) -> tuple[Certificate, bool]:
    """The certificate in a file, and whether this user's program has signed it as it is.

    Raises: RecordError, if it cannot be read or was changed.
    """
    try:
        found = json.loads(_read(path))
        certificate = Certificate(path, found["content"], found["measured"])
        if certificate.content["format"] != FORMAT or certificate.digest != found["digest"]:
            raise RecordError(f"{path}: was changed after it was written")
        own = found.pop("signature", None)
        return certificate, is_signed(_signed(found), own)
    except (ValueError, LookupError, TypeError) as error:
        raise RecordError(f"{path}: is not a certificate of evaluator improve") from error


def make_content(
    begin: Mapping[str, Any],
    events: Events,
    decision: Decision | None,
    batches: Mapping[str, str],
    price_unit: str,
) -> dict[str, Any]:
    """The content of a certificate. `begin` is the first entry of the log."""
    rounds = [values for kind, values in events if kind == "round"]
    base = next(values for kind, values in events if kind == "base")
    chosen = next((values for kind, values in events if kind == "finalist"), None)
    candidate = None
    known = {candidate["id"]: candidate for event in rounds for candidate in event["candidates"]}
    if chosen is not None:
        candidate = known[chosen["candidate"]]
    decided = None
    if decision is not None:
        decided = decision.to_dict()
    return {
        "format": FORMAT,
        **{name: begin[name] for name in begin if name not in ("id", "event", "rows")},
        "mean": base["mean"],
        **({"missing": base["missing"][BASE]} if "missing" in base else {}),
        "rounds": [{key: event[key] for key in event if key != "event"} for event in rounds],
        "budget": next((values["reason"] for kind, values in events if kind == "budget"), None),
        "candidate": candidate,
        "decision": decided,
        "price_unit": price_unit,
        "batches": dict(sorted(batches.items())),
        "events": digest([dict(values) for _, values in events]),
    }


def make_measured(folder: Path, spent: float, content: Mapping[str, Any]) -> dict[str, Any]:
    """Seconds per sealed row before and after, and what the search has cost."""
    found: dict[str, Any] = {"spent_usd": spent}
    sides = {"before": BASE}
    if content["candidate"] is not None:
        sides["after"] = content["candidate"]["id"]
    for side, name in sides.items():
        path = folder / BATCHES / f"{name}-sealed"
        if path.exists():
            durations = [result.duration_s for result in open_batch(path).results()]
            found[f"seconds_{side}"] = fsum(durations) / len(durations)
    return found


async def verify(path: Path) -> Verification:
    """Repeats the search of a certificate from the records in its folder, without a call.

    Raises: RecordError, if the records are missing, were changed, or give another certificate.
    """
    certificate, is_own = read_certificate(path)
    folder = path.parent
    entries, is_own_log = read_log(folder / LOG)
    if not entries or entries[0].get("event") != "begin":
        raise RecordError(f"{folder / LOG}: has no beginning")
    begin = entries[0]
    split = _split_of(begin, folder)
    recorder = Recorder(entries[1:], None)
    evidence = Recorded(
        folder,
        begin["template"],
        certificate.base_text(),
        recorder=recorder,
        measure=begin["measure"],
    )
    settings = Settings(**begin["settings"])
    try:
        decision = await Search(evidence, split, settings, recorder.record).run(begin["base"])
    except OutOfBudget as error:
        raise RecordError(f"{folder}: the search is not complete: {error}") from error
    again = make_content(
        begin,
        recorder.events,
        decision=decision,
        batches=evidence.batches,
        price_unit=evidence.price_unit,
    )
    again = json.loads(json.dumps(again))
    if again != certificate.content:
        different = ", ".join(
            name
            for name in {**again, **certificate.content}
            if again.get(name) != certificate.content.get(name)
        )
        raise RecordError(f"{path}: the records give another result: {different}")
    return Verification(certificate, is_own and is_own_log)


def rows_to_dict(split: Split) -> dict[str, list[list[str]]]:
    """The rows of each part for the log: id, cluster, digest."""
    return {
        part: [[row.id, str(row.cluster), row.digest] for row in rows]
        for part, rows in split.parts().items()
    }


def _split_of(begin: Mapping[str, Any], folder: Path) -> Split:
    """The split in the log. Raises: RecordError, if a row is in another part than its cluster's."""
    parts: dict[str, Sequence[Row]] = {}
    for part, rows in cast("Mapping[str, list[list[str]]]", begin["rows"]).items():
        parts[part] = [Row(Sample(id, {}), cluster, found) for id, cluster, found in rows]
        if any(part_of(row.cluster) != part for row in parts[part]):
            raise RecordError(f"{folder / LOG}: a row is not in the part of its cluster")
    split = Split(
        tuple(parts["train"]),
        tuple(parts["selection"]),
        tuple(parts["sealed"]),
        unused=begin["split"]["unused"],
    )
    if split.to_dict() != begin["split"]:
        raise RecordError(f"{folder / LOG}: the rows are not those of the split")
    return split


def _read(path: Path) -> bytes:
    try:
        return read_regular(path, _MAX_BYTES)
    except OSError as error:
        raise RecordError(f"{path}: cannot be read: {error.strerror}") from error


def _signed(found: Mapping[str, Any]) -> bytes:
    return json.dumps(
        ["certificate", {name: found[name] for name in ("digest", "content", "measured")}],
        sort_keys=True,
    ).encode()


_SHOWN_ROWS = 20
_WHY_CHARS = 200


def as_lines(certificate: Certificate, width: int) -> str:
    """The certificate for a terminal of `width` columns. Ends with a newline."""
    text = as_text(tables_of(certificate), width)
    diff = diff_of(certificate)
    return text if diff is None else f"{text}\n{visible(diff)}\n"


def as_page(certificate: Certificate) -> str:
    """The certificate as Markdown. Ends with a newline."""
    diff = diff_of(certificate)
    if diff is None:
        shown = []
    else:
        shown = ["", *diff_block(diff), ""]
    return as_markdown(tables_of(certificate)) + "\n".join(shown)


def diff_of(certificate: Certificate) -> str | None:
    """The changes of the last candidate's XML; None without one."""
    candidate = certificate.content["candidate"]
    if candidate is None:
        return None
    before = certificate.base_text().split("\n")
    after = certificate.candidate_text(candidate).split("\n")
    name = certificate.content["template"]
    return "\n".join(unified_diff(before, after, name, candidate["id"], lineterm="", n=2))


def tables_of(certificate: Certificate) -> list[Table]:
    content = certificate.content
    parts = content["split"]
    rows = ", ".join(f"{parts[part]['rows']:,} {part}" for part in ("train", "selection", "sealed"))
    decision = certificate.decision
    lines = [f"rows: {rows}", f"certificate: {certificate.digest}"]
    if content["budget"]:
        lines.append(f"the search ended early: {content['budget']}")
    if decision is None:
        lines.insert(0, "no candidate was better on the selection rows, so none was decided on")
        return [Table(f"{content['template']}: nothing found", lines=lines), _tree(certificate)]
    if decision.accepted:
        title = "accepted"
    else:
        title = "not accepted"
    return [
        Table(
            f"{content['template']}: {content['candidate']['id']} {title}, {decision.reason}",
            ("on the sealed rows", "before", "after", "difference"),
            list(_rows(certificate, decision)),
            [*_statements(decision), *lines],
        ),
        Table(
            f"flipped rows: {len(decision.gained):,} gained, {len(decision.lost):,} lost",
            lines=[
                f"{what}: {_ids(ids)}"
                for what, ids in (("gained", decision.gained), ("lost", decision.lost))
                if ids
            ],
        ),
        _tree(certificate),
    ]


def _statements(decision: Decision) -> Iterator[str]:
    confidence = f"{100 * decision.confidence:.3g} % interval"
    if decision.p is None:
        p = "–"
    else:
        p = f"{decision.p:.2g}"
    yield (
        f"gain {_points(decision.gain)}, {confidence} {_points(decision.low)} to "
        f"{_points(decision.high)}, p = {p} ({decision.method}); {decision.n:,} of "
        f"{decision.of:,} rows"
    )
    if decision.n < decision.of:
        yield (
            f"{decision.of - decision.n:,} rows have no value on one side; at worst the interval "
            f"begins at {_points(decision.worst_low)}"
        )
    yield (
        f"look {decision.look} at these rows: a gain is significant if p is at most "
        f"{decision.level:.3g}"
    )
    if decision.claim == "cheaper":
        yield f"the claim: cheaper, and no loss of more than {_points(decision.margin)}"


def _rows(certificate: Certificate, decision: Decision) -> Iterator[Sequence[str]]:
    yield (
        certificate.content["measure"] or "passed",
        percent(decision.before),
        percent(decision.after),
        _points(decision.gain),
    )
    prices = decision.price_before, decision.price_after
    unit = certificate.content["price_unit"]
    yield (f"{unit} per row", *(f"{price:.4g}" for price in prices), _change(*prices))
    seconds: list[float] = [certificate.measured[f"seconds_{side}"] for side in ("before", "after")]
    yield ("seconds per row", *(f"{value:.3g}" for value in seconds), _change(*seconds))


def _tree(certificate: Certificate) -> Table:
    """The candidates, each after its parent."""
    candidates = certificate.candidates()
    children: dict[str, list[Mapping[str, Any]]] = {}
    for candidate in candidates[1:]:
        children.setdefault(candidate["parents"][0], []).append(candidate)
    rows: list[list[str]] = []
    count = certificate.content["split"]["selection"]["rows"]
    waiting = [(candidates[0], 0)]
    while waiting:
        candidate, depth = waiting.pop()
        dropped = candidate.get("dropped")
        state = percent(candidate["mean"])
        if dropped:
            state = f"left after {dropped['rows']} rows"
        if candidate["missing"]:
            state += f" ({candidate['missing']:,} of {count:,} without a value count as 0)"
        name = "· " * depth + candidate["id"]
        why = candidate["why"] or ("the template" if not depth else "")
        rows.append([name, state, " ".join(why.split())[:_WHY_CHARS]])
        waiting += [(child, depth + 1) for child in reversed(children.get(candidate["id"], []))]
    return Table("candidates", ("", "on the selection rows", "change"), rows)


def _points(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:+.1f} points"


def _change(before: float, after: float) -> str:
    return f"{100 * (after / before - 1):+.0f} %" if before else "–"


def _ids(ids: Sequence[str]) -> str:
    more = len(ids) - _SHOWN_ROWS
    return ", ".join(ids[:_SHOWN_ROWS]) + (f" and {more:,} more" if more > 0 else "")
