"""A search end to end: recorded, resumable at any kill, verified from its records."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evaluator import EvaluatorError, ProviderError, RecordError, TaskBusy, UsageError, disk
from evaluator.files.atomic import locked_file
from evaluator.improve import Certificate, OutOfBudget, improve_sync, verify, write_template
from evaluator.improve.certificate import as_lines, as_page, read_certificate
from evaluator.improve.log import open_log, read_log
from tests.improve.capitals import (
    BETTER,
    EXAMPLE,
    HARMFUL,
    REFUSED,
    TEMPLATE,
    USELESS,
    Model,
    evaluator_in,
    rows,
    search,
)

CHILD = """\
import os, signal, sys
from pathlib import Path
from evaluator import disk
from tests.improve.capitals import Model, search

folder, kill_at = Path(sys.argv[1]), int(sys.argv[2])
effects = 0

def counted(effect):
    def call(*args, **kwargs):
        global effects
        effects += 1
        if effects == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return effect(*args, **kwargs)
    return call

class Counted(Model):
    def __call__(self, request):
        with open(folder / "calls.txt", "a") as file:
            file.write(str(hash(str(request.messages))) + "\\n")
        return super().__call__(request)

disk.write = counted(disk.write)
disk.rename = counted(disk.rename)
search(folder, Counted())
print(effects)
"""


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Certificate, Model]:
    """A complete search, which tests do not change."""
    folder = tmp_path_factory.mktemp("done")
    model = Model()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EVALUATOR_CONFIG_DIR", str(folder / "user"))
        return folder, search(folder, model), model


@pytest.fixture(autouse=True)
def user(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test has a user's folder of its own, with its own count of looks, or that of `done`."""
    folder = tmp_path
    if "done" in request.fixturenames:
        folder = request.getfixturevalue("done")[0]
    monkeypatch.setenv("EVALUATOR_CONFIG_DIR", str(folder / "user"))


def copied(done: tuple[Path, Certificate, Model], folder: Path) -> Path:
    return shutil.copytree(done[0] / "search", folder / "search")


def test_a_better_prompt_is_found_and_its_gain_is_shown(
    done: tuple[Path, Certificate, Model],
) -> None:
    folder, certificate, _ = done
    decision = certificate.decision
    assert decision is not None
    assert certificate.is_accepted
    assert certificate.content["candidate"]["why"] == BETTER["why"]
    assert 0.1 < (decision.low or 0) < (decision.gain or 0)
    text = as_lines(certificate, 100)
    for part in (
        "accepted",
        f"{decision.n} of {decision.of} rows",
        "gained:",
        "look 1",
        "seconds per row",
    ):
        assert part in text
    assert "+    Reply with its name alone: &lt;b&gt; &amp; co." in text
    assert "```diff" in as_page(certificate)
    assert (folder / "templates" / "capital.xml").read_text() == TEMPLATE


def test_the_proposer_sees_train_rows_only(done: tuple[Path, Certificate, Model]) -> None:
    folder, _, model = done
    begin = json.loads((folder / "search" / "log.jsonl").read_text().split("\n")[0])
    train = {id for id, _, _ in begin["rows"]["train"]}
    others = {id for part in ("selection", "sealed") for id, _, _ in begin["rows"][part]}
    assert model.questions
    for question in model.questions:
        shown = question.split("<rows>")[1].split("</rows>")[0].strip().split("\n")
        ids = {json.loads(line)["id"] for line in shown}
        assert ids <= train
        assert not any(
            f"country-{id}?" in question or f'country-{id}"' in question for id in others
        )


def test_a_search_that_is_resumed_when_complete_makes_no_call(
    done: tuple[Path, Certificate, Model], tmp_path: Path
) -> None:
    copied(done, tmp_path)
    model = Model()
    again = search(tmp_path, model)
    assert not model.calls
    assert again.digest == done[1].digest


def test_a_killed_search_gives_the_same_certificate(
    done: tuple[Path, Certificate, Model], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVALUATOR_CONFIG_DIR", str(tmp_path / "user"))
    for kill_at in (35, 60):
        killed = subprocess.run(
            [sys.executable, "-c", CHILD, str(tmp_path), str(kill_at)],
            capture_output=True,
            check=False,
        )
        assert killed.returncode == -9, killed.stderr.decode()
    assert not (tmp_path / "search" / "certificate.json").exists()
    model = Model()
    certificate = search(tmp_path, model)
    assert certificate.digest == done[1].digest
    before = (tmp_path / "calls.txt").read_text().split()
    calls = len(before) + model.calls.total()
    assert calls <= done[2].calls.total() + 2 * 4
    assert asyncio.run(verify(certificate.path)).is_own


@pytest.mark.parametrize("place", ["answer", "log", "certificate", "template", "missing", "cut"])
def test_changed_records_are_found(
    done: tuple[Path, Certificate, Model], tmp_path: Path, place: str
) -> None:
    folder = copied(done, tmp_path)
    path = folder / "certificate.json"
    assert asyncio.run(verify(path)).certificate.digest == done[1].digest
    if place == "answer":
        results = folder / "batches" / "c0-sealed" / "results.jsonl"
        lines = results.read_bytes().splitlines(keepends=True)
        results.write_bytes(b"".join([*lines[:-1], lines[0]]))
    elif place == "log":
        log = folder / "log.jsonl"
        log.write_bytes(log.read_bytes().replace(b'"seed": 0', b'"seed": 1'))
    elif place == "cut":
        log = folder / "log.jsonl"
        log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[:-1]))
    elif place == "certificate":
        path.write_text(path.read_text().replace('"accepted": true', '"accepted": false'))
    elif place == "template":
        (folder / "template.xml").write_text(TEMPLATE.replace("Think", "Don't think"))
    else:
        shutil.rmtree(folder / "batches" / "c0-sealed")
    with pytest.raises(RecordError):
        asyncio.run(verify(path))


def test_a_certificate_of_another_user_is_verified_and_not_written(
    done: tuple[Path, Certificate, Model], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = copied(done, tmp_path) / "certificate.json"
    monkeypatch.setenv("EVALUATOR_CONFIG_DIR", str(tmp_path / "other"))
    verification = asyncio.run(verify(path))
    assert not verification.is_own
    with pytest.raises(EvaluatorError, match="another user"):
        write_template(verification.certificate, evaluator_in(tmp_path, Model()))
    with pytest.raises(EvaluatorError, match="another user"):
        search(tmp_path, Model())


def test_an_accepted_template_is_written_once(
    done: tuple[Path, Certificate, Model], tmp_path: Path
) -> None:
    certificate, _ = read_certificate(copied(done, tmp_path) / "certificate.json")
    file = tmp_path / "templates" / "capital.xml"
    file.parent.mkdir()
    file.write_bytes(TEMPLATE.replace("\n", "\r\n").encode())
    write_template(certificate, evaluator_in(tmp_path, Model()))
    written = file.read_bytes()
    assert b"\r\n" in written
    assert written.count(b"\n") == written.count(b"\r\n")
    text = written.decode().replace("\r\n", "\n")
    assert f"<!-- evaluator improve: certificate {certificate.digest}, better, gain +" in text
    assert 'version="1.5"' in text
    assert "What is the capital of {{country}}?" in text
    with pytest.raises(UsageError, match="has changed"):
        write_template(certificate, evaluator_in(tmp_path, Model()))


def test_without_a_gain_nothing_is_accepted_or_written(tmp_path: Path) -> None:
    certificate = search(tmp_path, Model(), proposals=[USELESS, HARMFUL], rounds=1)
    assert not certificate.is_accepted
    with pytest.raises(UsageError, match="nothing is written"):
        write_template(certificate, evaluator_in(tmp_path, Model()))


def test_proposals_of_a_person_are_checked_as_those_of_a_model(tmp_path: Path) -> None:
    model = Model()
    certificate = search(tmp_path, model, proposals=[BETTER, REFUSED, EXAMPLE], rounds=1)
    assert not model.questions
    assert [each["why"] for each in certificate.candidates()[1:]] == [BETTER["why"]]
    assert certificate.is_accepted


def test_a_second_search_on_the_same_rows_is_a_second_look(tmp_path: Path) -> None:
    looks: list[int] = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        found = search(tmp_path / name, Model(), proposals=[BETTER], rounds=1, seed=5)
        assert found.decision is not None
        looks.append(found.decision.look)
    assert looks == [1, 2]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"scorers": []}, "give a scorer"),
        ({"models": ["a", "b"]}, "one model"),
        ({"epochs": 2}, "epochs is no option of improve"),
        ({"measure": "exat"}, "did you mean `exact`"),
        ({"gain": 0}, "gain is 0"),
        ({"rows": rows(20)}, "are needed; give more rows"),
    ],
)
def test_what_cannot_be_searched_is_an_error_before_the_first_call(
    tmp_path: Path, options: dict[str, Any], why: str
) -> None:
    model = Model()
    with pytest.raises(UsageError, match=why):
        search(tmp_path, model, **options)
    assert not model.calls


def test_a_search_with_other_options_is_not_resumed(
    done: tuple[Path, Certificate, Model], tmp_path: Path
) -> None:
    folder = copied(done, tmp_path)
    with pytest.raises(UsageError, match="differs in `settings`"):
        search(tmp_path, Model(), seed=9)
    with pytest.raises(RecordError, match="there is a search already"):
        search(tmp_path, Model(), resume=False)
    with locked_file(folder / "log.jsonl"), pytest.raises(TaskBusy):
        search(tmp_path, Model())


def test_only_templates_with_a_prompt_and_a_file_are_edited(tmp_path: Path) -> None:
    evaluator = evaluator_in(tmp_path, Model())
    script = tmp_path / "templates" / "listing.xml"
    script.write_text(
        '<task name="listing" type="script"><description>d</description>'
        "<command>ls</command></task>"
    )
    evaluator.library.reload()
    with pytest.raises(UsageError, match="asks no model"):
        improve_sync("listing", rows(), evaluator=evaluator, scorers=["exact"])
    evaluator.library.add('<task name="loose" type="atomic"><description>d</description></task>')
    with pytest.raises(UsageError, match="is in no file"):
        improve_sync("loose", rows(), evaluator=evaluator, scorers=["exact"])


def test_a_proposer_that_fails_is_asked_again_when_the_search_is_resumed(tmp_path: Path) -> None:
    class Down(Model):
        def __call__(self, request: Any) -> Any:
            text = super().__call__(request)
            if "Propose" in request.messages[-1].content:
                return ProviderError("HTTP 401: no", kind="auth", status=401, retryable=False)
            return text

    with pytest.raises(UsageError, match=r"the proposer failed: .*401.*; resume the search"):
        search(tmp_path, Down(), rounds=1)
    assert search(tmp_path, Model([BETTER]), rounds=1).is_accepted


AT_ONCE = {"concurrency": 64}
"""All rows are under way before the batch could stop for failures in a row."""


class Flaky(Model):
    """Fails where `fails(text)`."""

    def __init__(self, fails: Callable[[str], bool]) -> None:
        super().__init__([BETTER])
        self.fails = fails

    def __call__(self, request: Any) -> Any:
        text = super().__call__(request)
        if self.fails("\n".join(message.content for message in request.messages)):
            return ProviderError("HTTP 401: no", kind="auth", status=401, retryable=False)
        return text


def test_a_template_without_any_value_ends_the_search_which_can_be_resumed(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"c0-selection: none of \d+ rows has a value: .*401"):
        search(tmp_path, Flaky(lambda text: True), rounds=1, limits=AT_ONCE)
    assert not (tmp_path / "search" / "certificate.json").exists()
    certificate = search(tmp_path, Model([BETTER]), rounds=1)
    assert certificate.is_accepted
    assert certificate.candidates()[0]["mean"] > 0


def test_rows_without_targets_end_the_search_with_the_reason(tmp_path: Path) -> None:
    untold = [{"id": row["id"], "country": row["country"]} for row in rows()]
    with pytest.raises(UsageError, match=r"none of \d+ rows has a value: no target"):
        search(tmp_path, Model([BETTER]), rows=untold)


def test_an_outage_at_the_sealed_rows_does_not_decide(tmp_path: Path) -> None:
    def is_sealed(text: str) -> bool:
        return "name alone" in text and (tmp_path / "search/batches/c1-sealed").exists()

    with pytest.raises(UsageError, match=r"c1-sealed: none of \d+ rows has a value: .*401"):
        search(tmp_path, Flaky(is_sealed), rounds=1, limits=AT_ONCE)
    certificate = search(tmp_path, Model([BETTER]), rounds=1)
    assert certificate.decision is not None
    assert certificate.decision.accepted
    assert certificate.decision.look == 1


def test_errors_on_selection_rows_are_counted_where_means_are_shown(
    done: tuple[Path, Certificate, Model], tmp_path: Path
) -> None:
    certificate = search(tmp_path, Flaky(lambda text: "7?" in text and "Propose" not in text))
    missing = certificate.candidates()[0]["missing"]
    assert missing > 0
    count = certificate.content["split"]["selection"]["rows"]
    assert f"({missing} of {count} without a value count as 0)" in as_lines(certificate, 200)
    assert asyncio.run(verify(certificate.path)).is_own
    assert "without a value" not in as_lines(done[1], 200)


def test_resume_without_a_search_makes_no_call(tmp_path: Path) -> None:
    model = Model()
    with pytest.raises(RecordError, match="there is no search to resume"):
        search(tmp_path, model, resume=True)
    with pytest.raises(UsageError, match="name it as output"):
        search(tmp_path, model, resume=True, output=None)
    assert not model.calls
    assert not (tmp_path / "search").exists()


def test_a_budget_that_does_not_reach_the_decision_is_said(tmp_path: Path) -> None:
    class Dear(Model):
        def __call__(self, request: Any) -> Any:
            from evaluator import ModelResponse, Usage

            text = super().__call__(request)
            return ModelResponse(text, "stop", usage=Usage(10, 1, cost_usd=0.01, turns=1))

    model = Dear([BETTER])
    with pytest.raises(OutOfBudget):
        search(tmp_path, model, limits={"concurrency": 4, "max_cost": 0.1}, rounds=1)
    assert model.calls.total() <= 14
    certificate = search(tmp_path, model, limits={"concurrency": 4, "max_cost": 4.0}, rounds=1)
    assert certificate.is_accepted
    assert certificate.content["price_unit"] == "US dollars"
    assert certificate.measured["spent_usd"] <= 4


def test_an_entry_of_the_log_is_written_whole_where_the_disk_takes_a_part_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "write", lambda fd, data: os.write(fd, data[:9]))
    with open_log(tmp_path / "log.jsonl") as log:
        log.append({"event": "begin"})
        log.append({"event": "base"})
    assert read_log(tmp_path / "log.jsonl") == ([{"event": "begin"}, {"event": "base"}], True)
