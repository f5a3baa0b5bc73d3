"""Attempts to run Python code of a project that the user has not read, or that has changed since.

A permission is for the content of the code too: the file that is named, and what it imports of the project. Each
attempt has a control: what was allowed runs. Code that runs leaves a file, MARK.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import py_compile
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from evaluator import (
    ConfigurationError,
    Evaluator,
    GlobalIndex,
    HandlerConfig,
    SimulatedBackend,
    TaskError,
    TemplateLibrary,
    ToolGrant,
    clock,
    tool,
)
from evaluator.batch import definition as definition_module
from evaluator.batch import run_batch_sync
from evaluator.batch.folder import BatchFolder
from evaluator.batch.permissions import read_with_claims
from evaluator.batch.scorers import function_scorer
from evaluator.cli import main
from evaluator.cli.trust import code_of_schemas
from evaluator.files import project_code
from evaluator.files.project_code import CodeGuard, code_files, import_place
from evaluator.files.trust import allow
from evaluator.models.backend import ModelRequest

EVIL = "import pathlib\npathlib.Path('MARK').touch()\n"
SAME = "def same(output, target):\n    return True\n"
TEMPLATE = '<task name="t" type="atomic"><description>Say yes</description><instructions>Say yes</instructions></task>'

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A project as the current folder, whose batch is scored by `score.py`, and a user who has allowed nothing.

    A command guards its process; the guards and modules of the test are removed from this one."""
    folder = tmp_path / "project"
    (folder / "templates").mkdir(parents=True)
    (folder / "templates/t.xml").write_text(TEMPLATE)
    (folder / "rows.jsonl").write_text('{"id": "a"}\n')
    (folder / "score.py").write_text(SAME)
    write_definition(folder)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("EVALUATOR_CONFIG_DIR", str(tmp_path / "user"))
    monkeypatch.setattr(project_code, "_for_process", [])
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield folder
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.fixture
def evaluator(capfd: pytest.CaptureFixture[str]) -> Command:
    """`evaluator(*arguments)`: exit code, standard output and error of a command, without a terminal."""

    def run(*arguments: object) -> tuple[int, str, str]:
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(each) for each in arguments])
        out, err = capfd.readouterr()
        return int(ended.value.code or 0), out, err

    return run


def in_process(*arguments: str, **environment: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "evaluator", *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=200,
    )
    return done.returncode, done.stderr


def write_definition(folder: Path, scorers: str = '["score.py:same"]') -> None:
    (folder / "evaluator.toml").write_text(
        f'template = "t"\nrows = "rows.jsonl"\nhandlers = ["offline"]\nscorers = {scorers}\n'
    )


def files_of(place: str, folder: Path) -> list[str]:
    return sorted(file.file for file in code_files(place, folder))


# What the scorer imports, and the file that is changed after the permission.
IMPORTS = {
    "score.py": ("", "score.py"),
    "a module beside it": (
        "import os, sys\nsys.path.insert(0, os.path.dirname(__file__))\nimport helper\n",
        "helper.py",
    ),
    "inside a function": (
        "import os, sys\nsys.path.insert(0, os.path.dirname(__file__))\n"
        "def later():\n    from pkg import part\n",
        "pkg/part.py",
    ),
    "a package on the way": (
        "import os, sys\nsys.path.insert(0, os.path.dirname(__file__))\nimport pkg.part\n",
        "pkg/__init__.py",
    ),
    "relative": (
        "import os, sys\nsys.path.insert(0, os.path.dirname(__file__))\nfrom pkg.user import use\n",
        "pkg/part.py",
    ),
}


@pytest.mark.parametrize("case", IMPORTS)
def test_a_permission_is_for_the_content_of_the_code(
    case: str, project: Path, evaluator: Command
) -> None:
    imports, changed = IMPORTS[case]
    (project / "pkg").mkdir()
    (project / "pkg/user.py").write_text("from .part import VALUE as use\n")
    for name in ("helper.py", "pkg/__init__.py", "pkg/part.py"):
        (project / name).write_text("VALUE = 1\n")
    (project / "score.py").write_text(imports + SAME)
    code, _, err = evaluator("batch")
    assert code == 3 and "the code score.py:same" in err
    assert evaluator("trust")[0] == 0
    code, _, err = evaluator("batch", "--output", "one")
    assert code == 0, err
    # A script of a task rewrites the code.
    text = (project / changed).read_text()
    (project / changed).write_text(EVIL + text)
    code, _, err = evaluator("batch", "--output", "two")
    assert code == 3 and f"{changed} names:" in err and "evaluator trust" in err
    assert not (project / "MARK").exists()
    (project / changed).write_text(text)
    assert evaluator("batch", "--output", "two")[0] == 0


@pytest.mark.parametrize("engine", ["local", "processes"])
def test_a_module_that_no_import_statement_names_is_refused_when_it_is_imported(
    engine: str, project: Path
) -> None:
    (project / "plugin.py").write_text(EVIL)
    (project / "score.py").write_text(
        "import importlib, os, sys\nsys.path.insert(0, os.path.dirname(__file__))\n"
        "def same(output, target):\n"
        "    return bool(importlib.import_module('plug' + 'in'))\n"
    )
    assert files_of("score.py", project) == ["score.py"]
    code, err = in_process("batch", "--trust", "--engine", engine, "--output", "one", "--strict")
    assert code == 4 and not (project / "MARK").exists()
    assert "plugin.py names:" in (project / "one/results.jsonl").read_text() or "plugin.py" in err
    # The control: the whole project is trusted.
    trusted = {"EVALUATOR_TRUST": str(project)}
    code, err = in_process("batch", "--engine", engine, "--output", "two", "--strict", **trusted)
    assert code == 0, err
    assert (project / "MARK").exists()


def test_a_compiled_file_that_differs_from_its_source_is_not_run(
    project: Path, evaluator: Command
) -> None:
    assert evaluator("trust")[0] == 0
    source = project / "score.py"
    status = source.stat()
    source.write_text(EVIL + SAME)
    os.utime(source, ns=(status.st_atime_ns, status.st_mtime_ns))
    py_compile.compile(str(source), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    source.write_text(SAME)
    assert Path(importlib.util.cache_from_source(str(source))).is_file()
    assert evaluator("batch")[0] == 0
    assert not (project / "MARK").exists()


def test_a_definition_is_read_once(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    allow(read_with_claims("evaluator.toml", project)[1])
    read: list[Path] = []
    real = definition_module.read_named

    def swap_after_reading(path: Path, max_bytes: int) -> bytes:
        data = real(path, max_bytes)
        read.append(path)
        write_definition(project, '["evil.py:same"]')
        return data

    monkeypatch.setattr(definition_module, "read_named", swap_after_reading)
    definition, claims = read_with_claims("evaluator.toml", project)
    assert definition.options.scorers == ("score.py:same",)
    assert claims[0].names == ("the code score.py:same, which is run as a scorer",)
    assert len(read) == 1


def test_the_schema_of_a_scorer_is_code_too(project: Path, evaluator: Command) -> None:
    (project / "answer_models.py").write_text(EVIL + "class M(dict): pass\n")
    write_definition(project, '[{type = "json_schema", schema = "answer_models:M"}]')
    for command in (("batch",), ("batch", "--dry-run")):
        code, _, err = evaluator(*command)
        assert code == (3 if command == ("batch",) else 0), err
    code, out, _ = evaluator("trust", "--json")
    assert {entry["file"] for entry in json.loads(out)} == {"evaluator.toml", "answer_models.py"}
    assert not (project / "MARK").exists()
    code, _, err = evaluator("batch")
    assert (project / "MARK").exists(), err


def test_a_batch_that_is_resumed_runs_the_code_that_it_began_with(
    project: Path, evaluator: Command
) -> None:
    # The user names the code, which is the permission.
    begin = ("batch", "--template", "t", "--rows", "rows.jsonl", "--scorer", "score.py:same")
    code, _, err = evaluator(*begin, "--handler", "offline", "--output", "b")
    assert code == 0, err
    (project / "rows.jsonl").write_text('{"id": "a"}\n{"id": "b"}\n')
    resume = ("batch", "--resume", "b")
    (project / "score.py").write_text(EVIL + SAME)
    code, _, err = evaluator(*resume)
    assert code == 3 and "score.py names:" in err and not (project / "MARK").exists()
    # Controls: the code as it was, and another one that is allowed.
    (project / "score.py").write_text(SAME)
    code, _, err = evaluator(*resume)
    assert code == 0, err


def test_code_named_with_a_flag_runs_beside_a_definition_with_code(
    project: Path, evaluator: Command
) -> None:
    (project / "other.py").write_text(EVIL + SAME)
    assert evaluator("trust")[0] == 0
    code, _, err = evaluator("batch", "--scorer", "other.py:same")
    assert code == 0, err
    assert (project / "MARK").exists()


# -- schemas of templates -------------------------------------------------------------------------------------------

MODEL = "import pydantic\nclass M(pydantic.BaseModel):\n    answer: str\n"


@pytest.fixture
def schemas(project: Path) -> Path:
    """The project with a template whose schema is a class of a module here."""
    (project / "evilmod.py").write_text(EVIL + MODEL)
    (project / "templates/e.xml").write_text(
        '<task name="e" type="atomic"><description>Name the largest planet of the sun</description>'
        '<output_format type="json" schema="evilmod:M"/></task>'
    )
    return project


def test_looking_imports_no_schema(schemas: Path, evaluator: Command) -> None:
    request = "Name the largest planet of the sun"
    for command in (
        ("lint",),
        ("lint", "templates"),
        ("render", "e"),
        ("match", request),
        ("templates",),
        ("batch", "--dry-run", "--template", "e", "--rows", "rows.jsonl"),
    ):
        code, _, err = evaluator(*command)
        assert code in (0, 1), (command, err)
        assert not (schemas / "MARK").exists(), command


@pytest.mark.parametrize(
    "what", [("--template", "e"), ("Name the largest planet of the sun",)], ids=["name", "words"]
)
def test_a_schema_in_the_project_is_imported_after_the_user_has_allowed_it(
    what: tuple[str, ...], schemas: Path, evaluator: Command
) -> None:
    run = ("run", *what, "--handler", "offline")
    code, _, err = evaluator(*run)
    assert code != 0 and "evilmod.py names:" in err and "evaluator trust" in err
    assert not (schemas / "MARK").exists()
    assert evaluator("trust")[0] == 0
    assert not (schemas / "MARK").exists()
    code, _, err = evaluator(*run)
    assert code == 0, err
    assert (schemas / "MARK").exists()


def test_scoring_existing_answers_needs_the_same_permission(
    schemas: Path, evaluator: Command
) -> None:
    (schemas / "rows.jsonl").write_text('{"id": "a", "output": "{\\"answer\\": \\"Jupiter\\"}"}\n')
    batch = ("batch", "--template", "e", "--rows", "rows.jsonl", "--answers", "output")
    scored = (*batch, "--scorer", "regex:pattern=Jupiter")
    for number, more in enumerate((("--dry-run",), ())):
        code, out, err = evaluator(*scored, "--output", f"b{number}", *more)
        assert not (schemas / "MARK").exists(), (out, err)
    results = (schemas / "b1/results.jsonl").read_text()
    assert "is not imported" in results and '"answer":"Jupiter"' not in results
    code, _, err = evaluator(*scored, "--output", "trusted", "--trust")
    assert code == 0, err
    assert (schemas / "MARK").exists()


def test_a_schema_in_a_file_needs_the_same_permission(schemas: Path, evaluator: Command) -> None:
    template = schemas / "templates/e.xml"
    template.write_text(template.read_text().replace("evilmod:M", "evilmod.py:M"))
    run = ("run", "--template", "e", "--handler", "offline")
    code, _, err = evaluator(*run)
    assert code != 0 and "evilmod.py names:" in err
    assert not (schemas / "MARK").exists()
    code, _, err = evaluator(*run, "--trust")
    assert code == 0, err
    assert (schemas / "MARK").exists()


def test_shards_of_somebody_else_are_merged_as_data(project: Path, evaluator: Command) -> None:
    (project / "rows.jsonl").write_text('{"id": "a"}\n{"id": "b"}\n')
    begin = ("batch", "--template", "t", "--rows", "rows.jsonl", "--scorer", "score.py:same")
    for number in (1, 2):
        shard = ("--shard", f"{number}/2", "--output", f"s{number}")
        code, _, err = evaluator(*begin, "--handler", "offline", *shard)
        assert code == 0, err
    (project / "rows.jsonl").write_text('{"id": "a"}\n{"id": "b"}\n{"id": "c"}\n')
    folder = BatchFolder.reader(project / "s2")
    own = folder.manifest()
    folder.write_manifest({**own, "signature": "0" * 64})
    assert evaluator("batch", "merge", "s1", "s2", "--output", "foreign")[0] == 0
    code, _, err = evaluator("batch", "--resume", "foreign")
    assert code == 3 and "the code score.py:same" in err
    # Control: both are the user's own.
    folder.write_manifest(own)
    assert evaluator("batch", "merge", "s1", "s2", "--output", "merged")[0] == 0
    code, _, err = evaluator("batch", "--resume", "merged")
    assert code == 0, err


def test_the_module_of_a_schema_may_be_changed_only_with_a_new_permission(
    schemas: Path, evaluator: Command
) -> None:
    run = ("run", "--template", "e", "--handler", "offline")
    (schemas / "evilmod.py").write_text(MODEL)
    assert evaluator(*run, "--trust")[0] == 0
    sys.modules.pop("evilmod")
    assert evaluator(*run)[0] == 0
    sys.modules.pop("evilmod", None)
    (schemas / "evilmod.py").write_text(EVIL + MODEL + "\n")
    os.utime(schemas / "evilmod.py", (1, 1))
    project_code_schema_cache_clear()
    assert evaluator(*run)[0] != 0
    assert not (schemas / "MARK").exists()


def project_code_schema_cache_clear() -> None:
    """As in another process."""
    from evaluator.output import schema

    schema._model.cache_clear()


def test_python_needs_a_permission_for_a_schema_that_only_the_current_folder_has(
    schemas: Path,
) -> None:
    library = TemplateLibrary.load("templates", shipped=False)
    project_code_schema_cache_clear()
    with Evaluator(library, "offline", tasks_dir=None) as evaluator:
        outcome = evaluator.evaluate_sync("e")
    assert isinstance(outcome, TaskError) and "evilmod:M is not imported" in outcome.message
    assert not (schemas / "MARK").exists()
    with Evaluator(library, "offline", tasks_dir=None, trust=True) as evaluator:
        assert evaluator.evaluate_sync("e").ok


REFUSED = "was changed or written after"
OFFLINE = HandlerConfig(
    name="offline",
    backend="simulated",
    tools=(ToolGrant("write_file", "allow"), ToolGrant("subtask", "allow")),
)


def write_call(path: str, content: str) -> dict[str, Any]:
    return {"tool": "write_file", "arguments": {"path": path, "content": content}}


def with_model(answers: Sequence[Any], told: list[str], **options: Any) -> Evaluator:
    """An Evaluator of the project whose model gives these answers, and then one that fits."""
    steps = iter(answers)

    def model(asked: ModelRequest) -> Any:
        told.append(asked.messages[-1].content)
        return next(steps, '{"answer": "Jupiter"}')

    project_code_schema_cache_clear()
    return Evaluator(
        TemplateLibrary.load("templates", shipped=False),
        OFFLINE,
        backend=SimulatedBackend(script=model),
        tasks_dir=None,
        **options,
    )


@pytest.mark.parametrize("place", ["evilmod.py", "evilmod"])
def test_a_model_that_writes_the_module_of_a_schema_does_not_have_it_imported(
    schemas: Path, place: str
) -> None:
    """Not even where the user vouches for the project: this code is not the project's."""
    (schemas / "evilmod.py").write_text(MODEL)
    template = schemas / "templates/e.xml"
    template.write_text(template.read_text().replace("evilmod:M", f"{place}:M"))
    (schemas / "templates/boss.xml").write_text(
        '<task name="boss" type="atomic"><description>Lead</description><tools>'
        '<tool name="write_file"/><tool name="subtask"/></tools></task>'
    )
    request = {"type": "atomic", "description": "d", "inputs": {}, "hints": {"template": "e"}}
    subtask = {"tool": "subtask", "arguments": request}
    told: list[str] = []
    with with_model(
        [write_call("evilmod.py", EVIL + MODEL), subtask], told, trust=True
    ) as evaluator:
        evaluator.evaluate_sync("boss").unwrap()
        assert not (schemas / "MARK").exists()
        assert any("is not imported" in each for each in told), told
        # Nor by a later run that this person started, for which it was named before.
        later = evaluator.evaluate_sync("e")
        assert isinstance(later, TaskError) and "evilmod.py: this code was changed" in later.message
        assert not (schemas / "MARK").exists()
    # The control: this person vouches for the project as it is now.
    with with_model([], told, trust=True) as evaluator:
        evaluator.evaluate_sync("e").unwrap()
    assert (schemas / "MARK").exists()


# What the module of the schema is, what a model writes, and whether the import of it is seen before the call.
WRITTEN = {
    "the module": ("{}", "evilmod.py"),
    "what it imports when it checks a value": (
        "{}    @pydantic.field_validator('answer')\n    def check(cls, value):\n"
        "        import helper\n        return value\n",
        "helper.py",
    ),
    "a module that is missing": (
        "{}    @pydantic.field_validator('answer')\n    def check(cls, value):\n"
        "        try:\n            import accelerator\n"
        "        except ImportError:\n            pass\n        return value\n",
        "accelerator.py",
    ),
    "what no import statement shows": (
        "{}    @pydantic.field_validator('answer')\n    def check(cls, value):\n"
        "        import importlib\n        importlib.import_module('plug' + 'in')\n"
        "        return value\n",
        "plugin.py",
    ),
}


@pytest.mark.parametrize("how", ["trust", "environment", "allowed"])
@pytest.mark.parametrize("case", WRITTEN)
def test_a_later_step_runs_no_code_that_an_earlier_one_wrote(
    case: str, how: str, schemas: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, written = WRITTEN[case]
    for name in ("helper.py", "plugin.py"):
        (schemas / name).write_text("VALUE = 1\n")
    (schemas / "evilmod.py").write_text(module.format(MODEL))
    (schemas / "templates/both.xml").write_text(
        '<task name="both" type="sequential"><description>Do both</description><steps>'
        '<task type="atomic"><description>Write</description><tools><tool name="write_file"/></tools></task>'
        '<task type="atomic"><description>Answer</description>'
        '<output_format type="json" schema="evilmod:M"/></task></steps></task>'
    )
    monkeypatch.syspath_prepend(str(schemas))
    if how == "environment":
        monkeypatch.setenv("EVALUATOR_TRUST", str(schemas))
    if how == "allowed":
        allow(code_of_schemas(TemplateLibrary.load("templates", shipped=False), schemas))
    answers = [write_call(written, EVIL + module.format(MODEL)), "done"]
    with with_model(answers, [], trust=how == "trust") as evaluator:
        if case == "the module":
            # It is imported before the first call, as it was.
            assert evaluator.evaluate_sync("both").ok
        else:
            outcome = evaluator.evaluate_sync("both")
            if case == "a module that is missing" or isinstance(outcome, TaskError):
                assert REFUSED in str(outcome)
        assert not (schemas / "MARK").exists()
        assert (schemas / written).read_text().startswith(EVIL)
    # The control: a program that starts a second later runs it.
    monkeypatch.setattr(clock, "wall", lambda: time.time() + 1)
    for name in ("evilmod", "helper", "plugin", "accelerator"):
        sys.modules.pop(name, None)
    if how == "allowed":
        allow(code_of_schemas(TemplateLibrary.load("templates", shipped=False), schemas))
    with with_model(["done"], [], trust=how == "trust") as evaluator:
        evaluator.evaluate_sync("both").unwrap()
    assert (schemas / "MARK").exists()


@pytest.mark.parametrize("engine", ["local", "processes"])
@pytest.mark.parametrize("metric", [False, True])
def test_a_scorer_or_a_metric_imports_nothing_that_a_sample_wrote(
    metric: bool, engine: str, project: Path
) -> None:
    code = (
        "import os, sys\nsys.path.insert(0, os.path.dirname(__file__))\n"
        "def same(output):\n    import helper\n    return helper.VALUE\n"
        "def total(results):\n    import helper\n    return helper.VALUE\n"
    )
    (project / "score.py").write_text(code)
    (project / "helper.py").write_text("VALUE = True\n")
    (project / "templates/w.xml").write_text(
        '<task name="w" type="atomic"><description>Write</description><tools>'
        '<tool name="write_file"/></tools></task>'
    )
    if metric:
        options: dict[str, Any] = {
            "scorers": [{"type": "regex", "pattern": "d"}],
            "metrics": ["score.py:total"],
        }
    else:
        options = {"scorers": ["score.py:same"]}

    def batch(written: str, folder: str) -> Any:
        def model(asked: ModelRequest) -> Any:
            if asked.messages[-1].role == "tool":
                return "done"
            return write_call(written, EVIL + "VALUE = True\n")

        library = TemplateLibrary.load("templates", shipped=False)
        backend = SimulatedBackend(script=model)
        with Evaluator(library, OFFLINE, backend=backend, tasks_dir=None) as evaluator:
            return run_batch_sync(
                "w", [{}], evaluator=evaluator, output=folder, engine=engine, **options
            )

    result = batch("helper.py", "one")
    assert (project / "helper.py").read_text().startswith(EVIL)
    assert not (project / "MARK").exists()
    assert REFUSED in str(result.summary.to_dict()) + (project / "one/results.jsonl").read_text()
    # The control: what was there before the batch is imported.
    (project / "helper.py").write_text("VALUE = True\n")
    function_scorer._pin_code.cache_clear()
    later = pytest.MonkeyPatch()
    later.setattr(clock, "wall", lambda: time.time() + 1)
    result = batch("other.py", "two")
    later.undo()
    assert (
        REFUSED not in str(result.summary.to_dict()) + (project / "two/results.jsonl").read_text()
    )
    assert "1 passed" in repr(result.summary)


def test_a_root_outside_of_the_current_folder_is_no_way_to_code(
    schemas: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Modules there need no permission, and tools may write there."""
    root = tmp_path / "lib"
    root.mkdir()
    (root / "answers_of_root.py").write_text(MODEL)
    monkeypatch.syspath_prepend(str(root))
    text = (schemas / "templates/e.xml").read_text()
    (schemas / "templates/e.xml").write_text(text.replace("evilmod:M", "answers_of_root:M"))
    chosen = (
        '<task name="w" type="atomic"><description>Write</description><tools>'
        '<tool name="write_file"/></tools></task>'
    )
    (schemas / "templates/w.xml").write_text(chosen)
    answers = [write_call("answers_of_root.py", EVIL + MODEL), "done"]
    with with_model(answers, [], roots=[root]) as evaluator:
        evaluator.evaluate_sync("w").unwrap()
        assert (root / "answers_of_root.py").read_text().startswith(EVIL)
        later = evaluator.evaluate_sync("e")
    assert isinstance(later, TaskError) and REFUSED in later.message
    assert not (schemas / "MARK").exists()
    with with_model([], [], roots=[root]) as evaluator:
        evaluator.evaluate_sync("e").unwrap()
    assert (schemas / "MARK").exists()


def test_a_run_imports_no_module_that_a_task_of_it_wrote(
    schemas: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`python main.py` has its own folder first on the path: neither a tool of the program nor the
    program itself imports what a task has written there since."""
    monkeypatch.syspath_prepend(str(schemas))

    @tool(policy="allow")
    def look() -> str:
        """Looks."""
        return str(importlib.import_module("written_here"))

    (schemas / "templates/w.xml").write_text(
        '<task name="w" type="atomic"><description>Write</description><tools>'
        '<tool name="write_file"/><tool name="look"/></tools></task>'
    )
    told: list[str] = []
    answers = [write_call("written_here.py", EVIL), {"tool": "look", "arguments": {}}, "done"]
    with with_model(answers, told, tools=[look]) as evaluator:
        evaluator.evaluate_sync("w").unwrap()
    assert any(REFUSED in each for each in told), told
    assert not (schemas / "MARK").exists()
    # The control: a new Evaluator uses it as it is.
    monkeypatch.setattr(clock, "wall", lambda: time.time() + 1)
    with with_model([{"tool": "look", "arguments": {}}, "done"], told, tools=[look]) as evaluator:
        evaluator.evaluate_sync("w").unwrap()
    assert (schemas / "MARK").exists()


def test_a_permission_covers_the_code_of_what_functions_return(
    schemas: Path, evaluator: Command
) -> None:
    (schemas / "templates/e.xml").write_text(
        '<template name="e" returns="evilmod:M"><task type="atomic">'
        "<description>Answer</description></task></template>"
    )
    code, out, _ = evaluator("trust", "--json")
    assert code == 0
    assert "evilmod.py" in {entry["file"] for entry in json.loads(out)}


def test_the_program_is_not_imported_from_the_current_folder(project: Path) -> None:
    for name in ("click.py", "litellm.py", "lxml.py"):
        (project / name).write_text(EVIL)
    code, err = in_process("run", "--template", "t", "--handler", "offline")
    assert code == 0, err
    assert not (project / "MARK").exists()


@pytest.mark.parametrize("start", ["worker", "describer"])
def test_a_process_of_the_program_takes_no_module_from_the_folder_of_the_program(
    start: str, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`python main.py` has its own folder first on the path, and a task may have written there."""
    for name in ("asyncio", "dataclasses", "hashlib", "pickle"):
        (project / f"{name}.py").write_text(EVIL)
    monkeypatch.syspath_prepend(str(project))
    if start == "worker":
        with Evaluator(TemplateLibrary.load("templates"), OFFLINE, tasks_dir=None) as evaluator:
            result = run_batch_sync("t", [{}], evaluator=evaluator, engine="processes", output="b")
        assert result.is_complete
    else:
        with GlobalIndex(tmp_path / "index.sqlite") as index:
            assert asyncio.run(index.add_folder(project)).files > 0
    assert not (project / "MARK").exists()


def test_installed_packages_are_not_code_of_the_project(tmp_path: Path) -> None:
    assert files_of("json", tmp_path) == []
    assert files_of("click", Path("/")) == []
    (tmp_path / "code.py").write_text("import click, json\n")
    assert files_of("code.py", tmp_path) == ["code.py"]


def test_code_that_cannot_be_parsed_or_read_names_only_itself(tmp_path: Path) -> None:
    for number, text in enumerate((b"import (", b"\0", b"(" * 5000, b"\xff")):
        (tmp_path / f"m{number}.py").write_bytes(text)
        assert files_of(f"m{number}.py", tmp_path) == [f"m{number}.py"]
    assert files_of("missing.py", tmp_path) == []
    os.mkfifo(tmp_path / "pipe.py")
    assert files_of("pipe.py", tmp_path) == []


@pytest.mark.parametrize("changed", ["score.py", "helper.py"])
def test_a_file_of_a_terabyte_is_neither_read_nor_imported(
    changed: str, project: Path, evaluator: Command
) -> None:
    (project / "score.py").write_text(IMPORTS["a module beside it"][0] + SAME)
    (project / "helper.py").write_text("#" * 1_000_000)
    assert evaluator("trust")[0] == 0
    assert evaluator("batch", "--output", "one")[0] == 0
    os.truncate(project / changed, 10**12)
    code, _, err = evaluator("batch", "--output", "two")
    assert code == 3
    assert f"{changed}: it has more than 4,000,000 bytes, so it is not imported" in err
    os.rename(project / changed, project / "new.py")
    with pytest.raises(ConfigurationError, match="more than 4,000,000 bytes"):
        import_place(str(project / "new.py"), CodeGuard(str(project)))
