"""The time for hostile inputs: template files, and answers under hostile JSON Schemas.

    python bench/hostile.py [--show 5]

The inputs are those of `tests/security/test_attempts_bounds.py` and
`tests/output/test_schema_bounds.py`, where work is counted. Here each is as large as the
bounds allow, or larger, and is measured in seconds of CPU. The tests need pytest.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path

from figures import HERE, Figure, parser_for, remarks, report

from evaluator.library import TemplateLibrary
from evaluator.library.bounds import CallCounter
from evaluator.output.schema import compile_schema

GOAL_LOAD_S = 2.0
GOAL_CHECK_S = 2.0
# So many of each repeated part that the file has just under 20,000 elements, or 4 MB.
SIZES = (2_400, 4_800, 6_600, 9_900)


def seconds(call: Callable[[], object]) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


def load(path: Path) -> None:
    library = TemplateLibrary.load(path, shipped=False)
    counter = CallCounter(library)
    for template in library.templates.values():
        counter.bound(template.node)


def measure(show: int, say: Callable[[str], None]) -> list[Figure]:
    sys.path += [str(HERE.parent / "tests" / folder) for folder in ("security", "output")]
    attempts, schemas = import_module("test_attempts_bounds"), import_module("test_schema_bounds")
    files = {name: xml(hostile) for name, (xml, hostile, _, _) in attempts.REFUSED.items()}
    for name, xml in attempts.LINEAR.items():
        files |= {f"{name}, {size}": xml(size) for size in SIZES}
    times: list[tuple[float, str]] = []
    with tempfile.TemporaryDirectory(prefix="evaluator-bench-") as folder:
        path = Path(folder) / "hostile.xml"
        for name, xml in files.items():
            path.write_text(xml, encoding="utf-8")
            times.append((seconds(lambda: load(path)), f"{name} ({len(xml) / 1e6:.1f} MB)"))
    times.sort(reverse=True)
    for elapsed, name in times[:show]:
        say(f"{elapsed:.2f} s  {name}")
    checks = {name: (schema, good) for name, (schema, good, _) in schemas.HOSTILE.items()}
    checks |= {
        f"{name}, not fitting": (schema, bad)
        for name, (schema, _, bad) in schemas.HOSTILE.items()
        if bad
    }
    checked: list[tuple[float, str]] = []
    for name, (document, value) in (checks | schemas.SLOW).items():
        schema = compile_schema(document)
        checked.append((seconds(partial(schema.check, value)), name))
    checked.sort(reverse=True)
    for elapsed, name in checked[:show]:
        say(f"{elapsed:.2f} s  {name}")
    return [
        Figure(
            f"load and bound, worst of {len(times)} hostile files", times[0][0], "s", GOAL_LOAD_S
        ),
        Figure(
            f"check by a JSON Schema, worst of {len(checked)} hostile ones",
            checked[0][0],
            "s",
            GOAL_CHECK_S,
        ),
    ]


def main() -> None:
    parser = parser_for(__doc__)
    parser.add_argument(
        "--show", type=int, default=5, help="how many of the slowest inputs to name"
    )
    arguments = parser.parse_args()
    report(measure(arguments.show, remarks(arguments.json)), as_json=arguments.json)


if __name__ == "__main__":
    main()
