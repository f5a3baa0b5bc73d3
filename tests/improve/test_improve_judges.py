"""A judge's template is improved by the labels of people, and decided on labels that it has not
seen.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evaluator import Evaluator, SimulatedBackend, UsageError
from evaluator.batch import Batch
from evaluator.batch.labels import append_labels
from evaluator.improve import improve_judge_sync, verify, write_template
from evaluator.improve.judges import judge_search
from tests.batch.labelled import judged_batch, label_of, label_some

TEMPLATE = """\
<task name="judge" type="atomic" version="1">
  <description>Judge an answer</description>
  <inputs>
    <input name="answer" type="string" required="true">The answer</input>
    <input name="passed" type="string" required="false">Not given by anybody</input>
  </inputs>
  <instructions>Judge: {{ answer }}</instructions>
  <output_format type="json" schema="boolean"/>
</task>
"""
STRICT = [{"op": "set", "element": "system", "text": "Be strict."}]
KIND = [{"op": "set", "element": "system", "text": "Be kind."}]
JUDGE = {"type": "graded", "name": "judge", "template": "judge", "inputs": {"answer": "output"}}


class Model:
    """Passes every answer until it is told to be strict; proposes that, and a useless edit."""

    def __init__(self) -> None:
        self.prompts: list[str] = []

    def __call__(self, request: Any) -> str:
        text = "\n".join(message.content for message in request.messages)
        self.prompts.append(text)
        if "<template>" in text:
            edits = [{"why": "kind", "edits": KIND}, {"why": "strict", "edits": STRICT}]
            return json.dumps({"proposals": edits})
        return json.dumps("Be strict" not in text or "right" in text)


def evaluator_in(folder: Path, model: Model) -> Evaluator:
    templates = folder / "templates"
    templates.mkdir(exist_ok=True)
    (templates / "judge.xml").write_text(TEMPLATE)
    return Evaluator(
        templates,
        backend=SimulatedBackend(script=model),
        tasks_dir=None,
        notice=lambda line: None,
    )


def labelled(folder: Path, **manifest: Any) -> Batch:
    batch = judged_batch(folder / "batch", samples=100, **manifest)
    label_some(batch, 90)
    return batch


def test_a_judge_agrees_with_more_labels_that_the_search_has_not_seen(tmp_path: Path) -> None:
    batch = labelled(tmp_path)
    first_wrong = next(result for result in batch.results() if result.content == "wrong")
    append_labels(batch.folder, [label_of(first_wrong, "bob", note="no such place")])
    model = Model()
    evaluator = evaluator_in(tmp_path, model)
    certificate = improve_judge_sync(
        batch.folder, JUDGE, evaluator=evaluator, rounds=1, output=tmp_path / "search"
    )
    decision = certificate.decision
    assert decision is not None and decision.accepted and decision.after == 1.0
    assert certificate.content["candidate"]["why"] == "strict"
    assert all(row.endswith(": people fail it") for row in decision.gained)
    question = next(prompt for prompt in model.prompts if "<template>" in prompt)
    assert "the judge passes it, people fail it" in question
    assert not any("people" in prompt for prompt in model.prompts if prompt is not question)
    assert asyncio.run(verify(certificate.path)).is_own
    write_template(certificate, evaluator)
    assert "Be strict." in (tmp_path / "templates" / "judge.xml").read_text()


def test_only_labels_that_decide_become_rows(tmp_path: Path) -> None:
    batch = judged_batch(tmp_path / "batch", samples=6, epochs=2)
    first, second, third, fourth, *_ = batch.results()
    labels = [label_of(result) for result in (first, second, third, fourth)]
    labels[1] = replace(labels[1], shown="another text")
    contrary = label_of(replace(third, content="wrong" if third.content == "right" else "right"))
    labels.append(replace(contrary, labeller="bob", shown=labels[2].shown))
    labels.append(label_of(fourth, "bob", note="clear"))
    append_labels(batch.folder, labels)
    found = judge_search(evaluator_in(tmp_path, Model()), batch, JUDGE)
    rows = [row["judged_answer"] for row in found.rows]
    assert [row["notes"] for row in rows] == [[], ["clear"]]
    assert rows[0]["inputs"] == {"answer": first.content}
    assert rows[1]["id"].startswith("s001 × epoch 2: people ")
    assert [row["cluster"] for row in rows] == ["sample s000", "sample s001"]


@pytest.mark.parametrize(
    ("scorer", "why"),
    [
        (None, "define the judge again"),
        ("judge", "define the judge again"),
        ("exact", "a judge is one of graded, reference and rubric"),
        ({"type": "pairwise", "other": "target"}, "a judge is one of"),
        ({"type": "reference", "name": "judge"}, "no label of an answer measures 'judge'"),
    ],
)
def test_a_scorer_that_cannot_be_improved_is_refused(tmp_path: Path, scorer: Any, why: str) -> None:
    # Arguments that this user has not signed name no judge. Without targets, `reference` has none.
    batch = labelled(tmp_path, arguments={"scorers": [JUDGE]})
    with pytest.raises(UsageError, match=why):
        judge_search(evaluator_in(tmp_path, Model()), batch, scorer)
