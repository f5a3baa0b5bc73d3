"""Searches for better templates: their certificates with the tree of candidates."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from evaluator.errors import RecordError
from evaluator.improve.certificate import CERTIFICATE, read_certificate
from evaluator.improve.evidence import BATCHES
from evaluator.improve.search import BASE
from evaluator.improve.show import diff_of, tables_of
from evaluator.viewer.json_form import Page
from evaluator.viewer.server.state import State


def improvement_page(state: State, query: Mapping[str, str]) -> Page:
    """The certificate of a search, as `evaluator improve` prints it; nothing is recomputed."""
    folder = state.project.search(query["folder"])
    name = state.project.name_of(folder)
    path = folder / CERTIFICATE
    command = f"evaluator improve --verify {shlex.quote(str(path))}"
    values: dict[str, Any] = {"name": name, "command": command}
    if not path.exists():
        return Page("improvement", name, {**values, "tables": None}, live_ms=2_000)
    certificate, is_own = read_certificate(path)
    candidate = certificate.content["candidate"]
    sides = [f"{each}-sealed" for each in (BASE, candidate and candidate["id"]) if each]
    batches = [folder / BATCHES / side for side in sides]
    ids = [state.project.id_of(batch) for batch in batches if batch.is_dir()]
    try:
        diff = diff_of(certificate)
    except RecordError as error:
        diff = str(error)
    return Page(
        "improvement",
        name,
        {
            **values,
            "tables": [
                {"title": each.title, "head": each.head, "rows": each.rows, "lines": each.lines}
                for each in tables_of(certificate)
            ],
            "diff": diff,
            "is_own": is_own,
            "compare": f"/compare?a={ids[0]}&b={ids[1]}" if len(ids) == 2 else None,
        },
    )
