"""The soft limit on open files is raised for a batch; what the hard limit does not allow lowers the concurrency."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap

import pytest

SOURCE = """
    import json, resource, sys
    wanted, soft, hard = map(int, sys.argv[1:])
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    from evaluator.limits.call_limiter import fit_concurrency
    fitting = fit_concurrency(wanted)
    print(json.dumps([fitting, *resource.getrlimit(resource.RLIMIT_NOFILE)]))
"""


def fit(wanted: int, soft: int, hard: int) -> list[int]:
    argv = [sys.executable, "-c", textwrap.dedent(SOURCE), *map(str, (wanted, soft, hard))]
    return json.loads(subprocess.run(argv, capture_output=True, text=True, check=True).stdout)


@pytest.mark.parametrize(
    ("wanted", "soft", "hard"), [(10, 256, 256), (10, 1024, 4096), (100, 1024, 1024)]
)
def test_a_limit_that_suffices_stays(wanted: int, soft: int, hard: int) -> None:
    assert fit(wanted, soft, hard) == [wanted, soft, hard]


def test_the_soft_limit_is_raised_as_far_as_needed() -> None:
    fitting, soft, hard = fit(150, 256, 4096)
    assert fitting == 150 and 256 < soft < 2000 and hard == 4096


@pytest.mark.parametrize("soft", [128, 256])
def test_the_concurrency_fits_the_hard_limit(soft: int) -> None:
    fitting, raised, hard = fit(150, soft, 256)
    assert 10 <= fitting < 30 and raised == hard == 256


def test_at_least_one_sample_is_evaluated() -> None:
    assert fit(150, 40, 40)[0] == 1
