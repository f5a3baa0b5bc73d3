"""The harness itself: one request that fails or is answered late does not disturb the requests after it."""

from __future__ import annotations

import pytest
from recovery_cases import BY_NAME
from recovery_harness import Zygote

CASE = BY_NAME["sequential"]


class GivenUp(Exception):
    """Stands for the time-out of a test that waits for an answer."""


def test_an_answer_that_comes_too_late_is_not_mistaken_for_the_next_one(lab) -> None:
    zygote = lab.zygote
    place = lab.place(CASE)
    job = place.job()
    (pid,) = place.start(job)
    process = zygote._process
    # A request whose answer nobody reads.
    process.stdin.write(b'{"id": -1, "do": "nothing"}\n')
    assert place.end(pid, job)["outcome"]["status"] == "COMPLETE"
    assert zygote._process is process


def test_after_a_request_that_was_given_up_the_next_one_has_a_fresh_process(
    lab, monkeypatch
) -> None:
    zygote = lab.zygote
    before = zygote._process

    def give_up(*_: object) -> None:
        raise GivenUp

    with monkeypatch.context() as patch:
        patch.setattr(Zygote, "_exchange", give_up)
        with pytest.raises(GivenUp):
            zygote.ask(do="wait", pid=0)
    assert before.returncode is not None
    place = lab.place(CASE)
    assert place.do()["outcome"]["status"] == "COMPLETE"
    assert zygote._process is not before
