"""The templates have no errors, and the batch runs through with the simulated model."""

from pathlib import Path

import pytest

from evaluator import TemplateLibrary

PROJECT = Path(__file__).parent.parent


def test_templates_have_no_errors():
    library = TemplateLibrary.load(PROJECT / "templates", shipped=False)
    assert not library.errors, "\n".join(map(str, library.errors))


@pytest.mark.evaluator_batch(PROJECT / "evaluator.toml")
def test_every_row_gets_a_result(batch):
    assert batch.summary.counts.error == 0
    assert batch.summary.counts.unscored == 0
