"""Removes secrets from what is recorded, before it is written."""

from __future__ import annotations

import json
import os
import re
from base64 import b64encode, urlsafe_b64encode
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, pairwise
from math import isfinite
from typing import Any, Literal, cast
from urllib.parse import quote, quote_plus, unquote

from evaluator.patterns import Pattern
from evaluator.record.encoded import (
    CHARACTER_DUMP,
    HINTS,
    Decoded,
    dumped_bytes,
    joined_lines,
    without_escapes,
)

_NAME = Pattern(
    r"(?:^|_)(?:API_?KEYS?|KEY|KEYS|TOKEN|TOKENS|SECRET|SECRETS|PASS|PASSPHRASE|CREDENTIALS?"
    r"|CREDS|PAT|DSN"
    r"|CONNECTION_STRING|PRIVATE_KEY)(?:_|$)|PASSWORD(?:_|$)|PASSWD(?:_|$)|.PWD(?:_|$)"
)
# The current folder, which every shell sets.
_FOLDERS = frozenset({"PWD", "OLDPWD"})
# The password of a URL, and of a connection string of the forms `password=x` and `Pwd=x;`.
_IN_URL = Pattern(r"[a-z][a-z0-9+.-]*://[^/?#\s:@]*:([^/?#\s]+)@", "i")
_IN_PAIRS = Pattern(
    r"\b(?:password|passwd|pwd|accountkey|sharedaccesskey)\s*=\s*('[^']*'|\"[^\"]*\"|[^\s;]+)", "i"
)
_MIN_CHARS = 8
# Values under such names that are settings, not secrets: redacting them would make records
# unreadable.
_SETTING = Pattern(r"true|false|none|null|yes|enabled|disabled|[0-9]{1,12}|(?:/[\w. -]+)+/?", "i")


def _word(prefix: str, rest: str, before: str = "A-Za-z0-9") -> str:
    """A word that begins with `prefix`: no character of `before` precedes it, except the last one
    of an escape in JSON, as that of a line end.
    """
    return (
        rf"{prefix}(?:(?<![{before}]{prefix})|(?<=\\[bfnrt]{prefix})"
        rf"|(?<=\\u[0-9a-fA-F]{{4}}{prefix})){rest}"
    )


# Each with a text that every match contains: searching for that first is many times faster.
_SOURCES: tuple[tuple[str, str, str], ...] = (
    ("api-key", "sk-", _word("sk-", "[A-Za-z0-9_-]{16,}", before="A-Za-z0-9_-")),
    ("bearer", "earer ", r"(?<=[Bb]earer )[A-Za-z0-9._~+/-]{16,}=*"),
    ("bearer", "BEARER ", r"(?<=BEARER )[A-Za-z0-9._~+/-]{16,}=*"),
    ("aws-key", "AKIA", _word("AKIA", "[A-Z0-9]{16}(?![A-Za-z0-9])")),
    ("aws-key", "ASIA", _word("ASIA", "[A-Z0-9]{16}(?![A-Za-z0-9])")),
    *(("github-token", f"gh{kind}_", _word(f"gh{kind}_", "[A-Za-z0-9]{30,}")) for kind in "pousr"),
    ("github-token", "github_pat_", r"github_pat_[A-Za-z0-9_]{30,}"),
    ("google-key", "AIza", _word("AIza", "[A-Za-z0-9_-]{35}")),
    ("slack-token", "xox", _word("xox", "[abeoprs]-[A-Za-z0-9-]{10,}")),
    ("hugging-face-token", "hf_", _word("hf_", "[A-Za-z0-9]{30,}")),
    (
        "private-key",
        "-----BEGIN ",
        r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
    ),
)
_PATTERNS = [(name, trigger, Pattern(source, "s")) for name, trigger, source in _SOURCES]
# Characters of English texts and JSON, the commonest first; others are rare.
_COMMON = " etaoinsrlhdc\"umpgfy,.:_wbvk-{}\\/01()'A2xjqST"
_PART_CHARS = 6
_WINDOW_BYTES = 3
# Separators; or the end of a line (its text, the break), and the address of the next one.
_BETWEEN_BYTES = (
    r"(?:[\s:,;-]{0,8}"
    r"|[ \t|,]{0,3}[^\n]{0,40}?(?:\r?\n|\\{1,4}n)[ \t]*(?:[0-9a-fA-F]{4,16}:?[ \t]+)?)"
    r"(?:0[xX]|\\{1,4}x)?"
)
# The most characters that a dump needs for a byte, with addresses, separators and a text beside it.
_DUMP_CHARS_PER_BYTE = 20

# The triggers, each with its rarest character: a text without that needs no second search. Those
# with an underscore have one expression: keys of JSON have many.
_TRIGGERS = (
    ("-", "sk-"),
    ("-", "-----BEGIN "),
    ("r", "earer "),
    ("R", "BEARER "),
    ("K", "AKIA"),
    ("I", "ASIA"),
    ("z", "AIza"),
    ("x", "xox"),
)
_UNDERLINED = Pattern("_(?:(?<=gh[pousr]_)|(?<=github_pat_)|(?<=hf_))")
# So much text is not searched again, as far as it consists of the same texts.
_MAX_KNOWN_CHARS = 1_000_000
BETWEEN_TEXTS = '"\n"'
"""What texts are joined with to be searched at once: each is a line of its own, in quotes. So a
dump of bytes begins where its text does, and no two texts look like one that is broken into lines.
"""

ValueTypes = Literal["exact", "json", "other"]
"""Which types the values in a JSON value have.

"exact": texts, integers, booleans, None, lists, tuples and dicts, which all encoders write alike;
"json": floats and subclasses too; "other": also a number that is NaN or infinite, or a type that
is not one of JSON.
"""
Search = tuple[str, Callable[..., re.Match[str] | None]]
"""The character that each match begins with, which a text without a match seldom holds, and the
search.
"""


class Redactor:
    """Replaces known secrets, and texts in the form of one, by `[redacted:NAME]`.

    `secrets` maps a name to the value to hide; values under 8 characters are not hidden. A value is
    found in texts, in keys, and inside texts that are JSON themselves; also reversed, URL-encoded,
    in base64 (alone or inside a longer encoded text), in hexadecimal digits and dumps, with
    escapes of JSON, XML or HTML, and broken into lines. Text without a secret costs one search for
    all forms of all secrets, one for each beginning of a pattern, and a few for other encodings.
    """

    __slots__ = (
        "_dumps",
        "_forms",
        "_longest",
        "_names",
        "_parts",
        "_room",
        "_values",
        "known",
    )

    def __init__(self, secrets: Mapping[str, str] | None = None) -> None:
        names: dict[str, str] = {}
        windows: dict[bytes, list[dict[str, str]]] = {}
        self._longest = 0
        for name, value in (secrets or {}).items():
            if len(value) < _MIN_CHARS:
                continue
            data = value.encode("utf-8", "surrogatepass")
            windows[data] = [
                _windows_in_dump(data),
                _windows_in_words(data, 0),
                _windows_in_words(data, 1),
            ]
            self._longest = max(self._longest, len(data))
            for form in _forms_of(value):
                if len(form) >= _MIN_CHARS:
                    names.setdefault(form, name)
        # Longest first: where one secret begins with another, the longer one is meant.
        ordered = sorted(names, key=len, reverse=True)
        self._names = names
        self._forms = tuple(ordered)
        dumps = list(filter(None, chain.from_iterable(windows.values())))
        self._parts = _searches_for([*map(_parts_of, ordered), *dumps])
        self._dumps = _searches_for(dumps)
        if ordered:
            self._values = re.compile("|".join(map(re.escape, ordered)))
        else:
            self._values = None
        # Texts that were searched, and that `redact` would not change.
        self.known: set[str] = set()
        self._room = _MAX_KNOWN_CHARS

    @classmethod
    def from_environment(
        cls, environment: Mapping[str, str] | None = None, also: Iterable[str] = ()
    ) -> Redactor:
        """Hides the values of environment variables with KEY, TOKEN, SECRET, PASSWORD and the like
        in their names, unless they are a number, a path or a flag; the passwords in URLs and
        connection strings; and the values of the variables named in `also` in any case.
        """
        if environment is None:
            variables = os.environ
        else:
            variables = environment
        wanted = set(also)
        secrets: dict[str, str] = {}
        for name, value in variables.items():
            parts: list[str] = []
            if "@" in value:
                parts += _IN_URL.findall(value)
            if "=" in value:
                parts += _IN_PAIRS.findall(value)
            if name in wanted or (not parts and _is_secret(name, value)):
                secrets[name] = value
            forms = dict.fromkeys(
                form for part in parts for form in (part.strip("'\""), unquote(part))
            )
            secrets |= {f"{name} password{number or ''}": form for number, form in enumerate(forms)}
        return cls(secrets)

    def suspects_any(self, texts: Iterable[str]) -> bool:
        """Whether `redact` would change one of the texts; if not, they may be `known` then."""
        new = dict.fromkeys(texts)
        if not new:
            return False
        # No match goes on in another text, and a line break here would be one more to look at.
        text = "\0".join(new)
        is_like_one = _has_trigger(text) or (
            self._values is not None
            and (self._holds_part(text) or _may_dump_characters(text) or _hint_in(text))
        )
        if is_like_one and self.suspects(BETWEEN_TEXTS.join(new)):
            return True
        if len(text) <= _MAX_KNOWN_CHARS:
            self._room -= len(text)
            if self._room < 0:
                self.known.clear()
                self._room = _MAX_KNOWN_CHARS - len(text)
            self.known.update(new)
        return False

    def suspects(self, text: str) -> bool:
        """Whether `text`, or the JSON in it, contains what `redact_value` would change."""
        if _has_trigger(text) and self._is_like_one(text):
            return True
        if self._values is None:
            return False
        if self._holds_part(text) and (self._holds_form(text) or any(self._in_dump(text))):
            return True
        if _may_dump_characters(text) and any(self._in_dump(text)):
            return True
        return _hint_in(text) and any(self._encoded(text))

    def _holds_part(self, text: str) -> bool:
        for first, search in self._parts:  # noqa: SIM110  (a generator would cost more)
            if first in text and search(text) is not None:
                return True
        return False

    def _holds_form(self, text: str) -> bool:
        # This runs without a Python instruction for each form.
        return any(map(text.__contains__, self._forms))

    def _encoded(self, text: str) -> Iterator[tuple[int, int, str]]:
        """Where a secret is written with escapes or over several lines: beginning and end in the
        text, and its name.
        """
        return self._found(text, chain(without_escapes(text), joined_lines(text)))

    def _in_dump(self, text: str) -> Iterator[tuple[int, int, str]]:
        """As `_encoded`, in dumps of bytes."""
        return self._found(text, self._dumped(text))

    def _found(self, text: str, parts: Iterable[Decoded]) -> Iterator[tuple[int, int, str]]:
        if self._values is None:
            return
        for decoded in parts:
            if self._holds_part(decoded.text):
                for match in self._values.finditer(decoded.text):
                    start, end = decoded.span_in_source(text, *match.span())
                    yield start, end, self._names[match[0]]

    def _dumped(self, text: str) -> Iterator[Decoded]:
        at = 0
        if not self._longest:
            at = len(text)
        around = _DUMP_CHARS_PER_BYTE * self._longest
        while True:
            found = [
                match.start()
                for search in (*(search for _, search in self._dumps), CHARACTER_DUMP.search)
                if (match := search(text, at)) is not None
            ]
            if not found:
                return
            first = min(found)
            at = min(first + around, len(text))
            # So far goes a secret whose first found part is just before `at`.
            end = min(at + around, len(text))
            yield from dumped_bytes(text, max(0, first - around), end)

    def _is_like_one(self, text: str) -> bool:
        return any(trigger in text and pattern.search(text) for _, trigger, pattern in _PATTERNS)

    def redact(self, text: str) -> str:
        """`text` with every secret replaced; the same object where there is none."""
        if not self.suspects(text):
            return text
        if self._values is not None:
            text = self._values.sub(lambda match: f"[redacted:{self._names[match[0]]}]", text)
        for name, trigger, pattern in _PATTERNS:
            if trigger in text:
                text = pattern.sub(f"[redacted:{name}]", text)
        before = len(text)
        found = {*self._encoded(text), *self._in_dump(text)}
        for start, end, name in sorted(found, reverse=True):
            if end <= before:  # does not overlap one that was replaced already
                text = f"{text[:start]}[redacted:{name}]{text[end:]}"
                before = start
        return text

    def redact_value(self, value: Any) -> Any:
        """A JSON value with every secret in its texts and keys replaced."""
        if isinstance(value, str):
            return self.redact(value)
        if isinstance(value, Mapping):
            items = cast("Mapping[Any, Any]", value).items()
            return {
                self.redact(key) if isinstance(key, str) else key: self.redact_value(item)
                for key, item in items
            }
        if isinstance(value, list | tuple):
            return [self.redact_value(item) for item in cast("list[Any]", value)]
        return value

    def __repr__(self) -> str:
        return f"<Redactor of {len(set(self._names.values()))} secrets>"


def find_texts(
    values: Iterable[Any], known: set[str] | frozenset[str], found: list[str]
) -> ValueTypes:
    """Adds the texts and keys in JSON values to `found`, except those of `known`. Returns: which
    types the values have.
    """
    types: ValueTypes = "exact"
    pending: list[Iterable[Any]] = [values]
    # Values inside a value are added to the list while it is read.
    for container in pending:
        for value in container:
            if value is None:
                continue
            # The commonest types first: this loop takes much of the time of a record.
            kind = type(value)
            if kind is str:
                if value not in known:
                    found.append(value)
            elif kind is int:
                continue
            elif kind is dict:
                if value:
                    if not known.issuperset(value):
                        found += [key for key in value if isinstance(key, str)]
                    pending.append(value.values())
            elif kind is list or kind is tuple:
                if value:
                    pending.append(value)
            elif kind is bool:
                continue
            elif kind is float and isfinite(value):
                types = _with_json(types)
            elif isinstance(value, list | tuple):
                types = _with_json(types)
                pending.append(cast("Iterable[Any]", value))
            elif isinstance(value, Mapping):
                types = _with_json(types)
                mapping = cast("Mapping[Any, Any]", value)
                found += [key for key in mapping if isinstance(key, str)]
                pending.append(mapping.values())
            elif isinstance(value, str):
                types = _with_json(types)
                found.append(str.__str__(value))
            else:
                types = "other"
    return types


def _with_json(types: ValueTypes) -> ValueTypes:
    if types == "exact":
        return "json"
    return types


def _has_trigger(text: str) -> bool:
    """Whether one of the patterns may match; else none does."""
    for rare, trigger in _TRIGGERS:
        if rare in text and trigger in text:
            return True
    return "_" in text and _UNDERLINED.search(text) is not None


def _may_dump_characters(text: str) -> bool:
    return "   " in text and CHARACTER_DUMP.search(text) is not None


def _hint_in(text: str) -> bool:
    """Whether a part of the text may be decoded: escapes, or a word that is broken into lines."""
    for first, hint in HINTS:  # noqa: SIM110
        if first in text and hint.search(text) is not None:
            return True
    return False


def _searches_for(candidates: Iterable[Mapping[str, str]]) -> tuple[Search, ...]:
    """A few searches. In a text that contains a secret one of them finds something; in others they
    seldom do.

    Each mapping belongs to a form of a secret. It holds expressions by their first characters; each
    of them finds the form. An expression that begins with a fixed character runs at memory speed,
    and is fast if the character is rare; so for each form one is chosen that begins with such a
    character; a few characters are in all random forms.
    """
    pending = list(candidates)
    found: list[Search] = []
    while pending:
        shares = Counter(chain.from_iterable(pending))
        chosen = min(
            shares, key=lambda character: (_cost(character) / shares[character], character)
        )
        rests = {expressions[chosen] for expressions in pending if chosen in expressions}
        pending = [expressions for expressions in pending if chosen not in expressions]
        search = re.compile(f"{re.escape(chosen)}(?:{'|'.join(sorted(rests))})").search
        found.append((chosen, search))
    return tuple(found)


def _parts_of(form: str) -> dict[str, str]:
    """A part of the form for each character that it may begin with."""
    places = {character: form.index(character) for character in form[: 1 - _PART_CHARS]}
    return {
        character: re.escape(form[at + 1 : at + _PART_CHARS]) for character, at in places.items()
    }


def _windows_in_dump(data: bytes) -> dict[str, str]:
    """Some bytes of a secret in hexadecimal digits with anything between that a dump puts there."""
    pairs = [_digits_of(byte) for byte in data]
    windows: dict[str, str] = {}
    for at in range(len(pairs) - _WINDOW_BYTES + 1):
        window = _BETWEEN_BYTES.join(pairs[at : at + _WINDOW_BYTES])
        if window[0].isdecimal():
            windows.setdefault(window[0], window[1:])
    # Without a byte below 0xa0, which no text in UTF-8 lacks for long, only the forms are found.
    return windows


def _windows_in_words(data: bytes, first: int) -> dict[str, str]:
    """As `_windows_in_dump`, in words of two bytes that begin with their last byte (`od -x`); the
    words begin at `first`, which is 0 or 1.
    """
    words = [
        _digits_of(data[at + 1]) + _digits_of(data[at]) for at in range(first, len(data) - 1, 2)
    ]
    windows: dict[str, str] = {}
    for one, other in pairwise(words):
        window = f"{one}{_BETWEEN_BYTES}{other}"
        if window[0].isdecimal():
            windows.setdefault(window[0], window[1:])
    return windows


def _digits_of(byte: int) -> str:
    return "".join(
        digit if digit.isdecimal() else f"[{digit}{digit.upper()}]" for digit in f"{byte:02x}"
    )


def _cost(character: str) -> float:
    """Roughly, the cost of a search that begins with this character: of the search, and of each
    place to look at.
    """
    place = _COMMON.find(character)
    if place < 0:
        return 0.02
    return 0.02 + 0.2 / (1 + place)


def _is_secret(name: str, value: str) -> bool:
    """Whether a variable of this name holds a secret as a whole."""
    has_its_name = name not in _FOLDERS and _NAME.search(name.upper()) is not None
    return has_its_name and not _SETTING.fullmatch(value)


def _forms_of(value: str) -> Iterator[str]:
    """`value` and the usual encodings of it, some of them several times."""
    data = value.encode("utf-8", "surrogatepass")
    yield value
    yield value[::-1]
    for dumped in (json.dumps(value), json.dumps(value, ensure_ascii=False)):
        # Inside a JSON string, which a tool may return, in JSON that is itself a string in JSON,
        # and both in a record that is JSON.
        twice = json.dumps(dumped)
        yield from (dumped[1:-1], twice[3:-3], json.dumps(twice)[7:-7])
    for quoted in (quote(data, safe=""), quote(data), quote_plus(data)):
        yield from (quoted, re.sub("%..", lambda match: match[0].lower(), quoted))
    yield from (data.hex(), data.hex().upper())
    for encode in (b64encode, urlsafe_b64encode):
        for before in range(3):
            # What stands before decides how the bytes fall into groups of six bits; without the
            # digits that it, or what follows, is part of.
            text = encode(bytes(before) + data).decode().rstrip("=")
            yield text[(0, 2, 3)[before] : len(text) - ((before + len(data)) % 3 > 0)]
