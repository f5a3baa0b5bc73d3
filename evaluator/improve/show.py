"""Shows a certificate: the decision with its interval, prices, flipped rows, the candidates as a
tree, and the diff of the template.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from difflib import unified_diff
from typing import Any

from evaluator.authoring.changes import code_block
from evaluator.batch.summary.tables import Table, as_markdown, as_text, percent
from evaluator.errors.messages import visible
from evaluator.improve.certificate import Certificate
from evaluator.improve.decide import Decision

_SHOWN_ROWS = 20
_WHY_CHARS = 200


def as_lines(certificate: Certificate, width: int) -> str:
    """The certificate for a terminal of `width` columns. Ends with a newline."""
    diff = diff_of(certificate)
    if diff is None:
        shown = ""
    else:
        shown = f"\n{visible(diff)}\n"
    return as_text(tables_of(certificate), width) + shown


def as_page(certificate: Certificate) -> str:
    """The certificate as Markdown. Ends with a newline."""
    diff = diff_of(certificate)
    if diff is None:
        shown = ""
    else:
        shown = "\n" + "\n".join(code_block(diff, "diff")) + "\n"
    return as_markdown(tables_of(certificate)) + shown


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
    tables = [
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
    return tables


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
        if dropped:
            state = f"left after {dropped['rows']} rows"
        else:
            state = percent(candidate["mean"])
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
