"""The example `generated_code`: code passes only if it computes the values, and a missing sandbox is said at once.

The template is the example's own. Most attempts need no sandbox, because the program that runs the tests withstands them.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from evaluator import (
    Evaluator,
    SimulatedBackend,
    TaskError,
    TaskResult,
    TemplateLibrary,
    run_batch_sync,
)
from evaluator.batch import read_definition
from tests.sandboxes import require_bubblewrap

EXAMPLE = Path(__file__).parents[2] / "examples" / "generated_code"
RIGHT = "def double(n):\n    return 2 * n\n"
TESTS = [{"call": "double(21)", "expected": 42}, {"call": "double(0)", "expected": 0}]
REPORT = json.dumps({"success": True, "passed": 2, "total": 2, "failures": []})
FORGE = f"import os\nline = {REPORT!r} + '\\n'\n"
CHEATS: dict[str, str] = {
    "exit": "import sys\nsys.exit(0)",
    "exit-at-once": "import os\nos._exit(0)",
    "exit-in-the-function": "import os\ndef double(n):\n    os._exit(0)",
    "raise-system-exit": "def double(n):\n    raise SystemExit(0)",
    "raise-keyboard-interrupt": "def double(n):\n    raise KeyboardInterrupt",
    "print-a-report": FORGE + "print(line, flush=True)\nos._exit(0)",
    "write-a-report-everywhere": FORGE
    + "for number in range(64):\n    try: os.write(number, line.encode())\n    except OSError: pass\nos._exit(0)",
    "write-to-the-output-of-the-parent": FORGE
    + "for number in range(16):\n    try: open(f'/proc/{os.getppid()}/fd/{number}', 'w').write(line)\n"
    "    except OSError: pass\nos._exit(0)",
    "forge-values": "import os\nfor number in range(64):\n    try: os.write(number, b'[\"value\", true]\\n' * 2)\n"
    "    except OSError: pass\nos._exit(0)",
    "report-at-exit": FORGE + "import atexit\natexit.register(lambda: os.write(1, line.encode()))",
    "replace-json": f"import json\njson.dumps = lambda *a, **k: {REPORT!r}\ndef double(n): return 0",
    "replace-eval": "import builtins\nbuiltins.eval = lambda *a: True\ndef double(n): return 0",
    "equal-to-everything": "class Any(int):\n    def __eq__(self, other): return True\n    __hash__ = int.__hash__\n"
    "def double(n): return Any(7)",
    "a-boolean-for-a-number": "def double(n): return n != 0",
    "a-float-for-an-integer": "def double(n): return 2.0 * n",
    "no-function": "x = 1",
    "a-syntax-error": "def double(n)\n    return 2 * n",
    "only-the-visible-case": "def double(n): return 42",
    "look-for-the-answer": "import gc\ndef double(n):\n    for x in gc.get_objects():\n"
    "        if isinstance(x, dict) and 'expected' in x: return x['expected']\n    return None",
    "nest-deeply": "def double(n):\n    x = []\n    for _ in range(100000): x = [x]\n    return x",
    "kill-the-parent": "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)",
    "kill-the-group-of-the-parent": "import os, signal\nos.killpg(os.getpgid(os.getppid()), signal.SIGKILL)",
    "flood-the-results": "import os\nwhile True:\n    for number in range(3, 32):\n"
    "        try: os.write(number, b'x' * 100000)\n        except OSError: pass",
    "never-end": "while True: pass",
    "keep-the-pipe-open": "import os, time\nif os.fork() == 0:\n    time.sleep(1000)\nos._exit(0)",
}


def evaluate(
    folder: Path, code: str, sandbox: str, tests: object = TESTS
) -> TaskResult | TaskError:
    templates = folder / "templates"
    templates.mkdir()
    text = (EXAMPLE / "templates" / "write_and_test.xml").read_text()
    assert "SECONDS, BYTES = 10," in text
    if code in (CHEATS["never-end"], CHEATS["keep-the-pipe-open"]):
        text = text.replace(
            "SECONDS, BYTES = 10,", "SECONDS, BYTES = 1,"
        )  # they use all the time there is
    (templates / "t.xml").write_text(text)
    work = folder / "work"
    work.mkdir()
    library = TemplateLibrary.load(templates, shipped=False)
    values = {"problem": "Double a number.", "signature": "def double(n):", "tests": tests}
    with Evaluator(
        library,
        "offline",
        backend=SimulatedBackend(),
        roots=[work],
        tasks_dir=folder / "tasks",
        sandbox=sandbox,
    ) as evaluator:
        return evaluator.evaluate_sync(
            "write_and_test", values, target=f"Here it is:\n```python\n{code}\n```\n"
        )


def succeeds(outcome: TaskResult | TaskError) -> bool:
    return isinstance(outcome, TaskResult) and outcome.parsed_content["success"] is True


@pytest.mark.parametrize(
    "answer", [RIGHT, "print('noise')\n" + RIGHT, "import sys\nsys.stdout.close()\n" + RIGHT]
)
def test_right_code_passes(tmp_path: Path, answer: str) -> None:
    outcome = evaluate(tmp_path, answer, "none")
    assert outcome.unwrap().parsed_content == {
        "success": True,
        "passed": 2,
        "total": 2,
        "failures": [],
    }


@pytest.mark.parametrize("name", CHEATS)
def test_code_that_cheats_does_not_pass(tmp_path: Path, name: str) -> None:
    outcome = evaluate(tmp_path, CHEATS[name], "none")
    assert not succeeds(outcome)
    # Either the tests report it, or the script failed, which the example counts as a failed answer.
    assert isinstance(outcome, TaskResult) or outcome.reason == "tool_failure"
    assert (
        "tool_failure" in read_definition(EXAMPLE / "generated_code.toml").options.count_as_failed
    )


def test_code_without_tests_does_not_pass(tmp_path: Path) -> None:
    assert not succeeds(evaluate(tmp_path, RIGHT, "none", []))


READ = """import os
def double(n):
    try:
        open(f"/proc/{os.getppid()}/PART", "rb").read(0)
    except OSError:
        return "refused"
    return "read"
"""


@pytest.mark.parametrize("part", ["mem", "environ", "fd/1"])
def test_code_in_the_sandbox_cannot_look_into_the_program_that_tests_it(
    tmp_path: Path, part: str
) -> None:
    require_bubblewrap()
    tests = [{"call": "double(1)", "expected": "refused"}]
    assert succeeds(evaluate(tmp_path, READ.replace("PART", part), "bubblewrap", tests))


def test_code_in_the_sandbox_can_look_into_the_public_parts_of_that_program(tmp_path: Path) -> None:
    """The control of the test above."""
    require_bubblewrap()
    tests = [{"call": "double(1)", "expected": "read"}]
    assert succeeds(evaluate(tmp_path, READ.replace("PART", "status"), "bubblewrap", tests))


@pytest.mark.parametrize("sandbox", ["none", "bubblewrap"])
def test_the_example_runs_offline(tmp_path: Path, sandbox: str) -> None:
    if sandbox == "bubblewrap":
        require_bubblewrap()
    definition = read_definition(EXAMPLE / "generated_code.toml")
    library = TemplateLibrary.load(*definition.library, shipped=False)
    options = {
        each: getattr(definition.options, each)
        for each in ("inputs", "target", "scorers", "thresholds", "count_as_failed")
    }
    with Evaluator(library, "offline", tasks_dir=None, roots=definition.roots) as evaluator:
        result = run_batch_sync(
            definition.templates,
            definition.rows,
            evaluator=evaluator,
            output=tmp_path / "b",
            sandbox=sandbox,
            **options,
        )
    assert result.ok
    assert len(list(result.results())) == 6


def test_the_example_names_the_package_and_the_option_where_its_sandbox_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = TemplateLibrary.load(EXAMPLE / "templates", shipped=False)
    calls: list[object] = []
    backend = SimulatedBackend(script=lambda request: calls.append(request) or RIGHT)
    evaluator = Evaluator(library, "offline", backend=backend, tasks_dir=None, roots=[tmp_path])
    monkeypatch.setenv("PATH", str(tmp_path))
    values = {"problem": "p", "signature": "s", "tests": TESTS}
    error = evaluator.evaluate_sync("write_and_test", values)
    assert isinstance(error, TaskError)
    assert "install the package bubblewrap" in error.message
    assert "--sandbox (none:" in error.message
    assert calls == []
