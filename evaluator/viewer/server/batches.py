"""The list of batches, one batch with its running session, and one of its samples.

The running session of a batch as its process writes it: calls by model, what is held and why,
and the budget.

The file may be somebody else's: every value is checked, and what does not fit is left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from evaluator import clock
from evaluator.batch import Batch
from evaluator.batch.export.output_path import About
from evaluator.batch.folder import MANIFEST, RESULTS, BatchFolder
from evaluator.batch.reading import open_batch
from evaluator.batch.summary import Table
from evaluator.errors import EvaluatorError
from evaluator.viewer.histograms import Distributions
from evaluator.viewer.samples import encoded, transcripts
from evaluator.viewer.server.batch_index import SORTS, VERDICTS, BatchIndex, ResultQuery
from evaluator.viewer.server.project import NoSuchPage
from evaluator.viewer.server.rendering import Page, items, mapping
from evaluator.viewer.server.state import COMPUTING_MS, LATER, State

FRESH_S = 15.0
MAX_ENDPOINTS = 100


@dataclass(frozen=True, slots=True)
class EndpointRow:
    """Calls of one model at one endpoint. `why` is what new calls wait for; empty if they do
    not.
    """

    name: str
    host: str
    in_flight: int
    limit: int | None
    waiting: int
    why: str


@dataclass(frozen=True, slots=True)
class LiveSession:
    """`stop` is why the session ends soon; empty if it does not. `budget` has a text for each limit
    of the batch.
    """

    endpoints: tuple[EndpointRow, ...]
    stop: str
    budget: tuple[str, ...]


def live_session(batch: Batch) -> LiveSession | None:
    """The session that runs now; None if there is none, or it has said nothing for some seconds."""
    found = mapping(BatchFolder.reader(batch.folder).progress())
    at = _number(found.get("at"))
    if at is None or not 0 <= clock.wall() - at < FRESH_S:
        return None
    rows = [_endpoint(mapping(each)) for each in items(found.get("endpoints"))[:MAX_ENDPOINTS]]
    return LiveSession(tuple(rows), str(found.get("stop") or ""), budget=tuple(_budget(found)))


def _endpoint(data: Mapping[str, Any]) -> EndpointRow:
    in_flight = _whole(data.get("in_flight")) or 0
    waiting = _whole(data.get("waiting")) or 0
    limit = _whole(data.get("limit"))
    held_s = _number(data.get("held_s")) or 0.0
    if held_s > 0:
        why = f"the provider asked for a pause: {math.ceil(held_s):,} s left"
    elif not waiting:
        why = ""
    elif limit is not None and in_flight >= limit:
        why = "as many calls as permitted are in flight"
    else:
        why = "the rate limit"
    return EndpointRow(
        str(data.get("name") or ""),
        str(data.get("host") or ""),
        in_flight=in_flight,
        limit=limit,
        waiting=waiting,
        why=why,
    )


def _budget(data: Mapping[str, Any]) -> list[str]:
    limits = mapping(data.get("limits"))
    usage = mapping(data.get("usage"))
    tokens = [_number(usage.get(name)) for name in ("input_tokens", "output_tokens")]
    used = {
        "max_cost": (_number(usage.get("cost_usd")), "${:,.4f}"),
        "max_tokens": (
            None if None in tokens else sum(each or 0 for each in tokens),
            "{:,.0f} tokens",
        ),
        "max_time": (_number(data.get("elapsed_s")), "{:,.0f} s"),
    }
    lines: list[str] = []
    for name, (value, form) in used.items():
        limit = _number(limits.get(name))
        if limit is not None:
            lines.append(
                f"{'an unknown part' if value is None else form.format(value)} of "
                f"{form.format(limit)}"
            )
    rates = {"requests_per_minute": "requests", "tokens_per_minute": "tokens"}
    for name, what in rates.items():
        limit = _number(limits.get(name))
        if limit is not None:
            lines.append(f"at most {limit:,.0f} {what} per minute to each model")
    return lines


def _number(value: Any) -> float | None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if is_number and abs(value) < 1e15:
        return float(value)
    return None


def _whole(value: Any) -> int | None:
    found = _number(value)
    if found is None or not math.isfinite(found):
        return None
    return int(found)


SAMPLES_PER_PAGE = 50
MAX_BATCHES = 500
LIVE_MS = 2_000
SLOW_LIVE_MS = 15_000
_SHARE = 100
_QUIET_S = 120.0


@dataclass(frozen=True, slots=True)
class BatchEntry:
    """A line in the list of batches. `problem` is why it cannot be read."""

    id: str
    name: str
    batch: Batch | None
    problem: str = ""

    @property
    def created(self) -> str:
        if self.batch is None:
            return ""
        return str(self.batch.manifest.get("created", ""))

    @property
    def unfinished(self) -> str:
        if self.batch is None:
            return ""
        return About(self.batch.manifest).unfinished


def entries(state: State) -> list[BatchEntry]:
    """The batches, the newest first; those that cannot be read at the end."""
    found: list[BatchEntry] = []
    for key, path in list(state.project.folders().batches.items())[:MAX_BATCHES]:
        name = state.project.name_of(path)
        try:
            found.append(BatchEntry(key, name, batch=open_batch(path)))
        except (EvaluatorError, OSError) as error:
            found.append(BatchEntry(key, name, batch=None, problem=str(error)))
    return sorted(found, key=lambda entry: entry.created, reverse=True)


def batches_page(state: State, query: Mapping[str, str]) -> Page:
    return Page(
        "batches.html", {"title": "Batches", "entries": entries(state), "most": MAX_BATCHES}
    )


def opened(
    state: State, folder_id: str, *, wait_s: float = math.inf, with_texts: bool = False
) -> tuple[Batch, BatchIndex]:
    """A batch and its index, as they are now, or as far as they can be read in `wait_s`.

    Raises: NoSuchPage; RecordError, if it cannot be read.
    """
    path = state.project.batch(folder_id)
    batch = open_batch(path)
    index = state.index(path)
    index.update(
        batch.cells, batch.manifest.get("left_out", ()), wait_s=wait_s, with_texts=with_texts
    )
    return batch, index


def batch_page(state: State, query: Mapping[str, str]) -> Page:
    """Progress, numbers and a page of samples."""
    begun_s = clock.cpu()
    batch, index = opened(
        state, query["folder"], wait_s=state.wait_s, with_texts=bool(query.get("text", "").strip())
    )
    about = About(batch.manifest)
    counts = index.counts()
    if batch.totals is None:
        total = None
    else:
        total = sum(batch.totals.values())
    version = (index.end, (batch.folder / MANIFEST).stat().st_mtime_ns)
    wanted, chosen = _selection(batch, query)
    unread = index.unread or (index.unsearched if wanted.text else 0.0)
    # The numbers read the whole file too, so they wait until the samples are there.
    if index.unread:
        numbers = LATER
    else:
        numbers = state.summaries.get(batch.folder, version, lambda: _numbers(batch, index))
    is_running = about.text("state") == "running"
    rows = index.select(wanted)
    page, pages = page_of(len(rows), SAMPLES_PER_PAGE, query=query)
    shown = rows[(page - 1) * SAMPLES_PER_PAGE : page * SAMPLES_PER_PAGE]
    results = sum(counts.values())
    if is_running and not index.unread:
        rate = index.rate()
    else:
        rate = None
    return Page(
        "batch.html",
        {
            "title": batch.name,
            "folder": query["folder"],
            "batch": batch,
            "name": state.project.name_of(batch.folder),
            "unfinished": about.unfinished,
            "counts": counts,
            "verdicts": VERDICTS,
            "results": results,
            "total": total,
            "cost": index.cost(),
            "rate": rate,
            "left_s": (total - results) / rate if rate and total is not None else None,
            "numbers": numbers,
            "problem": index.problem,
            "chosen": chosen,
            "sorts": SORTS,
            "count": len(rows),
            "samples": [(index.key(row), index.result(row)) for row in shown],
            "page": page,
            "pages": pages,
            "live_ms": _live_ms(
                batch.folder,
                is_running=is_running,
                is_computing=unread > 0 or not numbers.is_current,
                cost_ms=1_000 * (clock.cpu() - begun_s),
            ),
            "unread": unread,
            "session": live_session(batch) if is_running else None,
        },
    )


@dataclass(frozen=True, slots=True)
class Numbers:
    """The summary of a batch as tables, and as the JSON for its plots, whose version is
    `version`.
    """

    tables: Sequence[Table]
    data: bytes
    version: str


def numbers_data(state: State, query: Mapping[str, str]) -> bytes:
    """The JSON that the plots are drawn from, as it was last computed. Raises: NoSuchPage, if it
    was not.
    """
    found = state.summaries.last(state.project.batch(query["folder"]))
    if not isinstance(found, Numbers):
        raise NoSuchPage("The numbers of this batch are not computed yet; open the batch.")
    return found.data


def _numbers(batch: Batch, index: BatchIndex) -> Numbers:
    summary = batch.summarise()
    distributions = Distributions()
    for group, verdict, values in index.measures():
        distributions.add_values((0, *group), verdict, values)
    data = encoded(
        {
            "batches": [{"name": batch.name, "summary": summary.to_dict()}],
            "distributions": distributions.to_list(),
        }
    )
    return Numbers(list(summary.tables()), data, version=blake2b(data, digest_size=8).hexdigest())


def _live_ms(folder: Path, *, is_running: bool, is_computing: bool, cost_ms: float) -> int:
    """How often the page asks again: so that it takes at most a 100th of a processor's time.

    A killed batch looks as if it was running: without news the page asks seldom.
    """
    if is_computing and not is_running:
        return COMPUTING_MS
    if not is_running:
        return 0
    try:
        quiet_s = clock.wall() - (folder / RESULTS).stat().st_mtime
    except OSError:
        return SLOW_LIVE_MS
    if quiet_s >= _QUIET_S:
        return SLOW_LIVE_MS
    return min(max(LIVE_MS, round(_SHARE * cost_ms)), SLOW_LIVE_MS)


def _selection(batch: Batch, query: Mapping[str, str]) -> tuple[ResultQuery, dict[str, str]]:
    """The selection, and the conditions for the links of the page. Unknown values are no
    condition.
    """
    verdict = query.get("verdict", "")
    sort = query.get("sort", "")
    cell = query.get("cell", "")
    chosen = {
        "verdict": verdict if verdict in VERDICTS else "",
        "cell": cell if cell in map(str, range(len(batch.cells))) else "",
        "text": query.get("text", "").strip(),
        "sort": sort if sort in SORTS else "",
        "order": "down" if query.get("order") == "down" else "",
    }
    if chosen["cell"]:
        group = batch.cells[int(chosen["cell"])]
    else:
        group = None
    wanted = ResultQuery(
        chosen["verdict"],
        group,
        text=chosen["text"],
        sort=chosen["sort"] or "written",
        is_descending=bool(chosen["order"]),
    )
    return wanted, chosen


def page_of(count: int, per_page: int, query: Mapping[str, str]) -> tuple[int, int]:
    """The number of the page, and of pages."""
    pages = max(1, -(-count // per_page))
    text = query.get("page", "")
    if text.isascii() and text.isdigit() and len(text) < 10:
        number = int(text)
    else:
        number = 1
    return min(max(number, 1), pages), pages


def sample_page(state: State, query: Mapping[str, str]) -> Page:
    """One result with its scores and transcripts; the samples before and after it in the order of
    the list.
    """
    batch, index = opened(state, query["folder"])
    row = index.row(query["key"])
    if row is None:
        raise NoSuchPage(f"{batch.folder}: there is no such result now; open the batch")
    result = index.result(row)
    wanted, chosen = _selection(batch, query)
    order = index.select(wanted)
    place = order.index(row) if row in order else None
    before = None if not place else index.key(order[place - 1])
    if place is None or place + 1 == len(order):
        after = None
    else:
        after = index.key(order[place + 1])
    return Page(
        "sample.html",
        {
            "title": result.title or "(empty id)",
            "folder": query["folder"],
            "batch": batch,
            "result": result,
            "chosen": chosen,
            "place": place,
            "count": len(order),
            "before": before,
            "after": after,
            "epochs": batch.manifest.get("epochs"),
            "list_page": 1 if place is None else place // SAMPLES_PER_PAGE + 1,
            "transcripts": transcripts(batch.folder, result),
        },
    )
