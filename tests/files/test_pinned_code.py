"""What the code of a project was when a program named it: what a person writes and names at once,
or edits between two runs, is used, and each source is parsed once.
"""

from __future__ import annotations

import ast
import sys

import pytest

from evaluator import Evaluator, HandlerConfig, SimulatedBackend, TemplateLibrary
from evaluator.batch import run_batch_sync
from evaluator.files import project_code

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
