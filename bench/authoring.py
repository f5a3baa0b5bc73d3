"""Times `lint` and `fmt` over 1,000 files of templates, each in a fresh process, imports included;
and keystrokes in a project of 1,000 templates. All are CPU times.

    python bench/authoring.py [--count 1000] [--runs 3] [--random 0]

The templates are those of `bench/load.py`. `lint` loads, checks and looks for tools, profiles and
schemas; `fmt` reads each file and lays it out, without writing. The best of `--runs` processes counts.

A keystroke is what the language server does for one: it takes the text, finds what `lint` finds in the
whole project, and offers completions at the cursor; the CPU time of 400 keystrokes in eight files, some
of which break the text. The 99th percentile counts.

`--random 10000` formats that many random templates too, and fails if one means something else
afterwards, or changes when it is formatted again.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from figures import HERE, Figure, parser_for, report
from load import write

LINT_GOAL_S = 1.5
FMT_GOAL_S = 1.0
KEYSTROKE_GOAL_MS = 50.0

START = "import time; started = time.process_time(); import sys; from pathlib import Path\n"
END = "\nprint(time.process_time() - started)"
LINT = """
from evaluator.handler.profiles import load_profiles
from evaluator.interpreter.linting import lint
from evaluator.library import TemplateLibrary
assert not any(d.severity == "error" for d in
               lint(TemplateLibrary.load(sys.argv[1], shipped=False), load_profiles(trust=True)))
"""
FMT = """
from evaluator.xml.format import format_source
from evaluator.xml.source import read_file
for path in Path(sys.argv[1]).rglob("*.xml"):
    format_source(read_file(path))
"""
KEYSTROKES = """
import os
from lsprotocol import types
from evaluator.editor.completion import completions
from evaluator.editor.project import Project
os.chdir(sys.argv[1])
project = Project(Path.cwd(), types.PositionEncodingKind.Utf16)
project.findings()
files = sorted(Path("templates").resolve().rglob("*.xml"))
taken = []
for path in files[:: len(files) // 8][:8]:
    text = path.read_text()
    cursor = text.index("</", text.index("<instructions>") if "<instructions>" in text else 0)
    for number, key in enumerate("write {{ text | upper }} <b>x</b> and <<a>> {% if"):
        text = text[:cursor] + key + text[cursor:]
        cursor += 1
        began = time.process_time()
        project.open(str(path), text, number)
        project.findings()
        document = project.documents[str(path)]
        completions(project, document, document.position(cursor))
        taken.append(time.process_time() - began)
    project.close(str(path))
started = time.process_time() - sorted(taken)[int(len(taken) * 0.99)]
"""


def format_random(count: int) -> None:
    """Formats random templates. Raises: AssertionError, for one whose meaning changes."""
    sys.path.insert(0, str(HERE.parent))
    from hypothesis import HealthCheck, Phase, given, settings

    from tests.xml.test_format import BETWEEN, check_formatted, tasks

    long_run = settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    long_run(given(tasks(), BETWEEN)(check_formatted))()


def seconds(code: str, folder: Path, runs: int) -> float:
    """The best time of `runs` processes."""
    command = [sys.executable, "-c", START + code + END, str(folder)]
    return min(
        float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        for _ in range(runs)
    )


def main() -> None:
    parser = parser_for(__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--random", type=int, default=0)
    arguments = parser.parse_args()
    project = Path(tempfile.mkdtemp(prefix="evaluator-authoring-"))
    folder = project / "templates"
    folder.mkdir()
    try:
        write(folder, arguments.count)
        share = arguments.count / 1000
        figures = [
            Figure(
                f"lint {arguments.count} templates",
                seconds(LINT, folder, arguments.runs),
                "s",
                LINT_GOAL_S * share,
            ),
            Figure(
                f"format {arguments.count} files",
                seconds(FMT, folder, arguments.runs),
                "s",
                FMT_GOAL_S * share,
            ),
            Figure(
                f"a keystroke among {arguments.count} templates, 99th percentile",
                1000 * seconds(KEYSTROKES, project, arguments.runs),
                "ms",
                KEYSTROKE_GOAL_MS,
            ),
        ]
    finally:
        shutil.rmtree(project)
    if arguments.random:
        format_random(arguments.random)
        figures.append(Figure("random templates formatted, none changed", arguments.random, ""))
    report(figures, as_json=arguments.json)


if __name__ == "__main__":
    main()
