"""Secrets are replaced by their names wherever they occur; nothing else changes."""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Callable
from itertools import product
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from evaluator import TaskStore
from evaluator.record.redact import Redactor
from evaluator.record.steps import StepEnd, StepStart, Summary, fingerprint
from tests.tables import each_case

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


@pytest.mark.parametrize(("name", "secret"), SHAPES)
@pytest.mark.parametrize("before", ["\n", "\t", "\r", "é", "\x1b"])
def test_what_is_shaped_like_a_secret_is_found_in_json_behind_an_escape(
    name: str, secret: str, before: str
) -> None:
    for levels in range(1, 4):
        text = f"one{before}{secret}"
        for _ in range(levels):
            text = json.dumps(text)
        assert Redactor().suspects(text)
        assert f"[redacted:{name}]" in Redactor().redact(text)


def test_a_bearer_token_is_hidden_and_the_word_is_not() -> None:
    assert Redactor().redact("Authorization: Bearer " + "abcdef0123456789==") == (
        "Authorization: Bearer [redacted:bearer]"
    )
    assert Redactor().redact("the bearer of this letter") == "the bearer of this letter"


@pytest.mark.parametrize(
    "text", ["task-management-and-other-things", "ask-me-anything-at-all-please", "risk-free"]
)
def test_words_that_only_contain_a_prefix_are_left_alone(text: str) -> None:
    assert Redactor().redact(text) is text


def test_of_two_secrets_the_longer_is_meant() -> None:
    redactor = Redactor({"A_KEY": "abcdefgh", "B_KEY": "abcdefgh-ijkl"})
    assert redactor.redact("abcdefgh-ijkl abcdefgh") == "[redacted:B_KEY] [redacted:A_KEY]"


@given(st.text(min_size=8, max_size=20), st.text(max_size=10), st.text(max_size=10))
def test_a_secret_is_found_in_texts_keys_and_json_inside_texts(
    secret: str, before: str, after: str
) -> None:
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


ENCODINGS: dict[str, Callable[[bytes], str]] = {
    "reversed": lambda data: data.decode()[::-1],
    "hex": bytes.hex,
    "upper-case hex": lambda data: data.hex().upper(),
    "URL": lambda data: quote(data, safe=""),
    "URL, lower case": lambda data: re.sub(
        "%..", lambda match: match[0].lower(), quote(data, safe="")
    ),
    "form": quote_plus,
    "JSON": lambda data: json.dumps(data.decode()),
    "JSON in JSON": lambda data: json.dumps(json.dumps(data.decode())),
    **{
        f"base64 after {before} bytes, {after} bytes follow": lambda data, b=before, a=after: (
            base64.b64encode(b"x" * b + data + b"y" * a).decode()
        )
        for before in range(4)
        for after in range(3)
    },
    **{
        f"URL-safe base64 after {before} bytes": lambda data, b=before: base64.urlsafe_b64encode(
            b"x" * b + data
        ).decode()
        for before in range(3)
    },
}


@pytest.mark.parametrize("secret", ['s3cret/+va"lue é', "plainvalue12", "ab cd~ef?gh>>??"])
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_the_usual_encodings_of_a_secret_are_hidden(secret: str, encoding: str) -> None:
    encoded = ENCODINGS[encoding](secret.encode())
    assert Redactor({"OTHER": "another-value"}).redact(encoded) == encoded
    read = Redactor({"X": secret}).redact(f"<{encoded}>")
    assert "[redacted:X]" in read
    # Of base64, at most the digits that the neighbouring bytes are part of are left.
    assert len(read) <= len("<[redacted:X]>") + 16


@pytest.mark.parametrize(
    ("name", "value", "hidden"),
    [
        ("PGPASSWORD", "pg-pass-word", "pg-pass-word"),
        ("MYSQL_PWD", "my-pass-word", "my-pass-word"),
        ("SMTP_PASS", "mail-pass-word", "mail-pass-word"),
        ("AWS_CREDS", "some-creds-here", "some-creds-here"),
        ("GITLAB_PAT", "glpat-something", "glpat-something"),
        ("DATABASE_URL", "postgres://app:p%40ss-word@db.example:5432/app", "p%40ss-word"),
        ("REDIS_URL", "redis://:redis-pass@cache.example/0", "redis-pass"),
        ("ANYTHING", "amqp://user:queue-pass@mq.example", "queue-pass"),
        ("APP_DSN", "host=db.example user=app password=dsn-pass-1 sslmode=require", "dsn-pass-1"),
        ("DB", "Server=db.example;User Id=app;Pwd=ado-pass-1;", "ado-pass-1"),
        (
            "SENTRY_DSN",
            "https://publickey0@sentry.example/1",
            "https://publickey0@sentry.example/1",
        ),
    ],
)
def test_passwords_are_hidden_whatever_the_variable_is_called(
    name: str, value: str, hidden: str
) -> None:
    read = Redactor.from_environment({name: value}).redact(f"it is {value}.")
    assert hidden not in read
    assert "[redacted:" + name in read
    if "example" in value and hidden != value:
        assert "example" in read, "only the password is secret"


def test_a_password_in_a_url_is_hidden_decoded_too() -> None:
    redactor = Redactor.from_environment(
        {"DATABASE_URL": "postgres://app:p%40ss-word@db.example/app"}
    )
    assert "p@ss-word" not in redactor.redact("it is p@ss-word")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PWD", "/home/me/a project (1)"),
        ("OLDPWD", "elsewhere entirely"),
        ("COMPASS_DIRECTION", "north-by-northwest"),
        ("HOMEPAGE", "https://example.org/path?a=b"),
        ("EDITOR_PATH", "visual-studio-code"),
    ],
)
def test_other_variables_are_left_alone(name: str, value: str) -> None:
    assert Redactor.from_environment({name: value}).redact(value) == value


def test_variables_that_are_named_are_hidden_whatever_they_are_called() -> None:
    environment = {"CORPORATE_GATEWAY": "gateway-value"}
    assert Redactor.from_environment(environment).redact("gateway-value") == "gateway-value"
    redactor = Redactor.from_environment(environment, also=["CORPORATE_GATEWAY"])
    assert redactor.redact("gateway-value") == "[redacted:CORPORATE_GATEWAY]"


# -- other encodings ---------------------------------------------------------------------------------------------------


DUMPED = "not-a-real/key&9876543210<abc>xyz"


def xxd(text: str) -> str:
    lines = []
    for at in range(0, len(text), 16):
        row = text[at : at + 16].encode().hex()
        groups = " ".join(row[i : i + 4] for i in range(0, len(row), 4))
        lines.append(f"{at:08x}: {groups:<39}  {text[at : at + 16]}\n")
    return "".join(lines)


def hexdump(text: str) -> str:
    lines = []
    for at in range(0, len(text), 16):
        row = text[at : at + 16].encode()
        groups = f"{row[:8].hex(' ')}  {row[8:].hex(' ')}"
        lines.append(f"{at:08x}  {groups:<49} |{text[at : at + 16]}|\n")
    return "".join(lines)


def od(text: str) -> str:
    rows = [(at, text[at : at + 16].encode().hex(" ")) for at in range(0, len(text), 16)]
    return "".join(f"{at:07o} {row}\n" for at, row in rows)


def od_x(text: str) -> str:
    """`od -x`: words of two bytes, the second one first, as this machine's processor stores them."""
    lines = []
    for at in range(0, len(text), 16):
        row = text[at : at + 16].encode()
        row += b"\0" * (len(row) % 2)
        words = " ".join(f"{row[i + 1]:02x}{row[i]:02x}" for i in range(0, len(row), 2))
        lines.append(f"{at:07o} {words}\n")
    return "".join(lines) + f"{len(text):07o}\n"


def od_c(text: str) -> str:
    special = {"\n": "\\n", "\t": "\\t", "\0": "\\0"}
    lines = []
    for at in range(0, len(text), 16):
        row = text[at : at + 16]
        lines.append(f"{at:07o}{''.join(special.get(c, c).rjust(4) for c in row)}\n")
    return "".join(lines)


def plain_digits(text: str) -> str:
    return "\n".join(text[at : at + 30].encode().hex() for at in range(0, len(text), 30))


def c_array(text: str) -> str:
    rows = [text[at : at + 12] for at in range(0, len(text), 12)]
    return ",\n".join("  " + ", ".join(f"0x{ord(c):02x}" for c in row) for row in rows)


OTHER_ENCODINGS: dict[str, Callable[[str], str]] = {
    "xxd": xxd,
    "xxd, capitals": lambda text: xxd(text).replace("2d", "2D").replace("6c", "6C"),
    "hexdump -C": hexdump,
    "od -t x1": od,
    "od -x": od_x,
    "od -x, without addresses": lambda text: re.sub("(?m)^[0-7]{7}", "", od_x(text)),
    "hexdump": lambda text: re.sub("(?m)^[0-7]{7}", "00000a0", od_x(text)),
    "od -c": od_c,
    "od -c, after a line": lambda text: od_c("x\n" + text),
    "od -c, without addresses": lambda text: re.sub("(?m)^[0-7]{7}", "", od_c(text)),
    "xxd -p": plain_digits,
    "xxd -i": c_array,
    "colons": lambda text: f"bytes: {text.encode().hex(':')}",
    "bytes of Python": lambda text: "b'" + "".join(f"\\x{ord(c):02x}" for c in text) + "'",
    "base64 in lines": lambda text: base64.encodebytes(text.encode()).decode(),
    "base64 in short lines": lambda text: "\n".join(
        re.findall(".{1,20}", base64.b64encode(text.encode()).decode())
    ),
    "base64, indented": lambda text: (
        base64.encodebytes(text.encode()).decode().replace("\n", "\n  ")
    ),
    "base64 in a mail": lambda text: (
        base64.encodebytes(text.encode()).decode().replace("\n", "\r\n")
    ),
    "JSON escapes": lambda text: "".join(f"\\u{ord(c):04x}" for c in text),
    "JSON with an escaped slash": lambda text: text.replace("/", "\\/"),
    "JSON of Go": lambda text: text.replace("&", "\\u0026").replace("<", "\\u003c"),
    "HTML": html.escape,
    "XML, decimal": lambda text: "".join(f"&#{ord(c)};" for c in text),
    "XML, hexadecimal": lambda text: "".join(f"&#x{ord(c):x};" for c in text),
}


@each_case(("name", "before"), product(OTHER_ENCODINGS, range(0, 20, 3)))
def test_a_secret_is_found_in_other_encodings_wherever_a_line_ends(name: str, before: int) -> None:
    redactor = Redactor({"MY_KEY": DUMPED})
    encode = OTHER_ENCODINGS[name]
    tail = " and a tail of words that is long enough for another line"
    text = encode("x" * before + "y" * 30 + DUMPED + tail)
    for shown in (text, json.dumps({"a": text}), json.dumps(json.dumps({"a": text}))):
        assert redactor.suspects(shown)
        redacted = redactor.redact(shown)
        assert "[redacted:MY_KEY]" in redacted
        assert not redactor.suspects(redacted)
        assert not any(DUMPED[at : at + 8] in redacted for at in range(len(DUMPED) - 8))
    assert redactor.redact_value({"a": [text]})["a"][0] == redactor.redact(text)
    other = encode("x" * before + "y" * 30 + "another text / of & the < same > length!" + tail)
    assert redactor.redact(other) is other  # the control


@each_case(("name", "before"), product(OTHER_ENCODINGS, range(0, 20, 3)))
def test_a_secret_among_several_texts_is_found_in_any_encoding(name: str, before: int) -> None:
    redactor = Redactor({"MY_KEY": DUMPED})
    encode = OTHER_ENCODINGS[name]
    texts = ["role", encode("x" * before + "y" * 30 + DUMPED + " and a tail"), "id\ndead beef"]
    others = ["role", encode("x" * before + "y" * 30 + "another text / of & the same length"), "id"]
    for _ in range(2):
        assert not redactor.suspects_any(others)  # the control
        assert redactor.suspects_any(texts)
        assert redactor.known == set(others)


@each_case(("name", "end"), product(OTHER_ENCODINGS, ["", " ", "\t", " \t"]))
def test_a_secret_at_the_end_of_a_text_is_found_whatever_text_follows(name: str, end: str) -> None:
    redactor = Redactor({"MY_KEY": DUMPED})
    text = OTHER_ENCODINGS[name]("x" * 20 + DUMPED).strip() + end
    assert redactor.redact(text) != text
    assert redactor.suspects_any([text, "another text &amp;"])


@each_case(("name", "secret"), SHAPES)
def test_what_is_shaped_like_a_secret_is_found_among_several_texts(name: str, secret: str) -> None:
    assert Redactor().suspects_any(["a", f"so:\n{secret}", "b"]), name
    assert not Redactor().suspects_any(["a", f"so:\n{secret[:2]}", "b"])


def test_the_texts_that_are_known_to_hold_no_secret_are_few() -> None:
    redactor = Redactor({"X": "very-secret"})
    for number in range(40):
        assert not redactor.suspects_any(["role", f"{number:09}" * 10_000])
        assert len("".join(redactor.known)) <= 1_000_000
        assert f"{number:09}" * 10_000 in redactor.known
    assert redactor.suspects_any(["role", "very-secret"])
    long = "a longer one " * 100_000
    assert not redactor.suspects_any([long])
    assert long not in redactor.known


@pytest.mark.parametrize("distance", range(400, 700, 5))
def test_a_dump_is_decoded_as_a_whole_wherever_something_before_looks_like_its_part(
    distance: int,
) -> None:
    part = " ".join(f"{byte:02x}" for byte in DUMPED.encode()[:-1])
    dump = "\n".join(
        f"{at:08x}  " + " ".join(f"{byte:02x}" for byte in DUMPED.encode()[at : at + 8])
        for at in range(0, len(DUMPED), 8)
    )
    text = f"{part} !\n{'.' * distance}\n{dump}\n"
    assert "[redacted:KEY]" in Redactor({"KEY": DUMPED}).redact(text)


def test_a_dump_of_characters_stays_where_no_secret_is_known() -> None:
    dump = od_c("not a secret of anybody" * 40)
    assert Redactor().redact(dump) is dump
    assert Redactor({"KEY": DUMPED}).redact(dump) is dump


@given(st.text(max_size=300))
@example("\\u0026\\" * 40)
@example("0" * 40 + "\\n" * 5)
@example("\n".join(["A" * 20] * 5) + "\\")
def test_any_text_without_a_secret_stays(text: str) -> None:
    assert Redactor({"KEY": DUMPED}).redact(text) is text


@pytest.mark.parametrize("is_packed", [False, True])
def test_a_secret_that_json_shows_otherwise_is_in_no_record(
    tmp_path: Path, is_packed: bool
) -> None:
    secret = 'hunter2-"hunter2\\'
    scrub = Redactor({"MY_KEY": secret})
    store = TaskStore(tmp_path, redactor=scrub, is_packed=is_packed)
    shown = f"It is {secret[::-1]}."
    journal = store.create("ask", {"key": shown})
    number = journal.begin(StepStart("m", "model", "m", {"messages": [shown]}))
    journal.end(number, StepEnd("success", {"content": shown}, 0.0))
    journal.close(Summary("completed", 1, 0, 0.0, result={"content": shown}))
    store.close()
    hidden = "It is [redacted:MY_KEY]."
    recording = store.read(journal.id)
    assert recording.known_header().inputs == {"key": hidden}
    assert recording.steps[0].start.args == {"messages": [hidden]}
    assert recording.steps[0].end is not None
    assert recording.steps[0].end.output == {"content": hidden}
    assert fingerprint([shown], scrub) == fingerprint([hidden], scrub)


@pytest.mark.parametrize("is_packed", [False, True])
def test_records_that_are_written_together_lose_their_secrets_and_stay_signed(
    tmp_path: Path, is_packed: bool
) -> None:
    store = TaskStore(tmp_path, redactor=Redactor({"MY_KEY": DUMPED}), is_packed=is_packed)
    # Without its secret the header has fewer digits in its length, so its status line moves.
    journal = store.create("ask", {"key": DUMPED * 30, "word": "open"}, extra={"shots": [DUMPED]})
    journal.note(StepStart("r", "resolve", "task", {"key": DUMPED}), StepEnd("success", 1, 0.0))
    number = journal.begin(StepStart("m", "model", "m", {"messages": [f"two\nlines {DUMPED}"]}))
    journal.flush()
    journal.end(number, StepEnd("success", {"content": f"It is {DUMPED}."}, 0.0))
    journal.close(Summary("completed", 2, 0, 0.0, result={"content": f"It is {DUMPED}."}))
    other = store.create("ask", {"word": "open"})  # the control
    other.close(Summary("completed", 0, 0, 0.0))
    store.close()
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*.md"))
    assert DUMPED.encode() not in written
    recording = store.read(journal.id)
    assert recording.unsigned is None and recording.status == "completed"
    assert not recording.warnings
    header = recording.known_header()
    assert header.inputs == {"key": "[redacted:MY_KEY]" * 30, "word": "open"}
    assert header.extra == {
        "shots": ["[redacted:MY_KEY]"],
        "redacted_inputs": ["key"],
        "redacted_shots": True,
    }
    assert recording.steps[1].end is not None
    assert recording.steps[1].end.output == {"content": "It is [redacted:MY_KEY]."}
    assert store.read(other.id).known_header().extra == {}
