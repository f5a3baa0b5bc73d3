"""What holds for the package as a whole: its public names, the direction of its imports, what import costs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import evaluator

ROOT = Path(__file__).parent.parent
HEAVY = ("litellm", "aiohttp", "xmlschema", "jsonschema", "pydantic", "jinja2", "lxml", "asyncio", "click")


@pytest.mark.parametrize("name", evaluator.__all__)
def test_each_public_name_is_there(name):
    assert getattr(evaluator, name) is not None


def test_the_public_names_are_exactly_the_ones_that_type_checkers_see():
    lines = (ROOT / "evaluator" / "__init__.py").read_text(encoding="utf-8").splitlines()
    typed = {line.rsplit(" as ", 1)[1] for line in lines if line.startswith("    from ") and " as " in line}
    assert typed | {"__version__"} == set(evaluator.__all__)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'Evaluater'"):
        _ = evaluator.Evaluater


def test_importing_the_package_loads_nothing_heavy():
    code = f"import sys, evaluator; print([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_simulated_run_loads_no_provider_library():
    code = (
        "import sys; from evaluator import Evaluator; e = Evaluator(handler='offline', tasks_dir=None);"
        "r = e.evaluate_sync('summarise', {'document': 'x'}).unwrap();"
        "print([m for m in ('litellm', 'aiohttp', 'xmlschema', 'pydantic') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


def test_imports_run_one_way():
    linter = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([linter, "--no-cache"], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout
