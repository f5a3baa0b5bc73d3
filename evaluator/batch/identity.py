"""Hashes that identify samples, and checksums of what a batch writes.

A result's `key` says which cell of the batch it fills: sample id, epoch, template, variant. Its
`identity` is the hash of everything that determines the answer; `parts` are the hashes that it was
made of, so that a change can be named. Two results with one key and different identities answer
different questions.

Not part of the identity: files that a template reads while it runs, the time, and what a provider
changes behind a model's name. Neither are the scorers: after a change of scorers, answers are
judged again, without a model call.

What a batch writes has checksums: each line of its results, and its manifest.
They show that bytes were changed after they were written: by a disk, a transfer or an editor. They
do not protect against somebody who computes them again.

A line is `{"crc32":"0a1b2c3d",…}` and a manifest begins likewise: the CRC-32 of all bytes after the
one's digits.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import fields
from hashlib import blake2b
from itertools import pairwise
from typing import Any, cast
from zlib import crc32

import orjson

from evaluator.batch.json_text import canonical_json, compact_json
from evaluator.batch.records import Sample, SampleResult, key_of, nested_of, scalars_of
from evaluator.errors import UsageError
from evaluator.errors.messages import json_problem, type_of
from evaluator.handler.config import HandlerConfig
from evaluator.lazy_dataclass import frozen
from evaluator.library import TemplateLibrary
from evaluator.processes.sandboxes import NO_SANDBOX
from evaluator.record.steps import Scrub

SCHEMA = "evaluator-batch/1"

# Settings of a profile that change how long a call may take or what it costs, but not what is
# asked.
_WITHOUT_EFFECT = frozenset(
    {
        "name",
        "description",
        "api_key_env",
        "timeout_s",
        "max_cost_usd",
        "backoff_s",
        "prices",
        "prompt_cache",
    }
)

# Settings that were added later, with their values where they are not set: folders of batches that
# were run before they existed stay valid.
_ADDED = {
    "sandbox": NO_SANDBOX,
    "top_p": None,
    "top_k": None,
    "stop": (),
    "logprobs": None,
    "echo": None,
    "extra_body": {},
}

# Settings that are short names; other strings may be long or private.
_SHOWN = frozenset({"model", "backend", "tool_calling"})


def digest(value: Any) -> str:
    """The hash of a JSON value, 32 hexadecimal digits; the order of an object's keys does not
    matter.

    Raises: UsageError, if it is not JSON.
    """
    try:
        data = canonical_json(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"not a JSON value: {error}") from error
    hashed = _new_hash()
    hashed.update(data)
    return hashed.hexdigest()


# To copy an empty hash is cheaper than to make one.
_new_hash = blake2b(digest_size=16).copy


def template_part(library: TemplateLibrary, name: str) -> str:
    """The hash of the template and of everything that it includes, takes parts from and may
    call.
    """
    return digest({name: library.get(name).sha256, **library.called_by(name)})


def handler_settings(
    config: HandlerConfig, model: str, roles: Mapping[str, str], named: Collection[str]
) -> dict[str, Any]:
    """The settings of a profile that determine answers, with its model and the models of the roles
    `named`.
    """
    settings: dict[str, Any] = {}
    for field in fields(config):
        name = field.name
        value = getattr(config, name)
        if name in _WITHOUT_EFFECT or (name in _ADDED and value == _ADDED[name]):
            continue
        if value is None or type(value) in _SCALARS:
            settings[name] = value
        else:
            settings[name] = _plain(value)
    mapped = {**config.roles, **roles}
    return {
        **settings,
        "model": model,
        "roles": {role: mapped[role] for role in sorted(named) if role in mapped},
    }


def storable_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """`settings` (see `handler_settings`) as the manifest stores them: numbers and names as they
    are, others hashed.
    """
    return {
        name: value
        if name in _SHOWN or value is None or isinstance(value, (bool, int, float))
        else f"#{digest(value)}"
        for name, value in settings.items()
    }


def changed_settings(was: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The differences between two `storable_settings`: `temperature (was not set, is 0.7)`,
    `system`.
    """
    changed: list[str] = []
    for name in {**was, **now}:
        values = was.get(name), now.get(name)
        if values[0] != values[1]:
            is_shown = not any(isinstance(value, str) and value.startswith("#") for value in values)
            before, after = ("not set" if value is None else str(value) for value in values)
            changed.append(f"{name} (was {before}, is {after})" if is_shown else name)
    return changed


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    if isinstance(value, Mapping):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    return repr(value)


_SCALARS = (str, int, float, bool)


class Identity:
    """A sample's key and identity. `parts`: template, handler and inputs; also the target, if the
    simulated model answers with it, an existing answer, and few-shot examples. `made_of`: what `of`
    was given; None for another identity.

    Those of an identity that a Cell has made are computed when they are first read, which may be in
    another process: a batch without earlier results needs none of them.
    """

    __slots__ = ("key", "made_of", "parts", "value")

    key: str
    value: str
    parts: Mapping[str, str]
    made_of: tuple[Cell, Sample, int, str] | None

    def __init__(self, key: str, value: str, parts: Mapping[str, str]) -> None:
        self.key = key
        self.value = value
        self.parts = parts
        self.made_of = None

    @classmethod
    def of(cls, cell: Cell, sample: Sample, epoch: int, inputs_part: str = "") -> Identity:
        """The identity of `sample` in `cell`. `inputs_part`: `digest(sample.inputs)`, if that is
        known already.
        """
        identity = cls.__new__(cls)
        identity.made_of = cell, sample, epoch, inputs_part
        return identity

    def __getattr__(self, name: str) -> Any:
        """Called for an attribute that has no value yet."""
        if name not in ("key", "value", "parts") or self.made_of is None:
            raise AttributeError(name)
        cell, sample, epoch, inputs_part = self.made_of
        if name == "key":
            self.key = key_of(sample.id, epoch, template=cell.template, variant=cell.variant)
            return self.key
        parts = cell.parts_of(sample, inputs_part)
        text = "\0".join((SCHEMA, sample.id, str(epoch), cell.template, *parts.values()))
        hashed = _new_hash()
        hashed.update(text.encode(errors="surrogatepass"))
        value = hashed.hexdigest()
        self.parts = parts
        self.value = value
        return value if name == "value" else parts


@frozen
class Cell:
    """A template and a variant of a batch, with their hashes."""

    template: str
    variant: str
    template_part: str
    handler_part: str
    is_simulated: bool

    def parts_of(self, sample: Sample, inputs_part: str) -> dict[str, str]:
        """What the identity of `sample` is made of, see `Identity.of`."""
        parts = {
            "template": self.template_part,
            "handler": self.handler_part,
            "inputs": inputs_part or digest(sample.inputs),
        }
        if self.is_simulated:
            parts["target"] = digest(sample.target)
        if sample.answer is not None:
            parts["answer"] = digest(sample.answer)
        if sample.shots:
            parts["fewshot"] = digest([[shot.inputs, shot.answer] for shot in sample.shots])
        return parts


def changed_parts(was: Mapping[str, str], now: Mapping[str, str]) -> Iterable[str]:
    """The names of the parts that differ."""
    return (name for name in {**was, **now} if was.get(name) != now.get(name))


ALTERED = "was changed after it was written, or was written by an earlier version"
REPAIR = "resume the batch with --repair (in Python: repair=True)"

_LINE = b'{"crc32":"'
_DIGITS = 8
_TO_ZERO = bytes.maketrans(b"123456789", b"000000000")
_MANY_DIGITS = b"0" * 19
_LINE_BODY = len(_LINE) + _DIGITS
_MANIFEST = b'{\n  "crc32": "'
_MANIFEST_BODY = len(_MANIFEST) + _DIGITS


def seal_line(text: str) -> bytes:
    """The line of `text`, a JSON object with at least one member, with its checksum."""
    return _sealed(text.encode())


def _sealed(data: bytes) -> bytes:
    body = b'",' + data[1:]
    return b"%b%08x%b\n" % (_LINE, crc32(body), body)


def is_sealed(line: bytes) -> bool:
    """Whether a line, with its line end, is as `seal_line` made it."""
    return line.startswith(_LINE) and line[len(_LINE) : _LINE_BODY] == b"%08x" % crc32(
        memoryview(line)[_LINE_BODY:-1]
    )


def encode_results(
    results: Iterable[SampleResult], scrub: Scrub | None
) -> tuple[list[bytes], list[dict[str, Any]]]:
    """The lines of results, without the secrets that `scrub` knows, and the results as JSON, as
    readers get them.
    """
    lines: list[bytes] = []
    stored: list[dict[str, Any]] = []
    texts: list[Any] = []
    # Where the texts of each result end.
    ends: list[int] = []
    for result in results:
        data = result.to_dict()
        try:
            line = compact_json(data, (scalars_of(data), *nested_of(data)), texts)
        except ValueError:
            # A scorer or a row from Python may hold NaN or an infinity, which JSON lacks.
            data = _finite(data)
            line = compact_json(data, [data], texts)
            data = json.loads(line)
        stored.append(data)
        lines.append(line)
        ends.append(len(texts))
    keys = list(stored[-1]) if stored else []
    # One search through all texts that are new: few hold a secret.
    if scrub is not None and scrub.suspects_any(_new_texts(texts + keys, scrub)):
        for place, (start, end) in enumerate(pairwise((0, *ends))):
            # Not of the line: as JSON, some encodings of a secret look otherwise.
            if scrub.suspects_any(_new_texts(texts[start:end] + keys, scrub)):
                lines[place] = compact_json(scrub.redact_value(json.loads(lines[place])))
                stored[place] = json.loads(lines[place])
    return list(map(_sealed, lines)), stored


def _new_texts(texts: list[Any], scrub: Scrub) -> list[str]:
    return [text for text in set(texts).difference(scrub.known) if isinstance(text, str)]


def decode_line(line: bytes) -> dict[str, Any]:
    """A line of results as JSON, with what a line of an earlier version lacks. Raises: ValueError;
    AttributeError, for anything but an object.
    """
    # orjson reads integers past 64 bits as floats, and no lone surrogates.
    if _MANY_DIGITS in line.translate(_TO_ZERO):
        data = json.loads(line)
    else:
        try:
            data = orjson.loads(line)
        except orjson.JSONDecodeError:
            data = json.loads(line)
    data.setdefault("interrupted_calls", 0)
    return data


def parse_line(line: bytes) -> SampleResult:
    """The result in a line. Raises: ValueError, KeyError, TypeError or AttributeError."""
    return SampleResult.from_dict(decode_line(line))


def _finite(value: Any) -> Any:
    """`value` with NaN and the infinities as strings."""
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    if isinstance(value, dict):
        return {name: _finite(inner) for name, inner in cast("dict[str, Any]", value).items()}
    if isinstance(value, (list, tuple)):
        return [_finite(inner) for inner in cast("list[Any]", value)]
    return value


def seal_manifest(manifest: Mapping[str, Any]) -> bytes:
    """The manifest as indented JSON, with its checksum as the first member."""
    body = indented_json({"crc32": "0" * _DIGITS, **manifest})[_MANIFEST_BODY:]
    return b"%b%08x%b" % (_MANIFEST, crc32(body), body)


def indented_json(value: Mapping[str, Any]) -> bytes:
    """`value` as UTF-8. A lone surrogate, which UTF-8 lacks, is written as JSON's own escape for
    it.
    """
    text = json.dumps(value, ensure_ascii=False, indent=2, allow_nan=False) + "\n"
    return text.encode("utf-8", "backslashreplace")


def read_manifest(data: bytes, *, repair: bool = False) -> dict[str, Any]:
    """The manifest in `data`. `repair`: it may have been changed.

    Raises: ValueError, with the reason.
    """
    if not repair and (
        not data.startswith(_MANIFEST)
        or data[len(_MANIFEST) : _MANIFEST_BODY]
        != b"%08x" % crc32(memoryview(data)[_MANIFEST_BODY:])
    ):
        raise ValueError(f"{ALTERED}; to use it as it is, {REPAIR}")
    try:
        value = json.loads(data)
    except ValueError as error:
        raise ValueError(
            f"invalid JSON: {json_problem(error)}; restore it, or run the batch into a new folder"
        ) from error
    if not isinstance(value, dict):
        raise ValueError(f"expected a JSON object, found {type_of(value)}")
    found = cast("dict[str, Any]", value)
    found.pop("crc32", None)
    return found


def unfinished_reason(manifest: Mapping[str, Any]) -> str:
    """Why a batch is unfinished according to its manifest; empty if it is finished or the manifest
    has no state.
    """
    state = manifest.get("state")
    if not isinstance(state, str) or state in ("", "complete"):
        return ""
    if state == "running":
        return "the last session is running, or was killed"
    sessions = manifest.get("sessions")
    reason = None
    if isinstance(sessions, list) and sessions:
        last = cast("list[Any]", sessions)[-1]
        if isinstance(last, Mapping):
            reason = cast("Mapping[str, Any]", last).get("reason")
    return f"the last session ended with: {reason or state}"
