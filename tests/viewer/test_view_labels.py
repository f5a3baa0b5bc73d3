"""The labelling page: blind, stored at once, for several labellers, and only by its own form."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from evaluator.batch import LabelVerdict
from evaluator.batch.folder import LABELS, BatchFolder
from evaluator.batch.labels import append_labels, read_labels
from evaluator.viewer import ReportBatch, write_report
from tests.batch.labelled import judged_batch, label_of, label_some, pair_batch, result_of
from tests.viewer.site import Answer, Site, visit

HIDDEN = ("small", "large", "some/model", "topic", "s0", "passed_by", "bob")


async def batch_address(site: Site) -> str:
    found = re.search(r"/batch/([0-9a-f]+)", (await site.get("/batches")).text)
    assert found is not None
    return found[1]


class Labeller:
    """A person at the page of one batch."""

    def __init__(self, site: Site, folder: str, name: str, **settings: str) -> None:
        self.site = site
        self.href = f"/label/{folder}"
        self.settings = {"labeller": name, **settings}
        self.shown: dict[str, Any] = {}

    async def look(self, **more: str) -> Answer:
        answer = await self.site.get(self.href, params=self.settings | more)
        if answer.status == 200:
            self.shown = answer.data
        return answer

    async def send(self, action: str = "label", **fields: str) -> Answer:
        question = self.shown["question"]
        sent = {
            "question": question["id"],
            "shown": question["shown"],
            "token": self.shown["token"],
        }
        data = self.settings | sent | {"action": action} | fields
        headers = {"Origin": self.site.address}
        answer = await self.site.ask("POST", self.href, data=data, headers=headers)
        if answer.status == 200:
            self.shown = answer.data
        return answer


def test_a_sample_is_labelled_blind_and_what_was_hidden_follows_at_the_end(tmp_path: Path) -> None:
    batch = judged_batch(tmp_path / "b", scorers={"judge": {"rubric": "It must be right."}})
    label_some(batch, 20, labeller="bob")

    async def steps(site: Site) -> None:
        folder = await batch_address(site)
        assert (await site.get(f"/label/{folder}")).data["choices"]["scorers"] == ["judge"]
        ada = Labeller(site, folder, "ada")
        for word, note in (("p", ""), ("f", "wrong"), ("0.25", ""), ("?", "")):
            before = await ada.look()
            for hidden in HIDDEN:
                assert hidden not in before.shown, hidden
            titles = [title for title, _ in ada.shown["question"]["sections"]]
            assert titles == ["question", "criteria", "answer"]
            assert (await ada.send(answer=word, note=note, seconds="1.5")).status == 200
        assert ada.shown["count"] == 4
        labels = read_labels(batch.folder)[20:]
        assert [label.verdict for label in labels] == ["passed", "failed", "failed", "undecided"]
        assert (labels[1].note, labels[1].seconds, labels[2].value) == ("wrong", 1.5, 0.25)
        end = (await ada.look(finish="1")).data["finished"]
        assert end["count"] == 4 and {"judge", "label"} <= end["labels"][0].keys()
        assert any("quiz × small" in line for line in end["lines"])
        assert end["tables"][0]["title"] == "Corrected by labels: quiz × small"
        # The numbers, the chip and the sample page have them too.
        page = (await site.get(f"/batch/{folder}")).data
        (group,) = page["numbers"]["data"]["batches"][0]["summary"]["groups"]
        assert group["calibrations"]["judge"]["labels"] >= 20
        chips = page["matrix"]["chips"]
        assert chips["labelled"] == len({label.key for label in read_labels(batch.folder)})
        few = (await site.get(f"/batch/{folder}", params={"chip": "labelled"})).data["matrix"]
        assert few["count"] == chips["labelled"]
        sample = (await site.get(end["labels"][-1]["href"])).data
        assert ("ada", "passed") in [
            (each["labeller"], each["verdict"]) for each in sample["labels"]
        ]

    visit(tmp_path, steps)


def test_two_labellers_and_a_command_label_at_once_and_undo_is_by_name(tmp_path: Path) -> None:
    batch = judged_batch(tmp_path / "b")

    async def steps(site: Site) -> None:
        folder = await batch_address(site)
        ada = Labeller(site, folder, "ada")
        bob = Labeller(site, folder, "bob")
        for labeller in (ada, bob, ada, bob):
            await labeller.look()
            await labeller.send(answer="p")
        given = read_labels(batch.folder)
        assert [label.labeller for label in given] == ["ada", "bob", "ada", "bob"]
        (elsewhere,) = [result for result in batch.results() if result.key == given[-1].key]
        append_labels(batch.folder, [label_of(elsewhere, "ada", verdict=LabelVerdict.FAILED)])
        await ada.look()
        assert ada.shown["count"] == len(
            {x.key for x in read_labels(batch.folder) if x.labeller == "ada"}
        )
        await ada.send("undo")
        last = read_labels(batch.folder)[-1]
        assert (last.labeller, last.verdict, last.key) == ("ada", "removed", elsewhere.key)
        assert ada.shown["question"]["id"] == elsewhere.key, "it is asked again"
        skipped = ada.shown["question"]["id"]
        await ada.send("skip")
        assert ada.shown["question"]["id"] != skipped
        assert len(read_labels(batch.folder)) == 6

    visit(tmp_path, steps)


def test_two_answers_are_compared_blind(tmp_path: Path) -> None:
    pair_batch(tmp_path / "b", samples=8)

    async def steps(site: Site) -> None:
        folder = await batch_address(site)
        ((sides, names),) = (await site.get(f"/label/{folder}")).data["choices"]["sides"]
        assert names == "small or large"
        ada = Labeller(site, folder, "ada", sides=sides)
        answer = await ada.look()
        assert not any(hidden in answer.shown for hidden in HIDDEN)
        while ada.shown["finished"] is None:
            sections = dict(ada.shown["question"]["sections"])
            await ada.send(answer="1" if sections["first answer"] == "right" else "2")
        (row,) = ada.shown["finished"]["tables"][0]["rows"]
        assert row[0] == "quiz × small and quiz × large" and row[3] == row[6][0] == "4"
        compared = (await site.get(f"/compare?a={folder}")).data["numbers"]["data"]["tables"]
        assert "Preferences of people" in [table["title"] for table in compared]

    visit(tmp_path, steps)


def test_nothing_is_stored_without_the_form_and_for_a_text_that_was_not_shown(
    tmp_path: Path,
) -> None:
    folder_path = judged_batch(tmp_path / "b", samples=4).folder

    async def steps(site: Site) -> None:
        ada = Labeller(site, await batch_address(site), "ada")
        await ada.look()
        question = ada.shown["question"]["id"]
        for problem, fields in (
            ("the form is not of this server", {"token": "x"}),
            ("the answer has changed", {"shown": "x"}),
            ("no such result", {"question": "../../x"}),
            ("no such result", {"question": ""}),
            ("'maybe'", {"answer": "maybe"}),
            ("a note has", {"note": "x" * 10_001, "answer": "p"}),
            ("the name of a labeller", {"labeller": "x" * 201, "answer": "p"}),
            ("who labels?", {"labeller": " ", "answer": "p"}),
            ("points above 0", {"precision": "nan", "answer": "p"}),
            ("no scorer 'other'", {"scorer": "other", "answer": "p"}),
            ("no such two templates", {"sides": "0,7", "answer": "p"}),
            ("no such result", {"question": f"{question}-{question}"}),
            ("no label to undo", {"action": "undo"}),
        ):
            answer = await ada.send(**{"action": "label", "answer": "p", **fields})
            assert answer.status == 400 and problem in answer.data["message"], problem
        for headers in ({}, {"Origin": "http://evil.example"}):
            data = ada.settings | {"token": ada.shown["token"], "question": question}
            assert (await site.ask("POST", ada.href, data=data, headers=headers)).status == 403
        nobody = {"token": ada.shown["token"], "question": question, "answer": "p"}
        headers = {"Origin": site.address}
        assert (await site.ask("POST", ada.href, data=nobody, headers=headers)).status == 400
        await ada.look(action="label", answer="p", question=question)
        assert not (folder_path / LABELS).exists(), "a GET writes nothing"
        with BatchFolder.open(folder_path) as folder:
            result = next(each for each in folder.results() if each.key == question)
            folder.append(replace(result, content="another answer"))
        assert "has changed" in (await ada.send(answer="p")).data["message"]

    visit(tmp_path, steps)


def test_a_stale_label_says_so_and_damaged_labels_leave_the_batch_readable(tmp_path: Path) -> None:
    batch = judged_batch(tmp_path / "b", samples=2)
    (first, _) = batch.results()
    append_labels(batch.folder, [label_of(first)])
    with BatchFolder.open(batch.folder) as folder:
        folder.append(result_of(0, "another answer", True))

    async def steps(site: Site) -> None:
        folder = await batch_address(site)
        (sample,) = (await site.get(f"/sample/{folder}/{first.key}")).data["labels"]
        assert sample["is_stale"] and sample["labeller"] == "ada"
        (batch.folder / LABELS).write_text("damaged\n")
        page = (await site.get(f"/batch/{folder}")).data
        assert page["matrix"]["count"] == 2 and page["matrix"]["chips"]["labelled"] == 0
        assert "labels.jsonl:1" in page["numbers"]["error"]

    visit(tmp_path, steps)


def test_the_report_has_the_corrected_number_beside_the_judge(tmp_path: Path) -> None:
    batch = judged_batch(tmp_path / "b")
    label_some(batch, 30)
    summary = batch.summarise().to_dict()
    write_report(tmp_path / "r.html", [ReportBatch(batch.results(), summary=summary)])
    text = (tmp_path / "r.html").read_text()
    assert '"calibrations":{"judge":{' in text and '"labels":30,"of":60' in text
