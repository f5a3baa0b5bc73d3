"""Removes secrets from what is recorded, before it is written."""

from __future__ import annotations

import json
import os
import re
from base64 import b64encode, urlsafe_b64encode
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, cast
from urllib.parse import quote, quote_plus, unquote

_NAME = re.compile(
    r"(?:^|_)(?:API_?KEYS?|KEY|KEYS|TOKEN|TOKENS|SECRET|SECRETS|PASS|PASSPHRASE|CREDENTIALS?|CREDS|PAT|DSN"
    r"|CONNECTION_STRING|PRIVATE_KEY)(?:_|$)|PASSWORD(?:_|$)|PASSWD(?:_|$)|.PWD(?:_|$)",
    re.I,
)
# The current folder, which every shell sets.
_FOLDERS = frozenset({"PWD", "OLDPWD"})
# The password of a URL, and of a connection string of the forms `password=x` and `Pwd=x;`.
_IN_URL = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#\s:@]*:([^/?#\s]+)@", re.I)
_IN_PAIRS = re.compile(
    r"\b(?:password|passwd|pwd|accountkey|sharedaccesskey)\s*=\s*('[^']*'|\"[^\"]*\"|[^\s;]+)", re.I
)
_MIN_CHARS = 8
# Values under such names that are settings, not secrets: redacting them would make records
# unreadable.
_SETTING = re.compile(
    r"true|false|none|null|yes|enabled|disabled|[0-9]{1,12}|(?:/[\w. -]+)+/?", re.I
)

# Each with a text that every match contains: searching for that first is many times faster.
_PATTERNS: tuple[tuple[str, str, str], ...] = (
    ("api-key", "sk-", r"(?<![A-Za-z0-9_-])sk-[A-Za-z0-9_-]{16,}"),
    ("bearer", "earer ", r"(?<=[Bb]earer )[A-Za-z0-9._~+/-]{16,}=*"),
    ("bearer", "BEARER ", r"(?<=BEARER )[A-Za-z0-9._~+/-]{16,}=*"),
    ("aws-key", "AKIA", r"(?<![A-Za-z0-9])AKIA[A-Z0-9]{16}(?![A-Za-z0-9])"),
    ("aws-key", "ASIA", r"(?<![A-Za-z0-9])ASIA[A-Z0-9]{16}(?![A-Za-z0-9])"),
    *(
        ("github-token", f"gh{kind}_", rf"(?<![A-Za-z0-9])gh{kind}_[A-Za-z0-9]{{30,}}")
        for kind in "pousr"
    ),
    ("github-token", "github_pat_", r"github_pat_[A-Za-z0-9_]{30,}"),
    ("google-key", "AIza", r"(?<![A-Za-z0-9])AIza[A-Za-z0-9_-]{35}"),
    ("slack-token", "xox", r"(?<![A-Za-z0-9])xox[abeoprs]-[A-Za-z0-9-]{10,}"),
    ("hugging-face-token", "hf_", r"(?<![A-Za-z0-9])hf_[A-Za-z0-9]{30,}"),
    (
        "private-key",
        "-----BEGIN ",
        r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
    ),
)
# Characters of English texts and JSON, the commonest first; others are rare.
_COMMON = " etaoinsrlhdc\"umpgfy,.:_wbvk-{}\\/01()'A2xjqST"
_PART_CHARS = 6

# One of these matches every text with a trigger. An expression that begins with a fixed letter runs
# at memory speed; an alternation of all of them would not.
_BEGINNINGS = tuple(
    re.compile(source)
    for source in (
        "sk-",
        "earer ",
        "B(?:EARER |EGIN )",
        "A(?:KIA|SIA|Iza)",
        "gh[pousr]_",
        "github_pat_",
        "xox",
        "hf_",
    )
)


class Redactor:
    """Replaces known secrets, and texts in the form of one, by `[redacted:NAME]`.

    `secrets` maps a name to the value to hide; values under 8 characters are not hidden. A value is
    found in texts, in keys, and inside texts that are JSON themselves; also reversed, URL-encoded,
    in hexadecimal digits, and in base64, alone or inside a longer encoded text. Text without a
    secret costs one search for all forms of all secrets, and one for each beginning of a pattern.
    """

    __slots__ = ("_forms", "_names", "_parts", "_patterns", "_searches", "_values")

    def __init__(self, secrets: Mapping[str, str] | None = None) -> None:
        names: dict[str, str] = {}
        for name, value in (secrets or {}).items():
            if len(value) < _MIN_CHARS:
                continue
            for form in _forms_of(value):
                if len(form) >= _MIN_CHARS:
                    names.setdefault(form, name)
        # Longest first: where one secret begins with another, the longer one is meant.
        ordered = sorted(names, key=len, reverse=True)
        self._names = names
        self._forms = tuple(ordered)
        self._parts = _searches_for(ordered)
        self._searches = tuple(beginning.search for beginning in _BEGINNINGS)
        if ordered:
            self._values = re.compile("|".join(map(re.escape, ordered)))
        else:
            self._values = None
        self._patterns = [
            (name, trigger, re.compile(source, re.S)) for name, trigger, source in _PATTERNS
        ]

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
            parts = [part for found in (_IN_URL, _IN_PAIRS) for part in found.findall(value)]
            if name in wanted or (not parts and _is_secret(name, value)):
                secrets[name] = value
            forms = dict.fromkeys(
                form for part in parts for form in (part.strip("'\""), unquote(part))
            )
            secrets |= {f"{name} password{number or ''}": form for number, form in enumerate(forms)}
        return cls(secrets)

    def suspects(self, text: str) -> bool:
        """Whether `text`, or the JSON in it, contains what `redact_value` would change."""
        for search in self._parts:
            # `any(map(…))` runs without a Python instruction for each form.
            if search(text) is not None and any(map(text.__contains__, self._forms)):
                return True
        for search in self._searches:
            if search(text) is not None:
                return self._is_like_one(text)
        return False

    def _is_like_one(self, text: str) -> bool:
        return any(
            trigger in text and pattern.search(text) for _, trigger, pattern in self._patterns
        )

    def redact(self, text: str) -> str:
        """`text` with every secret replaced; the same object where there is none."""
        if not self.suspects(text):
            return text
        if self._values is not None:
            text = self._values.sub(lambda match: f"[redacted:{self._names[match[0]]}]", text)
        for name, trigger, pattern in self._patterns:
            if trigger in text:
                text = pattern.sub(f"[redacted:{name}]", text)
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


def _searches_for(forms: Sequence[str]) -> tuple[Callable[[str], object], ...]:
    """A few searches. In a text that contains one of `forms` one of them finds something; in others
    they seldom do.

    An expression that begins with a fixed character runs at memory speed, and is fast if the
    character is rare. So a part of each form is searched for that begins with such a character; a
    few characters are in all random forms.
    """
    pending = {form: _first_places(form) for form in forms}
    found: list[Callable[[str], object]] = []
    while pending:
        shares = Counter(chain.from_iterable(pending.values()))
        chosen = min(
            shares, key=lambda character: (_cost(character) / shares[character], character)
        )
        places = {
            form: pending.pop(form)[chosen] for form in list(pending) if chosen in pending[form]
        }
        rests = {re.escape(form[at + 1 : at + _PART_CHARS]) for form, at in places.items()}
        found.append(re.compile(f"{re.escape(chosen)}(?:{'|'.join(sorted(rests))})").search)
    return tuple(found)


def _first_places(form: str) -> dict[str, int]:
    """The first place of each character of `form` from which enough of it follows."""
    return {character: form.index(character) for character in form[: 1 - _PART_CHARS]}


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
    return name not in _FOLDERS and _NAME.search(name) is not None and not _SETTING.fullmatch(value)


def _forms_of(value: str) -> Iterator[str]:
    """`value` and the usual encodings of it, some of them several times."""
    data = value.encode("utf-8", "surrogatepass")
    yield value
    yield value[::-1]
    for dumped in (json.dumps(value), json.dumps(value, ensure_ascii=False)):
        # Inside a JSON string, which a tool may return, and inside JSON that is itself a string in
        # JSON.
        yield from (dumped[1:-1], json.dumps(dumped)[3:-3])
    for quoted in (quote(data, safe=""), quote(data), quote_plus(data)):
        yield from (quoted, re.sub("%..", lambda match: match[0].lower(), quoted))
    yield from (data.hex(), data.hex().upper())
    for encode in (b64encode, urlsafe_b64encode):
        for before in range(3):
            # What stands before decides how the bytes fall into groups of six bits; without the
            # digits that it, or what follows, is part of.
            text = encode(bytes(before) + data).decode().rstrip("=")
            yield text[(0, 2, 3)[before] : len(text) - ((before + len(data)) % 3 > 0)]
