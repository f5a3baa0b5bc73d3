"""`evaluator match` takes words and nodes, explains each score, and says with its exit code that nothing fits."""

from __future__ import annotations

import json
from typing import Any

import pytest

NODE = (
    '<task type="atomic"><description>Translate a letter into another language</description></task>'
)


def test_the_table_shows_weights_and_what_a_template_does_not_hold(cli: Any) -> None:
    ran = cli("match", "translate this libretto into French", "--json")
    best = json.loads(ran.out)[0]
    assert (ran.code, best["template"], best["missed"]) == (0, "translate", ["libretto"])
    table = cli("match", "translate it")
    assert "translate (name 0." in table.out
    assert "   not held: translate" in table.out


def test_explain_shows_all_that_counted_for_one_template(cli: Any) -> None:
    words = "check whether every claim of this article is supported by evidence of the source"
    ran = cli("match", words)
    assert "…" in ran.out
    ran = cli("match", words, "--explain", "check_claims")
    assert ran.code == 0, ran
    for term in ("claim", "supported", "evidence", "source", "not held"):
        assert term in ran.out
    assert "Score of check_claims: " in ran.out
    found = json.loads(cli("match", words, "--explain", "check_claims", "--json").out)
    assert found["template"] == "check_claims"
    assert found["missed"] == ["every"]
    assert cli("match", "review this code", "--explain", "review_code").code == 0
    for name, says in (("nothing_such", "nothing_such"), ("title_of", "is a function")):
        ran = cli("match", words, "--explain", name)
        assert (ran.code, says in ran.err) == (2, True)


def test_a_task_that_run_would_not_match_is_said(cli: Any) -> None:
    more = NODE.replace("</description>", '</description><output_format type="json"/>')
    assert "evaluates this task as it is written" in cli("match", more).out
    assert "as it is written" not in cli("match", NODE).out


@pytest.mark.parametrize("request_", ["qqqq zzzz", "turn off the lights in the kitchen"])
def test_the_exit_code_says_that_nothing_fits(cli: Any, request_: str) -> None:
    ran = cli("match", request_)
    assert ran.code == 1
    assert "No template fits" in ran.out
    ran = cli("match", request_, "--json")
    assert ran.code == 1
    assert isinstance(json.loads(ran.out), list)
    assert "No template fits" in ran.err


def test_a_node_is_taken_as_an_argument_and_from_files(cli: Any, write: Any) -> None:
    write("node.xml", NODE)
    for request in (NODE, "@node.xml", "node.xml"):
        ran = cli("match", request, "--json")
        assert ran.code == 0, ran
        assert json.loads(ran.out)[0]["template"] == "translate"


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        (
            '<task type="script"><description>x</description><command>true</command></task>',
            "only atomic templates",
        ),
        ('<task type="atomic"><oops/></task>', "oops"),
        ("@missing.xml", "missing.xml"),
    ],
)
def test_a_request_that_cannot_be_matched_is_explained(cli: Any, request_: str, says: str) -> None:
    ran = cli("match", request_)
    assert ran.code in (1, 2)
    assert says in ran.err


def test_a_composite_that_fits_is_named_though_it_is_never_chosen(cli: Any) -> None:
    for command in ("match", "run"):
        ran = cli(command, "count the lines, words and characters of a text")
        assert ran.code == 1
        assert "'count_text' has words of the request, but is of type script" in ran.out + ran.err


def test_a_composite_that_holds_more_of_the_words_is_named(cli: Any) -> None:
    assert "'review_code'" in cli("match", "Find bugs in my Python function").out
    assert "'review_code'" not in cli("match", "Explain this Python function").out


def test_a_refusal_says_that_the_request_seems_to_be_in_another_language(cli: Any) -> None:
    assert "another language" in cli("match", "Fasse diesen Text zusammen").out
    assert "another language" not in cli("match", "turn off the lights in the kitchen").out


def test_templates_overlap_lists_what_will_be_mistaken(cli: Any, write: Any) -> None:
    for name in ("first", "second"):
        write(
            f"lib/{name}.xml",
            f'<task name="{name}" type="atomic"><description>Bake a loaf of bread</description></task>',
        )
    ran = cli("templates", "overlap", "--library", "lib")
    assert ran.code == 0, ran
    assert "first" in ran.out
    assert "loaf" in ran.out
    rows = json.loads(cli("templates", "overlap", "--library", "lib", "--json").out)
    assert {"first", "second"} <= {row["template"] for row in rows}
    assert rows[0]["shared"]
    assert rows[0]["advice"]
    assert "first" in cli("templates", "--library", "lib").out
