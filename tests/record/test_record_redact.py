"""Secrets are replaced by their names wherever they occur; nothing else changes."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator.record.redact import Redactor

# Put together here, so that no scanner takes this file for a leak.
SHAPES = [
    ("api-key", "sk-" + "ant-api03-" + "a1B2" * 6),
    ("aws-key", "AKIA" + "Q" * 16),
    ("aws-key", "ASIA" + "Q" * 16),
    *(("github-token", f"gh{kind}_" + "x1" * 18) for kind in "pousr"),
    ("github-token", "github_" + "pat_" + "x1" * 18),
    ("google-key", "AIza" + "z" * 35),
    ("slack-token", "xoxb-" + "12345678901-abc"),
    ("hugging-face-token", "hf_" + "k" * 34),
    ("private-key", "-----BEGIN RSA " + "PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----"),
]


def test_values_under_telling_names_are_hidden_and_settings_are_not() -> None:
    redactor = Redactor.from_environment(
        {
            "OPENAI_API_KEY": "key-value-1",
            "GITHUB_TOKEN": "token-value",
            "DB_PASSWORD": "pass-value-9",
            "my_secret": "secret-value",
            "SHORT_KEY": "1234567",
            "TOKENIZERS_PARALLELISM": "sequential",
            "MAX_TOKENS": "100000000",
            "SSL_KEY": "/etc/ssl/private.key",
            "MONKEY": "bananas-bananas",
        }
    )
    text = "key-value-1 token-value pass-value-9 secret-value 1234567 sequential 100000000 /etc/ssl/private.key"
    assert redactor.redact(text + " bananas-bananas") == (
        "[redacted:OPENAI_API_KEY] [redacted:GITHUB_TOKEN] [redacted:DB_PASSWORD] [redacted:my_secret]"
        " 1234567 sequential 100000000 /etc/ssl/private.key bananas-bananas"
    )


@pytest.mark.parametrize(("name", "secret"), SHAPES)
def test_what_is_shaped_like_a_secret_is_hidden(name: str, secret: str) -> None:
    assert Redactor().redact(f"<{secret}>") == f"<[redacted:{name}]>"


def test_a_bearer_token_is_hidden_and_the_word_is_not() -> None:
    assert Redactor().redact("Authorization: Bearer " + "abcdef0123456789==") == (
        "Authorization: Bearer [redacted:bearer]"
    )
    assert Redactor().redact("the bearer of this letter") == "the bearer of this letter"


@pytest.mark.parametrize("text", ["task-management-and-other-things", "ask-me-anything-at-all-please", "risk-free"])
def test_words_that_only_contain_a_prefix_are_left_alone(text: str) -> None:
    assert Redactor().redact(text) is text


def test_of_two_secrets_the_longer_is_meant() -> None:
    redactor = Redactor({"A_KEY": "abcdefgh", "B_KEY": "abcdefgh-ijkl"})
    assert redactor.redact("abcdefgh-ijkl abcdefgh") == "[redacted:B_KEY] [redacted:A_KEY]"


@given(st.text(min_size=8, max_size=20), st.text(max_size=10), st.text(max_size=10))
def test_a_secret_is_found_in_texts_keys_and_json_inside_texts(secret: str, before: str, after: str) -> None:
    redactor = Redactor({"X": secret})
    marked = before + secret + after
    value = {"a": [marked], marked: 1, "json": json.dumps({"k": secret}), "n": 3, "none": None}
    assert redactor.suspects(json.dumps(value))
    assert redactor.suspects(json.dumps(value, ensure_ascii=False))
    read = redactor.redact_value(value)
    assert "[redacted:X]" in read["a"][0]
    assert "[redacted:X]" in read["json"]
    assert (read["n"], read["none"]) == (3, None)
    assert not any(marked == key for key in read)


def test_the_secrets_do_not_show_in_the_repr() -> None:
    assert repr(Redactor({"X": "very-secret"})) == "<Redactor of 1 secrets>"
