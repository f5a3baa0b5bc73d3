"""Markdown has the summary and the failed results, and shows texts as plain text."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from evaluator.batch.export import export
from evaluator.batch.export.reports import MAX_SHOWN, code
from tests.batch.export.results import EACH, HOSTILE, hostile, result


def test_it_counts_and_lists_what_failed(tmp_path: Path) -> None:
    export(EACH, {"name": "metals"}, "markdown", tmp_path / "out.md", total=7)
    text = (tmp_path / "out.md").read_text(encoding="utf-8")
    assert text.startswith("# `metals`\n")
    assert "5 of 7 results" in text and "1 passed, 1 failed, 2 error, 1 unscored" in text
    errors, failed = text.partition("## Results with an error\n")[2].split("## Failed results\n")
    assert (
        "| `iron` | 1 | `answer` | `small` | `lead` |  | `provider_failure: 503 from the model after 4"
        in errors
    )
    assert "`includes: ZeroDivisionError: division by zero`" in errors
    assert (
        "| `tin` | 1 | `answer` | `small` | `lead` | `It is zinc.` | `includes: no 'tin' in it` |"
        in failed
    )
    assert "gold" not in errors + failed


def test_the_number_of_omitted_results_is_stated(tmp_path: Path) -> None:
    failed = (result(str(n), scores=EACH[1].scores) for n in range(MAX_SHOWN + 5))
    export(failed, {}, "markdown", tmp_path / "out.md")
    text = (tmp_path / "out.md").read_text(encoding="utf-8")
    assert f"## Failed results (the first {MAX_SHOWN} of {MAX_SHOWN + 5})" in text
    assert text.count("| `answer` | `small` |") == MAX_SHOWN


def test_hostile_texts_do_not_break_a_row(tmp_path: Path) -> None:
    export(hostile(), {"name": HOSTILE[0]}, "markdown", tmp_path / "out.md")
    text = (tmp_path / "out.md").read_text(encoding="utf-8")
    rows = text.partition("## Failed results")[2].strip().splitlines()[2:]
    assert len(rows) == len(HOSTILE)
    for row in rows:
        assert len(re.split(r"(?<!\\)\|", row)) == 9
        outside = re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", "", row)
        assert not re.search(r"[<>@\[\]*_#]|javascript", outside)


@pytest.mark.parametrize(
    ("text", "span"),
    [
        ("a|b", "`a\\|b`"),
        ("`", "`` ` ``"),
        ("a ``b`` c", "```a ``b`` c```"),
        ("a\n\n b\x1b", "`a b`"),
        (" ", ""),
    ],
)
def test_a_text_is_one_code_span(text: str, span: str) -> None:
    assert code(text) == span
