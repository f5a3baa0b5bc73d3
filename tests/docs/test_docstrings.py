"""Every example in a docstring runs, in an empty folder, and gives what it shows. None is skipped."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "evaluator"


def modules_with_examples() -> list[str]:
    found: list[str] = []
    for path in sorted(PACKAGE.rglob("*.py")):
        if ">>> " in path.read_text(encoding="utf-8"):
            parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
            found.append(".".join(part for part in parts if part != "__init__"))
    return found


@pytest.mark.parametrize("name", modules_with_examples())
def test_the_examples_of_a_module_run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(name)
    source = Path(module.__file__ or "").read_text(encoding="utf-8")
    assert "doctest: +SKIP" not in source
    failed, tried = doctest.testmod(module)
    assert failed == 0
    assert tried == source.count(">>> ")


def test_the_names_that_a_user_meets_first_have_examples() -> None:
    first = {
        "evaluator",
        "evaluator.batch.run",
        "evaluator.interpreter.evaluator",
        "evaluator.library.loader",
    }
    assert first | {"evaluator.output.parsing", "evaluator.tools.decorator"} <= set(
        modules_with_examples()
    )
