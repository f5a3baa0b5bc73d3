"""What `to_dict` gives is valid against the published schema."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import jsonschema
import pytest

from evaluator import ModelResponse, ProviderError

SCHEMA = json.loads(
    (Path(__file__).parent.parent / "schemas" / "result.json").read_text(encoding="utf-8")
)
XML = """<task name="t" type="atomic"><description>d</description><inputs><input name="x"/></inputs>
<output_format type="json" schema="object"/></task>"""


def raise_provider(_):
    raise ProviderError("no", kind="authentication", status=401)


@pytest.mark.parametrize(
    ("script", "inputs"),
    [
        (["{}"], {}),
        (["no json"], {}),
        ([ModelResponse("cut", "length")], {}),
        (raise_provider, {}),
        (["{}"], {"y": 1}),
    ],
)
def test_every_outcome_is_valid_against_the_schema(make_evaluator, script, inputs):
    outcome = asyncio.run(make_evaluator(XML, script=script).evaluate("t", inputs))
    jsonschema.Draft202012Validator(SCHEMA).validate(json.loads(json.dumps(outcome.to_dict())))
