"""A server whose model has a table of exact probabilities: of the next word after a word."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from evaluator.testing import Answer, HttpReply, LoopbackServer, json_reply

_TOKENS = re.compile(r"\s*\S+|\s+\Z")


def tokens_of(text: str) -> list[str]:
    return _TOKENS.findall(text)


def probability(before: str, token: str) -> float:
    """The probability of `token` after the token `before`: a half for the word that follows in the
    alphabet, else an eighth for each shared letter and a sixteenth.
    """
    first = before.strip()[:1].lower()
    second = token.strip()[:1].lower()
    if first and second and ord(second) == ord(first) + 1:
        return 0.5
    return 0.125 if first == second else 0.0625


@dataclass(frozen=True, slots=True)
class TableAnswer(Answer):
    """The answer of the table model; for completions with `echo`, the prompt and one token more."""

    server: list[LoopbackServer] = field(default_factory=list[LoopbackServer])

    def reply(self, *, stream: bool) -> HttpReply:
        body = self.server[0].bodies[-1]
        if "prompt" not in body:
            return Answer.reply(self, stream=stream)
        tokens = tokens_of(body["prompt"])
        before = ["", *tokens]
        chances = [probability(one, two) for one, two in zip(before, tokens, strict=False)]
        likely = [
            {token: math.log(chance)}
            if chance == 0.5
            else {" z": math.log(0.5), token: math.log(chance)}
            for token, chance in zip(tokens, chances, strict=True)
        ]
        logprobs: dict[str, Any] = {
            "tokens": [*tokens, " more"],
            "token_logprobs": [None, *map(math.log, chances[1:]), -1.0],
            "top_logprobs": [None, *likely[1:], {" more": -1.0}],
        }
        text = body["prompt"] + " more"
        choice = {"index": 0, "text": text, "logprobs": logprobs, "finish_reason": "length"}
        usage = {"prompt_tokens": len(tokens), "completion_tokens": 1}
        return json_reply({"model": "table", "choices": [choice], "usage": usage})


def table_server() -> LoopbackServer:
    holder: list[LoopbackServer] = []
    server = LoopbackServer(default=TableAnswer("B", server=holder))
    holder.append(server)
    return server


def likelihood(context: str, text: str) -> float:
    """The log likelihood of `text` after `context`, by the table."""
    tokens = tokens_of(context + text)
    start = len(tokens_of(context))
    pairs = pairwise(tokens)
    return math.fsum([math.log(probability(one, two)) for one, two in pairs][start - 1 :])
