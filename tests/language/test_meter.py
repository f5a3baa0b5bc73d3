"""The bounds of one rendering hold exactly: what reaches a bound is allowed, what passes it is not."""

from __future__ import annotations

import pytest

from evaluator import Span
from evaluator.errors import SandboxError
from evaluator.language.locating import LocatedError
from evaluator.language.sandbox import render_sync
from evaluator.language.scopes import Scope
from evaluator.language.values import BOUNDS, MAX_ITEMS, PendingCall, Rendering
from evaluator.nodes import Text


def test_a_list_may_have_as_many_items_as_the_bound_and_no_more() -> None:
    Rendering(Scope()).charge_items(MAX_ITEMS)
    with pytest.raises(LocatedError, match="makes a list of more than 1,000,000 items"):
        Rendering(Scope()).charge_items(MAX_ITEMS + 1)


def test_a_text_may_call_as_many_templates_as_the_bound_and_no_more() -> None:
    def call(before: int) -> None:
        rendering = Rendering(Scope(), results=["x"] * before)
        for _ in range(before + 1):
            rendering.call("f", (), {}, offset=0)

    with pytest.raises(PendingCall):
        call(BOUNDS.calls - 1)
    with pytest.raises(LocatedError, match=f"calls more than {BOUNDS.calls} templates"):
        call(BOUNDS.calls)


def test_a_result_may_be_as_long_as_the_bound_and_no_longer() -> None:
    longest = Scope({"value": "x" * BOUNDS.output_chars})
    assert len(render_sync(Text("{{ value }}", Span()), longest)) == BOUNDS.output_chars
    for text in ("{{ value }}!", "!{{ value }}"):
        with pytest.raises(SandboxError, match="the result is longer than"):
            render_sync(Text(text, Span()), longest)
