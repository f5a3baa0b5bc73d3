"""A side effect without a recorded end is repeated, reported to the model, or ends the run."""

from __future__ import annotations

import json
import threading

import pytest
from recovery_cases import BESIDE, BY_NAME, CASES, Case
from recovery_harness import (
    Lab,
    Place,
    files_of,
    label_of,
    recordings,
    result_of,
    root_of,
    snapshot,
)

from evaluator.handler.tool_runner import NOT_REPEATED

# A crash is a number of effects. Of tasks side by side the order of effects differs from run to run, so that all crashes
# of one round may miss what is looked for.
_ROUNDS = 4
ACTS = BY_NAME["atomic with effects"]
WITH_EFFECTS = [case for case in CASES if case.effects]


def places_in_doubt(lab: Lab, case: Case, most: int = 99) -> list[tuple[Place, int, str, str]]:
    """Runs killed with an effect in flight: each with its task, the effect's path and its line."""
    found: list[tuple[Place, int, str, str]] = []
    crashes = list(lab.reference(case).crashes(("before", "after")))
    for number, crash in enumerate(_ROUNDS * crashes):
        if found and number % len(crashes) == 0:
            break
        place = lab.place(case)
        assert place.do(crash=crash) is None
        steps = snapshot(case, recordings(place.tasks)).acts_in_flight
        root = root_of(place.tasks)
        if steps and root is not None:
            label = label_of(case, steps[0])
            assert label is not None
            found.append((place, root, steps[0].start.path, label))
            if len(found) == most:
                break
        else:
            place.remove()
    assert found
    return found


@pytest.mark.parametrize("case", WITH_EFFECTS, ids=str)
def test_asked_to_stop_it_stops_names_the_step_and_does_nothing(lab, case):
    for place, root, path, label in places_in_doubt(lab, case, 3):
        is_nested = len(recordings(place.tasks)) > 1
        files, posts, effects = files_of(place.tasks), place.posts(), place.effects()
        said = place.do(root, unfinished="stop")
        assert said["outcome"]["status"] == "FAILED"
        assert path in said["outcome"]["message"], (path, said["outcome"]["message"])
        assert place.posts() == posts and place.effects() == effects
        if not is_nested:
            assert files_of(place.tasks) == files
        said = place.do(root, unfinished="repeat")
        assert result_of(said["outcome"]) == lab.reference(case).result
        assert place.effects()[label] <= 2


def test_asked_to_stop_it_makes_no_call_beside_the_step_in_doubt(lab):
    reference = lab.reference(BESIDE)
    for crash in _ROUNDS * list(reference.crashes(("before",))):
        # The answer of the call beside the script is held back, so that it is in flight when the script ends.
        place = lab.place(BESIDE)
        gate = lab.server.gates[place.key] = threading.Event()
        lab.server.held[place.key] = "tell of a"
        assert place.do(crash=crash) is None
        gate.set()
        taken = snapshot(BESIDE, recordings(place.tasks))
        if taken.acts_in_flight and taken.calls_in_flight == 1 and place.effects():
            break
    else:
        raise AssertionError("the script and the call were never in flight together")
    root = root_of(place.tasks)
    files, posts = files_of(place.tasks), place.posts()
    said = place.do(root, unfinished="stop")
    assert said["outcome"]["status"] == "FAILED" and "inputs.b" in said["outcome"]["message"]
    assert place.posts() == posts
    assert files_of(place.tasks) == files
    assert result_of(place.do(root)["outcome"]) == reference.result
    assert sum((place.posts() - reference.posts).values()) == 1


def test_asked_to_tell_the_model_it_does_not_repeat_the_call_and_says_so(lab):
    places = places_in_doubt(lab, ACTS)
    assert {label for *_, label in places} == set(ACTS.effects)
    for place, root, path, label in places:
        before = place.effects()[label]
        said = place.resume_twice(root, unfinished="tell")
        assert said["outcome"]["status"] == "COMPLETE"
        assert place.effects()[label] == before
        step = recordings(place.tasks)[root].steps
        last = [step for step in step if step.start.path == path][-1]
        assert last.end is not None and last.end.output == NOT_REPEATED
        assert any(NOT_REPEATED in json.dumps(body) for body in lab.server.bodies[place.key])
        assert said["again_posts"] == 0


def test_a_script_has_nobody_to_tell_and_stops(lab):
    for place, root, path, _ in places_in_doubt(lab, BY_NAME["script"]):
        files = files_of(place.tasks)
        said = place.do(root, unfinished="tell")
        assert said["outcome"]["status"] == "FAILED" and path in said["outcome"]["message"]
        assert files_of(place.tasks) == files


def test_without_anybody_to_ask_it_stops(lab):
    place, root, path, _ = places_in_doubt(lab, ACTS, 1)[0]
    files = files_of(place.tasks)
    said = place.do(root, unfinished="ask")
    assert said["outcome"]["status"] == "FAILED" and path in said["outcome"]["message"]
    assert files_of(place.tasks) == files


def test_a_tool_that_only_reads_is_repeated_without_a_question(lab):
    case = BY_NAME["atomic with read_file"]
    reference, seen = lab.reference(case), 0
    for crash in reference.crashes(("before",)):
        place = lab.place(case)
        assert place.do(crash=crash) is None
        root = root_of(place.tasks)
        if root is None or not any(
            step.start.kind == "tool" and step.end is None
            for step in recordings(place.tasks)[root].steps
        ):
            continue
        seen += 1
        said = place.do(root, unfinished="stop")
        assert result_of(said["outcome"]) == reference.result
    assert seen
