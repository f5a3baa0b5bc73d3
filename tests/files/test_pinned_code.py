"""What the code of a project was when a program named it: what a person writes and names at once,
or edits between two runs, is used, and each source is parsed once.
"""

from __future__ import annotations

import ast
import sys
import time

import pytest

from evaluator import (
    ConfigurationError,
    Evaluator,
    HandlerConfig,
    SimulatedBackend,
    TemplateLibrary,
    clock,
)
from evaluator.batch import run_batch_sync
from evaluator.files import project_code
from evaluator.files.pinned_code import PinnedCode

OFFLINE = HandlerConfig(name="offline", backend="simulated")
TASK = '<task name="t" type="atomic"><description>Say yes</description>{}</task>'
TYPED = TASK.format('<output_format type="json" schema="models_here:M"/>')
SCORER = (
    "import os, sys\nsys.path.insert(0, os.path.dirname(__file__))\n"
    "def same(output):\n    import {0}\n    return {0}.VALUE\n"
)


@pytest.fixture(autouse=True)
def project(tmp_path, monkeypatch):
    """The current folder, whose modules are removed from this process."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EVALUATOR_CONFIG_DIR", str(tmp_path / "user"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def evaluator_of(xml: str, answer: str = "yes", trust: bool = False) -> Evaluator:
    backend = SimulatedBackend(script=lambda request: answer)
    library = TemplateLibrary.load(shipped=False)
    library.add(xml)
    return Evaluator(
        library,
        OFFLINE,
        backend=backend,
        tasks_dir=None,
        trust=trust,
    )


def test_scorers_are_used_as_they_were_when_each_was_named(project):
    with evaluator_of(TASK.format("")) as evaluator:
        for name in ("first", "second"):
            (project / f"{name}_helper.py").write_text("VALUE = True\n")
            (project / f"{name}.py").write_text(SCORER.format(f"{name}_helper"))
            result = run_batch_sync(
                "t", [{}], evaluator=evaluator, scorers=[f"{name}.py:same"], output=name
            )
            assert "1 passed" in repr(result.summary), (
                project / name / "results.jsonl"
            ).read_text()


def test_a_source_is_parsed_once_for_all_evaluators(project, monkeypatch):
    (project / "models_here.py").write_text("import part_here\nclass M(dict): pass\n")
    (project / "part_here.py").write_text("def load():\n    import models_here\n")
    parsed: list[object] = []
    parse = ast.parse
    monkeypatch.setattr(project_code, "_statements", {})
    monkeypatch.setattr(
        project_code.ast, "parse", lambda *args, **more: parsed.append(args) or parse(*args, **more)
    )
    for _ in range(3):
        evaluator_of(TYPED).close()
    assert len(parsed) == 2


@pytest.mark.parametrize("engine", ["local", "processes"])
def test_trust_holds_in_the_processes_of_a_batch(engine, project):
    (project / "models_here.py").write_text(
        "import pydantic\nclass M(pydantic.BaseModel):\n    answer: str\n"
    )
    with evaluator_of(TYPED, '{"answer": "yes"}', trust=True) as evaluator:
        result = run_batch_sync("t", [{}], evaluator=evaluator, engine=engine, output="b")
    assert result.is_complete
    (sample,) = result.results()
    assert sample.failure is None and sample.parsed == {"answer": "yes"}


def test_a_module_that_is_too_large_fails_what_imports_it_only(project):
    (project / "big_here.py").write_text("#" * 4_000_001)
    (project / "models_here.py").write_text("import big_here\nclass M(dict): pass\n")
    (project / "scorer_here.py").write_text(
        "import os, sys\nsys.path.insert(0, os.path.dirname(__file__))\nimport big_here\n"
        "def same(output):\n    return True\n"
    )
    calls: list[object] = []
    with evaluator_of(TYPED, trust=True) as evaluator:
        assert "Say yes" in str(evaluator.render("t"))
        outcome = evaluator.evaluate_sync("t", on_event=calls.append)
    assert "more than 4,000,000 bytes" in str(outcome) and calls == []
    with evaluator_of(TASK.format("")) as evaluator:
        result = run_batch_sync(
            "t", [{}], evaluator=evaluator, scorers=["scorer_here.py:same"], output="b"
        )
    assert "1 passed" in repr(result.summary)


def test_a_file_that_was_changed_in_the_future_is_refused_with_what_to_do(project, monkeypatch):
    (project / "plugin_here.py").write_text("VALUE = True\n")
    monkeypatch.setattr(clock, "wall", lambda: time.time() - 3600)
    code = PinnedCode.of([], [str(project)])
    with pytest.raises(ConfigurationError, match=r"a clock is wrong.*touch the file"):
        code.check(str(project / "plugin_here.py"), b"")
