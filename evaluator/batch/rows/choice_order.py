"""Options of a row in another order, with the target moved along: the position of an option says
nothing then.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any, cast

from evaluator.batch.records import Sample

CHOICE_FIELDS = ("choices", "options")
"""The fields of a row that hold its options."""
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_LETTER = re.compile(r"[\W_]*([A-Za-z])[\W_]*")
_LIST = re.compile(r"\s*[A-Z]\s*,\s*(?:[A-Z]\s*,\s*)*(?:[A-Z]\s*)?")


def listed_letters(target: str, letters: Collection[str], words: Collection[Any]) -> list[str]:
    """The letters of a text such as `A, C`, or `AC` where the options have words; empty for any
    other text, and for an option's words.
    """
    text = target.strip()
    if any(str(each).strip() == text for each in words):
        return []
    if _LIST.fullmatch(target) is not None:
        return re.findall("[A-Z]", target)
    is_joined = (
        len(text) > 1
        and text not in letters
        and any(words)
        and list(text) == sorted({*text} & {*letters})
    )
    if is_joined:
        return list(text)
    return []


def flagged(target: Any, count: int) -> list[int] | None:
    """The positions of the right options in a list with a flag, 0 or 1, for each of `count`
    options; None for any other value.
    """
    if isinstance(target, list | tuple):
        flags = cast("list[Any]", target)
    else:
        flags = []
    if (
        len(flags) != count
        or count < 2
        or not all(type(each) in (bool, int) and each in (0, 1) for each in flags)
    ):
        return None
    return [at for at, flag in enumerate(flags) if flag]


def shuffle_choices(sample: Sample, seed: int) -> Sample | None:
    """The sample with the options of its inputs or metadata in an order that depends on `seed` and
    its id only.

    A table of letters to words keeps its letters. A target that is a letter, an index from 0, a
    list of these, a text such as `A, C` or a list of flags, one for each option, is moved along;
    words stay. None, if the sample has no list or table of options.
    """
    places = [dict(sample.inputs), dict(sample.metadata)]
    found = next(
        (
            place[field]
            for place in places
            for field in CHOICE_FIELDS
            if _is_options(place.get(field))
        ),
        None,
    )
    if found is None:
        return None
    values: list[Any] = list(cast("Any", found.values() if isinstance(found, Mapping) else found))
    order = sorted(range(len(values)), key=lambda at: _rank(seed, sample.id, at=at))
    moved: Any = [values[at] for at in order]
    if isinstance(found, Mapping):
        letters = [str(key).strip() for key in cast("Any", found)]
        moved = dict(zip(cast("Mapping[Any, Any]", found), moved, strict=True))
    else:
        letters = list(_LETTERS)
    for place in places:
        for field in CHOICE_FIELDS:
            if field in place and place[field] == found:
                place[field] = moved
    inputs, metadata = places
    is_flagged = flagged(sample.target, len(values)) is not None
    if is_flagged:
        target = [sample.target[at] for at in order]
    else:
        target = _moved(sample.target, order, letters=letters, values=values)
    return replace(sample, inputs=inputs, metadata=metadata, target=target)


def _is_options(value: Any) -> bool:
    return isinstance(value, list | tuple | Mapping) and len(cast("Any", value)) > 1


def _rank(seed: int, id: str, at: int) -> bytes:
    return blake2b(f"{seed}\0{id}\0{at}".encode(errors="surrogatepass"), digest_size=16).digest()


def _moved(target: Any, order: Sequence[int], letters: Sequence[str], values: Sequence[Any]) -> Any:
    """The target as it names the same option in the new order."""
    if isinstance(target, list | tuple):
        return [
            _moved(each, order, letters=letters, values=values)
            for each in cast("list[Any]", target)
        ]
    if isinstance(target, int) and not isinstance(target, bool):
        if target in order:
            return order.index(target)
        return target
    if not isinstance(target, str):
        return target
    if several := listed_letters(target, letters[: len(values)], words=values):
        return ", ".join(
            sorted(_moved(each, order, letters=letters, values=values) for each in several)
        )
    at = _position(target, letters, values=values)
    if at is not None and at < len(order):
        return letters[order.index(at)]
    return target


def _position(target: str, letters: Sequence[str], values: Sequence[Any]) -> int | None:
    """The position of the option whose letter the target is; None for words."""
    if target.strip() in letters:
        return letters.index(target.strip())
    match = _LETTER.fullmatch(target)
    if match is None or any(
        str(value).strip().casefold() == target.strip().casefold() for value in values
    ):
        return None
    letter = match[1].upper()
    if letter in letters:
        return letters.index(letter)
    return None
