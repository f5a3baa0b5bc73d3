"""The logarithms of the probabilities of tokens that a server gives: of an answer (chat
completions), or of a given text (completions with `echo`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any, cast

from evaluator.lazy_dataclass import frozen

_DIGITS = 7
_NO_CHANCE = -9999.0
"""A logarithm for a probability of 0, which JSON has no number for."""


@frozen
class TokenLogprob:
    """A token of a text, and the natural logarithm of its probability after the tokens before it;
    None for the first token of a given text. `top` has the most likely tokens at this place.
    """

    token: str
    logprob: float | None
    top: Mapping[str, float] = field(default_factory=dict[str, float])

    @property
    def is_most_likely(self) -> bool:
        """Whether no other token at this place is known to be more likely."""
        return self.logprob is None or all(
            other <= self.logprob for token, other in self.top.items() if token != self.token
        )


def to_rows(tokens: Sequence[TokenLogprob]) -> list[list[Any]]:
    """The recorded form: `[token, logprob]` or `[token, logprob, top]` for each token."""
    rows: list[list[Any]] = []
    for each in tokens:
        row: list[Any] = [each.token, each.logprob]
        if each.top:
            row.append(dict(each.top))
        rows.append(row)
    return rows


def from_rows(rows: Any) -> tuple[TokenLogprob, ...]:
    """Reads what `to_rows` gave."""
    return tuple(TokenLogprob(row[0], row[1], *row[2:]) for row in rows or ())


def read_chat(logprobs: Any) -> tuple[TokenLogprob, ...]:
    """The tokens in `choices[0].logprobs` of a chat completion; empty where there are none."""
    content = _mapping(logprobs).get("content")
    found: list[TokenLogprob] = []
    for each in content if isinstance(content, list) else ():
        entry = _mapping(each)
        top = entry.get("top_logprobs")
        if isinstance(top, list):
            rows = [_mapping(one) for one in cast("list[Any]", top)]
        else:
            rows = []
        likely = {str(row.get("token")): _number(row.get("logprob")) for row in rows}
        found.append(
            TokenLogprob(
                str(entry.get("token")),
                _number(entry.get("logprob")),
                {token: value for token, value in likely.items() if value is not None},
            )
        )
    return tuple(found)


def read_completion_tokens(logprobs: Any) -> tuple[TokenLogprob, ...]:
    """The tokens in `choices[0].logprobs` of a completion; empty where there are none."""
    found = _mapping(logprobs)
    tokens = found.get("tokens")
    values = found.get("token_logprobs")
    if not isinstance(tokens, list) or not isinstance(values, list):
        return ()
    tops = found.get("top_logprobs")
    if isinstance(tops, list):
        likely = cast("list[Any]", tops)
    else:
        likely = []
    rows: list[TokenLogprob] = []
    for place, token in enumerate(cast("list[Any]", tokens)):
        if place < len(likely):
            own = _mapping(likely[place])
        else:
            own = {}
        top = {name: _number(value) for name, value in own.items()}
        rows.append(
            TokenLogprob(
                str(token),
                _number(values[place]) if place < len(values) else None,
                {name: value for name, value in top.items() if value is not None},
            )
        )
    return tuple(rows)


def _mapping(value: Any) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if not math.isfinite(value):
        return _NO_CHANCE
    return round(float(value), _DIGITS)
