"""Importing a library changes no variable of the environment, and no `.env` file is read."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from evaluator import MissingExtra
from evaluator.files.project_code import import_extra, import_library

LIBRARIES = ("litellm", "datasets", "huggingface_hub", "ray", "mcp", "tokenizers", "pyarrow")
PACKAGE = Path(__file__).parents[2] / "evaluator"


def test_what_a_library_changes_while_it_is_imported_is_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "changes_environment.py").write_text(
        "import os\n"
        "os.environ['NEW'] = os.environ['REPLACED'] = 'x'\n"
        "del os.environ['REMOVED']\n"
        "SEEN = {name: os.environ.get(name) for name in ('LITELLM_MODE', 'SETTING', 'EXPORTED')}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("REPLACED", "REMOVED", "EXPORTED"):
        monkeypatch.setenv(name, "1")
    before = dict(os.environ)
    module = import_library("changes_environment", {"SETTING": "2"})
    assert dict(os.environ) == before
    assert module.SEEN == {"LITELLM_MODE": "PRODUCTION", "SETTING": "2", "EXPORTED": "1"}
    assert import_library("changes_environment") is module


def test_a_missing_library_is_an_error_that_names_the_extra() -> None:
    with pytest.raises(MissingExtra, match=r"no-such-library is not installed.*evaluator\[hf\]"):
        import_extra("no_such_library", "hf")


def test_the_real_libraries_leave_the_environment_as_it_was(tmp_path: Path) -> None:
    names = [name for name in LIBRARIES if find_spec(name) is not None]
    (tmp_path / ".env").write_text("HTTPS_PROXY=http://127.0.0.1:9\nHF_ENDPOINT=http://x\n")
    program = (
        "import os, sys\n"
        "from evaluator.files.project_code import import_library\n"
        "before = dict(os.environ)\n"
        f"for name in {names}: import_library(name)\n"
        "print({n for n in before.keys() | os.environ if before.get(n) != os.environ.get(n)})\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(libraries_in(tmp_path))},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.stdout == "set()\n", done.stderr


def libraries_in(project: Path) -> Path:
    """The installed libraries, at the place where a virtual environment in `project` has them."""
    spec = find_spec("litellm")
    assert spec is not None and spec.origin is not None
    lib = project / ".venv/lib"
    lib.mkdir(parents=True)
    (lib / "site-packages").symlink_to(Path(spec.origin).parents[1])
    return lib / "site-packages"


def test_these_libraries_are_imported_in_no_other_way() -> None:
    # The modules of mcp are imported by `_load_sdk` first.
    heavy = {*LIBRARIES} - {"mcp"}
    others: list[str] = []
    for path in PACKAGE.rglob("*.py"):
        source = path.read_text(encoding="utf-8")
        if not any(name in source for name in heavy):
            continue
        for node in _run_at_import_or_later(ast.parse(source)):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
                names = [ast.literal_eval(a) for a in node.args[:1] if isinstance(a, ast.Constant)]
            else:
                continue
            others += [f"{path}: {n}" for n in names if n.partition(".")[0] in heavy]
    assert not others


def _run_at_import_or_later(node: ast.AST) -> list[ast.AST]:
    """All nodes except those below `if TYPE_CHECKING`."""
    found = [node]
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"):
            found += _run_at_import_or_later(child)
    return found
