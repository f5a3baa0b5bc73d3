"""A run that is killed at any effect on its task folder, and resumed, ends as if nothing had happened.

The counts are printed at the end of: python -m pytest tests/recovery -n 2 -q
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from typing import Any

import pytest
from recovery_cases import BY_NAME, CASES, COMPOSITE, Case
from recovery_harness import HEADER, Counts, Lab, crashes, root_of, sweep

# Killed inside each write too. What a torn write leaves is what the effect before it left and a torn
# tail, which is cut off at every byte in `test_recovery_cuts.py`: other cases need not repeat it.
TORN = ("atomic with read_file", "atomic, every step synced", "sequential", "subtask")
# The other cases share most of the way with these: they are killed at one of two effects, in turn at the even and at the
# odd ones.
OTHERS_EVERY = 2
# Each of its operators is a case of its own.
COMPOSITE_EVERY = 6


def check(counts: Counts, record_property: Any) -> None:
    record_property("sweep", counts.to_dict())
    assert not counts.problems, "\n".join(counts.problems)
    assert counts.resumed > 0 and counts.killed == counts.points


def from_its_header(
    lab: Lab, case: Case, hows: tuple[str, ...] = ("before", "half", "after")
) -> list[list[Any]]:
    """The crashes of a case without those before its header, where nothing of it is on disk yet."""
    if case.sync == "step":
        # Its folders are synced before the header.
        return list(lab.reference(case).crashes(hows))
    before = [
        [kind for kind, *_ in lab.reference(each).points[:HEADER]] for each in (case, CASES[0])
    ]
    assert before[0] == before[1], "what comes before is swept with the first case alone"
    return [crash for crash in lab.reference(case).crashes(hows) if crash[0] >= HEADER]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_killed_at_an_effect_and_resumed_it_ends_the_same(lab, case, record_property):
    if case is CASES[0]:
        plans = lab.reference(case).crashes()
    elif case.name in TORN:
        plans = from_its_header(lab, case)
    else:
        first = CASES.index(case) % OTHERS_EVERY
        plans = from_its_header(lab, case, ("before", "after"))[first::OTHERS_EVERY]
    counts = sweep(lab, case, ([crash] for crash in plans), Counts(case.name))
    check(counts, record_property)
    assert counts.points == counts.resumed + counts.begun


def test_the_composite_killed_and_resumed_ends_the_same(lab, record_property):
    plans = from_its_header(lab, COMPOSITE, ("before", "after"))[::COMPOSITE_EVERY]
    counts = sweep(lab, COMPOSITE, ([crash] for crash in plans), Counts("composite"))
    check(counts, record_property)
    assert counts.points == counts.resumed + counts.begun


# -- killed while it is resumed -----------------------------------------------------------------------------------


def killed_again(lab: Lab, case: Case, first: list[Any], every: int) -> Iterator[list[list[Any]]]:
    """Plans that kill the run at `first`, and its resumption at each of its own effects, or at some of them."""
    place = lab.place(case)
    assert place.do(crash=first) is None
    root = root_of(place.tasks)
    if root is not None:
        said = place.do(root)
        assert said is not None
        points = [tuple(point) for point in said["effects"]]
        yield from ([first, second] for second in list(crashes(points))[::every])
    place.remove()


def firsts(lab: Lab, case: Case, hows: tuple[str, ...]) -> list[list[Any]]:
    return [crash for crash in from_its_header(lab, case, hows) if crash[0] > HEADER]


@pytest.mark.parametrize(("name", "every"), [("sequential", 3), ("subtask", 4), ("script", 2)])
def test_killed_at_any_effect_of_the_resumption_too_it_ends_the_same(
    lab, name, every, record_property
):
    case = BY_NAME[name]
    plans = (
        plan
        for first in firsts(lab, case, ("half",))[:: 2 * every]
        for plan in killed_again(lab, case, first, every)
    )
    check(sweep(lab, case, plans, Counts(f"{name}, and its resumption")), record_property)


@pytest.mark.parametrize("case", [*CASES, COMPOSITE], ids=str)
def test_killed_here_and_there_in_the_resumption_it_ends_the_same(lab, case, record_property):
    found = firsts(lab, case, ("half",))
    plans = killed_again(lab, case, found[len(found) // 3], 41 if case is COMPOSITE else 17)
    check(
        sweep(lab, case, plans, Counts(f"{case.name}, and here and there its resumption")),
        record_property,
    )


@pytest.mark.parametrize(
    ("case", "at"), [(COMPOSITE, 13), (COMPOSITE, 20), (BY_NAME["subtask in a subtask"], 14)]
)
def test_killed_over_and_over_it_still_comes_to_its_end(lab, case, at, record_property):
    counts = Counts(f"{case.name}, killed over and over after {at} effects")
    sweep(lab, case, iter([repeat([at, "half"], 60)]), counts, until_it_ends=True)
    record_property("sweep", counts.to_dict())
    assert not counts.problems, "\n".join(counts.problems)
    assert counts.resumed == 1 and 2 < counts.killed < 60


# -- the sweep itself ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "name", "said"),
    [
        ("forgets what was answered", "sequential", "done again"),
        ("forgets what was answered", "script", "done again"),
        ("takes an old answer", "sequential", "another result"),
    ],
)
def test_the_sweep_notices_a_resumption_that(lab, fault, name, said):
    case = BY_NAME[name]
    plans = iter([[crash] for crash in from_its_header(lab, case, ("before", "after"))[::2]])
    counts = sweep(lab, case, plans, Counts(name), fault=fault)
    assert any(said in problem for problem in counts.problems)
