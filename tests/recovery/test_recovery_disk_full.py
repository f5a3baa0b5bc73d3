"""A disk that is full while a run is resumed gives a clear error and no damage; with space the run continues."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from recovery_cases import BY_NAME, COMPOSITE, Case
from recovery_harness import HEADER, Lab, Place, Reference, recordings, result_of, root_of, snapshot

from evaluator.record import encoding, grammar


def killed_in_the_middle(lab: Lab, case: Case, share: float) -> tuple[Place, int]:
    crashes = [crash for crash in lab.reference(case).crashes(("half",)) if crash[0] > HEADER]
    place = lab.place(case)
    assert place.do(crash=crashes[int(share * (len(crashes) - 1))]) is None
    root = root_of(place.tasks)
    assert root is not None
    return place, root


def check_full_and_then_not(place: Place, root: int, reference: Reference, **full: Any) -> bool:
    """One resumption without space and one with; whether the first came to feel it."""
    case = place.case
    before, posts_then = snapshot(case, recordings(place.tasks)), place.posts()
    whole = {number: _records(place, number) for number in recordings(place.tasks)}
    said = place.do(root, **full)
    outcome = said["outcome"]
    warnings = [
        text for text in outcome["notes"].get("warnings", ()) if "is not in its task file" in text
    ]
    if outcome["status"] == "FAILED":
        text = str(outcome)
        assert "task file" in text and ("No space left" in text or "File too large" in text), (
            outcome
        )
    middle, posts_middle = snapshot(case, recordings(place.tasks)), place.posts()
    for number, data in whole.items():
        assert _records(place, number).startswith(data)
    after = place.resume_twice(root)
    assert result_of(after["outcome"]) == reference.result and not after["again_posts"]
    posts = place.posts()
    assert not [key for key in before.answered if posts[key] > posts_then[key]]
    assert not [key for key in middle.answered if posts[key] > posts_middle[key]]
    extra = sum((posts - reference.posts).values())
    assert extra <= before.calls_in_flight + middle.calls_in_flight
    return outcome["status"] == "FAILED" or bool(warnings)


def _records(place: Place, number: int) -> bytes:
    """The whole records of a task's file, without the status in its title, which is no part of them."""
    path = next(place.tasks.glob(f"*/TASK-{number}.md"))
    data = path.read_bytes()
    state = grammar.scan(data, str(path))
    return data[state.hint_offset + len(encoding.STATUS_HINTS["running"]) : state.offset]


def numbers(said: dict[str, Any]) -> Iterator[int]:
    yield from (
        n for n, (kind, *_) in enumerate(said["effects"]) if kind in ("pwrite", "write", "open")
    )


@pytest.mark.parametrize(
    ("case", "share", "every"),
    [
        (BY_NAME["atomic with effects"], 0.4, 1),
        (BY_NAME["subtask in a subtask"], 0.5, 2),
        (COMPOSITE, 0.5, 9),
    ],
    ids=str,
)
def test_no_space_left_at_any_write_of_the_resumption(lab, case, share, every):
    place, root = killed_in_the_middle(lab, case, share)
    said = place.do(root)
    felt = 0
    for number in list(numbers(said))[::every]:
        place, root = killed_in_the_middle(lab, case, share)
        felt += check_full_and_then_not(place, root, lab.reference(case), full=number)
        place.remove()
    assert felt > 3


def test_a_limit_on_the_size_of_files_at_any_place_of_the_resumption(lab):
    case = BY_NAME["atomic with effects"]
    reference = lab.reference(case)
    place, root = killed_in_the_middle(lab, case, 0.4)
    start = next(place.tasks.glob("active/TASK-*.md")).stat().st_size
    assert place.do(root) is not None
    end = next(place.tasks.glob("done/TASK-*.md")).stat().st_size
    felt = 0
    for most in range(start - 40, end, 193):
        place, root = killed_in_the_middle(lab, case, 0.4)
        felt += check_full_and_then_not(place, root, reference, most_bytes=most)
        place.remove()
    assert felt > 10
