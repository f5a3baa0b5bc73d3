"""The pytest plugin, run in pytests of its own: outcomes, messages, and how often batches run."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from xml.etree import ElementTree

import pytest

from tests.pytest_plugin.plugin_run import ROOT, Run

pytest_plugins = ["pytester"]
# Tests run pytests of their own, whose processes are slow on a busy machine.
pytestmark = pytest.mark.timeout(600)


def calls(pytester: pytest.Pytester) -> list[str]:
    """Which numbers the model was asked for."""
    file = pytester.path / "calls.txt"
    return sorted(file.read_text().split()) if file.exists() else []


def marked(rows: str = "quiz.ROWS[:2]", **options: str) -> str:
    said = "".join(
        f", {name}={value}" for name, value in {"scorers": "['exact']", **options}.items()
    )
    return f"@pytest.mark.evaluator_batch('double', rows={rows}, evaluator=quiz.make(){said})\n"


# -- a batch is a test -----------------------------------------------------------------------------------------------


def test_a_test_passes_only_if_its_batch_is_complete_and_its_gates_hold(
    run: Run, pytester: pytest.Pytester
) -> None:
    done = run(
        marked(thresholds="['accuracy >= 1']") + "def test_good(batch):\n"
        "    assert batch.ok and {result.sample_id for result in batch.results()} == {'r1', 'r2'}\n"
        + marked("quiz.ROWS", thresholds="['accuracy >= 0.9', 'errors <= 1']")
        + "def test_missed(batch): assert 'not' == 'run'\n"
        + marked("quiz.ROWS[3:] + quiz.ROWS[:3]", limits="{'stop_after': 1, 'concurrency': 1}")
        + "def test_incomplete(): pass\n"
        "@pytest.mark.skip\n" + marked() + "def test_skipped(batch): pass\n"
        "@pytest.mark.xfail(strict=True)\n"
        + marked("quiz.ROWS[2:3]", thresholds="['accuracy >= 1']")
        + "def test_expected(): pass\n",
        apart=True,
    )
    done.assert_outcomes(passed=1, failed=2, skipped=1, xfailed=1)
    done.stdout.fnmatch_lines(
        [
            "*_ test_missed _*",
            "4 of 4 samples have a result: 2 passed, 1 failed, 1 error, 0 unscored",
            "threshold missed: accuracy >= 0.9 for double*: 0.66* (3 of 4): *",
            "failed:",
            "  r3 (double, *): exact: *",
            "error:",
            "  r4 (double, *): *it broke*",
            "results: *",
            "resume with: pytest test_it.py::test_missed --evaluator-output * --evaluator-resume",
            "*_ test_incomplete _*",
            "1 of 4 samples has a result: 0 passed, 0 failed, 1 error, 0 unscored",
            "the batch is not complete: repeated error: 1 sample in a row ended with: *",
        ]
    )
    text = done.stdout.str()
    assert "Traceback" not in text and "evaluator/pytest_plugin" not in text
    assert "errors <= 1" not in text.replace("thresholds=[", "", 1), "that threshold holds"
    assert "\x1b[31m" not in text and "\\x1b[31m" in text
    assert calls(pytester) == ["1", "1", "2", "2", "3", "3", "4", "4"], (
        "nothing for the skipped one"
    )


def test_what_shares_a_marker_shares_its_batch(run: Run, pytester: pytest.Pytester) -> None:
    done = run(
        "import unittest\n"
        + marked()
        + "class TestOne:\n    def test_a(self, batch): assert batch.ok\n    def test_b(self, batch): assert batch.ok\n"
        + marked("quiz.ROWS[2:]", thresholds="['accuracy >= 1']")
        + "class TestTwo(unittest.TestCase):\n    def test_c(self): pass\n"
        "def case(row): return pytest.mark.evaluator_batch('double', rows=[row], evaluator=quiz.make())\n"
        "@pytest.mark.parametrize('n', [pytest.param(n, marks=case(quiz.ROWS[n - 1])) for n in (1, 2)])\n"
        "def test_own(n, batch): assert [r.sample_id for r in batch.results()] == [f'r{n}']\n"
        + marked("quiz.ROWS[1:2]")
        + "@pytest.mark.parametrize('n', [1, 2])\ndef test_same(n, batch): assert batch.ok\n"
    )
    done.assert_outcomes(passed=6, failed=1)
    assert calls(pytester) == sorted(["1", "2", "3", "4", "1", "2", "2"])


UNUSABLE = {
    "@pytest.mark.evaluator_batch('nowhere', rows=[])": "evaluator_batch: *nowhere*",
    "@pytest.mark.evaluator_batch()": "evaluator_batch: give a definition's file or a template's name",
    "@pytest.mark.evaluator_batch('double')": "evaluator_batch: rows are missing",
    "@pytest.mark.evaluator_batch('missing.toml')": "evaluator_batch: *missing.toml: cannot be read*",
    "@pytest.mark.evaluator_batch('double', [], 3)": "evaluator_batch: it takes a definition or templates, rows*",
    "@pytest.mark.usefixtures('batch')": "this test uses the batch of a marker but has no marker: add @pytest.mark*",
}


def test_what_cannot_be_run_is_an_error_of_the_test_in_a_line(run: Run) -> None:
    unusable = {
        **UNUSABLE,
        marked(
            threshold="['accuracy >= 1']"
        ): "evaluator_batch: threshold is unknown; did you mean `thresholds`?",
        marked(thresholds="['accurate >= 1']"): "evaluator_batch: unknown metric 'accurate'*",
        marked(library="'x'"): "evaluator_batch: give either an evaluator, or library to make one",
        marked() + "@pytest.mark.usefixtures('sample')\n": "sample is for tests of one sample*",
    }
    done = run(
        "\n".join(f"{mark.strip()}\ndef test_{n}(): pass" for n, mark in enumerate(unusable))
    )
    done.assert_outcomes(errors=len(unusable))
    for said in unusable.values():
        done.stdout.fnmatch_lines([said.replace("[", "[[]")])
    assert "Traceback" not in done.stdout.str() and "runs.py" not in done.stdout.str()


@pytest.mark.parametrize(
    "test",
    [
        marked("quiz.ROWS", each="True") + "def test_each(): pass",
        "def test_called(evaluator_batch): evaluator_batch('double', quiz.ROWS, epocs=2)",
        marked() + "def test_shared(): pass",
    ],
    ids=["collected", "called", "set up"],
)
def test_what_is_wrong_is_said_once(run: Run, test: str) -> None:
    done = run(test.replace("scorers=['exact']", "epocs=2"))
    said = "evaluator_batch: epocs is unknown; did you mean `epochs`?"
    text = done.stdout.str().partition("short test summary")[0]
    assert done.ret != 0 and text.count(said) == 1
    assert "During handling" not in text and "Traceback" not in text and "runs.py" not in text


def test_two_markers_at_one_place_are_an_error_since_only_one_would_run(
    run: Run, pytester: pytest.Pytester
) -> None:
    one, each = marked("quiz.ROWS[:1]"), marked("quiz.ROWS[1:2]", each="True")
    case = f"@pytest.mark.parametrize('n', [pytest.param(1, marks={one.strip()[1:]}), 2])\n"
    done = run(
        f"{one}{each}def test_two(): pass\n"
        f"{each}{one}def test_other(): pass\n"
        f"{one}{one}class TestTwo:\n    def test_method(self, batch): pass\n"
        f"{marked('quiz.ROWS[2:3]')}{case}def test_case(n): pass\n"
    )
    done.assert_outcomes(errors=4, passed=1)
    for place in ("test_two", "test_other", "TestTwo", "test_case?1?"):
        done.stdout.fnmatch_lines([f"evaluator_batch: test_it.py::{place} has several markers, *"])
    assert "Traceback" not in done.stdout.str() and "runs.py" not in done.stdout.str()
    assert calls(pytester) == ["3"], "the case without a marker of its own"


def test_of_markers_at_several_places_the_nearest_counts(
    run: Run, pytester: pytest.Pytester
) -> None:
    done = run(
        f"pytestmark = {marked('quiz.ROWS[:1]').strip()[1:]}\n"
        "def test_of_module(batch): assert batch.ok\n"
        + marked("quiz.ROWS[1:2]")
        + "class TestIt:\n"
        + "    def test_of_class(self, batch): assert [r.sample_id for r in batch.results()] == ['r2']\n"
        + f"    {marked('quiz.ROWS[3:]', each='True')}    def test_own(self, sample): pass\n"
        + "shared = pytest.mark.evaluator_batch('double', rows=quiz.ROWS[2:3], evaluator=quiz.make())\n"
        + "@shared\n@pytest.mark.parametrize('n', [pytest.param(1, marks=shared)])\ndef test_same(n, batch): pass\n"
    )
    done.assert_outcomes(passed=3, errors=1)
    assert calls(pytester) == ["1", "2", "3", "4"]


def test_a_marker_that_no_hook_can_serve_does_not_pass(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        "import pytest\n"
        "class Odd(pytest.Item):\n"
        "    def runtest(self): pass\n"
        "class File(pytest.File):\n"
        "    def collect(self):\n"
        "        item = Odd.from_parent(self, name='odd')\n"
        "        item.add_marker(pytest.mark.evaluator_batch('double', rows=[]))\n"
        "        yield item\n"
        "def pytest_collect_file(file_path, parent):\n"
        "    if file_path.name == 'odd.txt': return File.from_parent(parent, path=file_path)"
    )
    (pytester.path / "odd.txt").touch()
    run("", "odd.txt").assert_outcomes(failed=1)


# -- a sample is a test ----------------------------------------------------------------------------------------------

EACH = (
    marked(
        "quiz.ROWS + [{'id': 'r5', 'question': '5 + 5?'}]",
        each="True",
        thresholds="['accuracy >= 0.9']",
    )
    + "def test_each(sample): assert sample.verdict == 'passed'"
)


def test_each_sample_passes_fails_errs_or_is_skipped_by_itself(
    run: Run, pytester: pytest.Pytester
) -> None:
    done = run(EACH, "-v", "-rs", "--junit-xml=junit.xml")
    done.assert_outcomes(passed=2, failed=2, errors=1, skipped=1)
    done.stdout.fnmatch_lines(
        [
            "*test_each?r1? PASSED*",
            "*test_each?r2? PASSED*",
            "*test_each?r3? FAILED*",
            "*test_each?r4? ERROR*",
            "*test_each?r5? SKIPPED*",
            "*test_each?thresholds? FAILED*",
        ]
    )
    assert calls(pytester) == ["1", "2", "3", "4", "5"], "one batch"
    cases = {
        case.get("name"): case
        for case in ElementTree.parse(pytester.path / "junit.xml").iter("testcase")
    }
    kinds = {
        name: [child.tag for child in case if child.tag != "properties"]
        for name, case in cases.items()
    }
    assert kinds == {
        "test_each[r1]": [],
        "test_each[r2]": [],
        "test_each[r3]": ["failure"],
        "test_each[r4]": ["error"],
        "test_each[r5]": ["skipped"],
        "test_each[thresholds]": ["failure"],
    }
    failure = cases["test_each[r3]"].find("failure")
    assert (
        failure is not None
        and "answer: nine" in (failure.text or "")
        and "target: 6" in (failure.text or "")
    )


def test_only_samples_that_were_chosen_are_evaluated(run: Run, pytester: pytest.Pytester) -> None:
    run(EACH, "-k", "r1 or r3").assert_outcomes(passed=1, failed=1, deselected=4)
    assert calls(pytester) == ["1", "3"]


def test_samples_that_were_chosen_from_a_file_leave_the_others_to_a_later_run(
    run: Run, pytester: pytest.Pytester
) -> None:
    rows = [{"id": f"r{n}", "question": f"{n} + {n}?", "target": str(2 * n)} for n in (1, 2)]
    (pytester.path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    test = marked("'rows.jsonl'", each="True") + "def test_each(sample): pass"
    run(test, "--evaluator-output", "kept", "-k", "r1").assert_outcomes(passed=1, deselected=1)
    assert calls(pytester) == ["1"]
    resumed = ["--evaluator-output", "kept", "--evaluator-resume"]
    run(test, *resumed).assert_outcomes(passed=2)
    assert calls(pytester) == ["1", "2"]
    run(test, *resumed, "-k", "r2").assert_outcomes(passed=1, deselected=1)
    run(test, *resumed).assert_outcomes(passed=2)
    assert calls(pytester) == ["1", "2"]


def test_the_test_about_the_gates_needs_all_samples(run: Run, pytester: pytest.Pytester) -> None:
    run(EACH, "-k", "thresholds or r1").assert_outcomes(passed=1, failed=1, deselected=4)
    assert calls(pytester) == ["1", "2", "3", "4", "5"]


def test_epochs_and_variants_are_tests_of_their_own_and_rows_are_read_at_collection(
    run: Run, pytester: pytest.Pytester
) -> None:
    once = marked("iter(quiz.ROWS)", each="True") + "def test_once(): pass"
    pytester.makepyfile(test_once=f"import pytest, quiz\n{once}")
    test = marked(each="True", epochs="2", models="['a/x', 'b/y']") + "def test_it(sample): pass"
    done = run(test, "--collect-only", "-q")
    names = [line for line in done.outlines if line.startswith("test_it.py::")]
    assert len(names) == 8 and "test_it.py::test_it[r1-a/x-epoch1]" in names
    done.stdout.fnmatch_lines(["evaluator_batch: rows of each=True are read twice: *"])


# -- pytest-xdist ----------------------------------------------------------------------------------------------------


def test_the_processes_of_xdist_share_one_run(run: Run, pytester: pytest.Pytester) -> None:
    done = run(
        EACH
        + "\n"
        + marked()
        + "class TestTwo:\n    def test_a(self): pass\n    def test_b(self): pass",
        "-p",
        "xdist",
        "-p",
        "xdist.looponfail",
        "-n",
        "2",
        apart=True,
    )
    done.assert_outcomes(passed=4, failed=2, errors=1, skipped=1)
    assert calls(pytester) == ["1", "1", "2", "2", "3", "4", "5"], "each batch once"
    done.stdout.fnmatch_lines(["evaluator: 2 batches, 7 samples evaluated, *"])


# -- the fixture -----------------------------------------------------------------------------------------------------


def test_the_fixture_runs_batches_in_folders_of_the_test(run: Run) -> None:
    done = run(
        "def test_it(evaluator_batch, tmp_path_factory):\n"
        "    options = dict(scorers=['exact'], evaluator=quiz.make())\n"
        "    one, two = (evaluator_batch('double', rows, **options) for rows in (quiz.ROWS[:1], quiz.ROWS[1:2]))\n"
        "    assert one.ok and two.ok and one.folder != two.folder\n"
        "    assert one.folder.is_relative_to(tmp_path_factory.getbasetemp())\n"
        "async def inside(evaluator_batch):\n"
        "    return evaluator_batch('double', quiz.ROWS[:1], evaluator=quiz.make())\n"
        "def test_async(evaluator_batch):\n"
        "    import asyncio\n"
        "    assert asyncio.run(inside(evaluator_batch)).summary.counts.unscored == 1\n"
        "@pytest.mark.parametrize('check', [True, False])\n"
        "def test_checked(evaluator_batch, check):\n"
        "    result = evaluator_batch('double', quiz.ROWS, scorers=['exact'], thresholds=['accuracy >= 1'],\n"
        "                             evaluator=quiz.make(), check=check)\n"
        "    assert not result.ok\n"
    )
    done.assert_outcomes(passed=3, failed=1)
    done.stdout.fnmatch_lines(
        ["FAILED test_it.py::test_checked?True? - Failed: 4 of 4 samples have a result*"]
    )
    assert "Traceback" not in done.stdout.str() and "runs.py" not in done.stdout.str()


# -- folders ---------------------------------------------------------------------------------------------------------


def test_a_batch_that_was_broken_off_is_gone_on_with(
    run: Run, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    test = (
        marked("quiz.ROWS", retry_errors="True")
        + "def test_all(batch): assert batch.summary.counts.error == 0"
    )
    run(test, "--evaluator-output", "kept").assert_outcomes(failed=1)
    assert calls(pytester) == ["1", "2", "3", "4"]
    again = run(test, "--evaluator-output", "kept")
    again.assert_outcomes(errors=1)
    again.stdout.fnmatch_lines(["*there is a batch already; resume it with --evaluator-resume*"])
    monkeypatch.setenv("MENDED", "1")
    run(test, "--evaluator-output", "kept", "--evaluator-resume").assert_outcomes(passed=1)
    assert calls(pytester) == ["1", "2", "3", "4", "4"], "only what had failed"


def test_going_on_needs_to_know_with_what(run: Run) -> None:
    done = run("", "--evaluator-resume")
    done.stderr.fnmatch_lines(
        ["ERROR: --evaluator-resume resumes the batches in --evaluator-output DIR*"]
    )


def test_a_definition_s_file_and_its_rows_are_found_beside_the_test(
    run: Run, pytester: pytest.Pytester
) -> None:
    folder = pytester.mkdir("sub")
    (folder / "rows.jsonl").write_text(
        json.dumps({"id": "a", "question": "1 + 1?", "target": "2"}) + "\n"
    )
    (folder / "double.toml").write_text(
        'name = "doubles"\ntemplate = "double"\nrows = "rows.jsonl"\nscorers = ["exact"]\n'
        'thresholds = ["accuracy >= 1"]\nlibrary = ["../library"]\noutput = "nowhere"\n'
    )
    (folder / "test_sub.py").write_text(
        "import pytest\n"
        "@pytest.mark.evaluator_batch('double.toml')\ndef test_it(batch): assert batch.summary.counts.passed == 1\n"
        "@pytest.mark.evaluator_batch('double', rows='rows.jsonl', library='../library')\ndef test_rows(batch): pass\n"
        "@pytest.mark.evaluator_batch('double.toml', thresholds=['accuracy < 1'])\ndef test_above(): pass\n"
    )
    done = run("", "sub/test_sub.py")
    done.assert_outcomes(passed=2, failed=1)
    assert not (folder / "nowhere").exists()


# -- where it is not used --------------------------------------------------------------------------------------------


def test_without_batches_nothing_is_loaded() -> None:
    code = (
        "import sys, pytest\nbefore = set(sys.modules)\nimport evaluator.pytest_plugin\n"
        "print(sorted(set(sys.modules) - before))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.strip() == "['evaluator', 'evaluator.lazy_names', 'evaluator.pytest_plugin']"


def test_it_can_be_left_out(
    run: Run, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD")
    pytester.makepyfile(
        test_it="def test_it(pytestconfig): assert not pytestconfig.pluginmanager.has_plugin('evaluator')"
    )
    done = pytester.runpytest_subprocess("-p", "no:evaluator", "test_it.py")
    done.assert_outcomes(passed=1)


def test_a_fixture_of_the_user_s_stands_above_ours_and_the_options_are_in_the_help(
    run: Run,
) -> None:
    done = run(
        "@pytest.fixture\ndef batch(): return 'mine'\ndef test_it(batch): assert batch == 'mine'"
    )
    done.assert_outcomes(passed=1)
    assert "evaluator:" not in done.stdout.str()
    options = set(re.findall(r"--evaluator-[a-z]+", run("", "--help").stdout.str()))
    assert options == {
        f"--evaluator-{name}" for name in ("model", "handler", "live", "output", "resume")
    }
