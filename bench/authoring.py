"""Times `lint` and `fmt` over 1,000 files of templates, each in a fresh process; imports included.

    python bench/authoring.py [--count 1000] [--runs 3]

The templates are those of `bench/load.py`. `lint` loads, checks and looks for tools, profiles and
schemas; `fmt` reads each file and lays it out, without writing. The best of `--runs` processes counts.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from figures import Figure, parser_for, report
from load import write

LINT_GOAL_S = 1.5
FMT_GOAL_S = 1.0

START = "import time; started = time.perf_counter(); import sys; from pathlib import Path\n"
END = "\nprint(time.perf_counter() - started)"
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
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="evaluator-authoring-"))
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
        ]
    finally:
        shutil.rmtree(folder)
    report(figures, as_json=arguments.json)


if __name__ == "__main__":
    main()
