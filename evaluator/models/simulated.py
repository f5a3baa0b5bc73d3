"""A simulated model: deterministic answers offline, and faults on demand.

It tests a pipeline before that costs money. Its answers are marked: `ModelResponse.model` begins
with `simulated`, and a text that it had to make up begins with `[simulated]`.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias, cast

from evaluator import clock
from evaluator.errors import ConfigurationError, ProviderError
from evaluator.errors.messages import amount, type_of
from evaluator.errors.results import Usage
from evaluator.fields import NotNegative, Share, accept
from evaluator.models.backend import (
    FinishReason,
    Hints,
    Message,
    ModelRequest,
    ModelResponse,
    ToolCall,
    estimate_tokens,
)
from evaluator.models.logprobs import TokenLogprob
from evaluator.nodes.sampling import settings_given
from evaluator.patterns import Pattern

ScriptItem: TypeAlias = (
    str | Mapping[str, Any] | Sequence[Mapping[str, Any]] | ModelResponse | Exception
)
Script: TypeAlias = Sequence[ScriptItem] | Callable[[ModelRequest], ScriptItem | None]

_REMEMBERED_REQUESTS = 100_000
_WORDS = Pattern(r"\S+\s*|\s+")


class SimulatedBackend:
    """Answers from the first that exists: `script`; `hints.target`; the example with the same
    inputs; the closest example; a value made up to fit the declared output.

    `script` is a sequence, one item a call (after the last it fails), or a function of the request,
    which returns None for no answer. An item is text; `{"tool": name, "arguments": {…}}` or a list
    of these (`arguments` may be broken text; `text` is the text of the response); a ModelResponse;
    an exception to raise.

    The rates are probabilities in [0, 1]. `rate_limit` (429), `fail` (500) and `hang` (no answer
    until the timeout) are drawn for each attempt; `wrong` and `malformed` for each request, so that
    neither the order of calls nor a retry changes an answer. Equal seeds give equal runs. Tokens
    are estimates, cost is 0.

    Raises: ConfigurationError, for a rate outside [0, 1] or a negative latency.
    """

    def __init__(
        self,
        seed: int = 0,
        *,
        script: Script | None = None,
        latency_s: float = 0.0,
        wrong: float = 0.0,
        malformed: float = 0.0,
        rate_limit: float = 0.0,
        hang: float = 0.0,
        fail: float = 0.0,
        retry_after_s: float | None = None,
    ) -> None:
        # Of the faults the first that is drawn counts.
        self._faults = {"rate_limit": rate_limit, "fail": fail, "hang": hang}
        if isinstance(script, str):
            raise ConfigurationError("simulated: script is a string, expected a list of answers")
        for name, rate in {"wrong": wrong, "malformed": malformed, **self._faults}.items():
            accept(Share, rate, f"simulated: {name}", ConfigurationError)
        accept(NotNegative, latency_s, "simulated: latency_s", ConfigurationError)
        accept(NotNegative | None, retry_after_s, "simulated: retry_after_s", ConfigurationError)
        self._seed = seed
        self._script = script
        self._latency_s = latency_s
        self._wrong = wrong
        self._malformed = malformed
        self._retry_after_s = retry_after_s
        self._next_item = 0
        self._attempts: OrderedDict[bytes, int] = OrderedDict()

    @property
    def name(self) -> str:
        return "simulated"

    def __repr__(self) -> str:
        return f"{type(self).__name__}(seed={self._seed})"

    async def complete(
        self, request: ModelRequest, *, on_text: Callable[[str], None] | None = None
    ) -> ModelResponse:
        """The simulated answer. Raises: ProviderError, for a simulated fault; an exception of the
        script, unchanged.
        """
        item = self._scripted(request)
        digest = _digest(request)
        fault = self._fault(digest)
        is_late = fault == "hang" or self._latency_s >= request.timeout_s
        if wait_s := request.timeout_s if is_late else self._latency_s:
            await clock.sleep(wait_s)
        if is_late:
            message = f"no complete answer within {request.timeout_s:g} s (simulated)"
            raise ProviderError(message, kind="timeout", retryable=True, maybe_billed=True)
        if fault == "rate_limit":
            raise ProviderError(
                "HTTP 429: simulated rate limit",
                kind="rate_limit",
                status=429,
                retryable=True,
                retry_after_s=self._retry_after_s,
            )
        if fault == "fail":
            raise ProviderError(
                "HTTP 500: simulated failure",
                kind="server",
                status=500,
                retryable=True,
                maybe_billed=True,
            )
        response = self._response(request, item, digest=digest)
        if request.logprobs is not None or request.echo:
            response = _with_logprobs(request, response, digest=digest)
        if on_text is not None:
            for word in _WORDS.findall(response.content):
                on_text(word)
        return response

    async def aclose(self) -> None:
        """Nothing is open."""

    def _scripted(self, request: ModelRequest) -> ScriptItem | None:
        if self._script is None:
            return None
        if callable(self._script):
            return self._script(request)
        if self._next_item >= len(self._script):
            raise ProviderError(
                f"the script of {amount(len(self._script), 'answer')} is used up", kind="other"
            )
        self._next_item += 1
        return self._script[self._next_item - 1]

    def _fault(self, digest: bytes) -> str | None:
        if not any(self._faults.values()):
            return None
        attempt = self._attempts.pop(digest, 0) + 1
        self._attempts[digest] = attempt
        if len(self._attempts) > _REMEMBERED_REQUESTS:
            self._attempts.popitem(last=False)
        rng = self._rng(digest, f"attempt {attempt}")
        for name, rate in self._faults.items():
            if rng.random() < rate:
                return name
        return None

    def _rng(self, digest: bytes, what: str) -> random.Random:
        return random.Random(f"{self._seed}/{what}/{digest.hex()}")

    def _response(
        self, request: ModelRequest, item: ScriptItem | None, digest: bytes
    ) -> ModelResponse:
        if isinstance(item, ModelResponse):
            return item
        if isinstance(item, Exception):
            raise item
        calls: tuple[ToolCall, ...] = ()
        if item is None:
            text = self._answer(request, digest)
            if request.hints.output_type == "calls":
                text, calls = _as_calls(text, digest)
        elif isinstance(item, str):
            text = item
        else:
            if isinstance(item, Mapping):
                items = (item,)
            elif isinstance(item, Sequence):  # pyright: ignore[reportUnnecessaryIsInstance]
                items = tuple(item)
            else:
                raise ConfigurationError(
                    f"simulated: the script gave {type_of(item)}, expected text, tool calls, a "
                    "ModelResponse or an exception"
                )
            text = "".join(str(call.get("text", "")) for call in items)
            calls = tuple(_tool_call(call, i, digest=digest) for i, call in enumerate(items, 1))
        for stop in request.stop:
            text = text.partition(stop)[0]
        finish: FinishReason = "tool_calls" if calls else "stop"
        cut = _cut(text, request.max_output_tokens)
        if cut != text:
            text = cut
            finish = "length"
        return ModelResponse(
            text,
            finish,
            tool_calls=calls,
            reasoning=None,
            usage=_usage(request, text, calls=calls),
            model=_label(request.model),
        )

    def _answer(self, request: ModelRequest, digest: bytes) -> str:
        hints = request.hints
        rng = self._rng(digest, "answer")
        answer = _known_answer(hints)
        if answer is None:
            answer = _made_up(request, rng)
        if self._wrong and rng.random() < self._wrong:
            answer = _spoiled(answer, hints, rng=rng)
        if self._malformed and rng.random() < self._malformed:
            answer = _mangled(answer, hints.output_type, rng=rng)
        return answer


def _known_answer(hints: Hints) -> str | None:
    """The answer that the hints give: the target, else the output of the closest example."""
    if hints.target is not None:
        return hints.target
    given = {name: _text(value) for name, value in hints.inputs.items()}
    words = _bag(" ".join(given.values()))
    best: tuple[float, str] | None = None
    for inputs, output in hints.examples:
        if inputs and all(given.get(name) == value.strip() for name, value in inputs.items()):
            return output
        others = _bag(" ".join(inputs.values()))
        overlap = len(words & others) / (len(words | others) or 1)
        if best is None or overlap > best[0]:
            best = (overlap, output)
    if best is None:
        return None
    return best[1]


def _with_logprobs(request: ModelRequest, response: ModelResponse, digest: bytes) -> ModelResponse:
    """`response` with probabilities of its words that are made up; with `echo`, the prompt."""
    if response.logprobs:
        return response
    rng = random.Random(digest)
    if request.echo:
        text = request.messages[-1].content
    else:
        text = response.content
    tokens: list[TokenLogprob] = []
    for token in re.findall(r"\s*\S+|\s+", text):
        if request.echo and not tokens:
            logprob = None
        else:
            logprob = -rng.random()
        if logprob is None or not request.logprobs:
            top = {}
        else:
            top = {token: logprob}
        tokens.append(TokenLogprob(token, logprob, top))
    return replace(response, content=text, logprobs=tuple(tokens))


def _digest(request: ModelRequest) -> bytes:
    """Identifies what a model would see, and the seed; neither the hints nor the timeout."""
    further = dict(settings_given(request))
    for name in ("temperature", "seed"):
        further.pop(name, None)
    parts = (
        request.model,
        list(map(Message.to_dict, request.messages)),
        [tool.name for tool in request.tools],
        request.temperature,
        request.seed,
        *further.items(),
    )
    return hashlib.blake2b(json.dumps(parts).encode("ascii"), digest_size=16).digest()


def _label(model: str) -> str:
    if model.split("/")[0] == "simulated":
        return model
    return f"simulated/{model}"


def _usage(request: ModelRequest, text: str, calls: Sequence[ToolCall]) -> Usage:
    sent = 4 * len(request.messages)
    for message in request.messages:
        sent += estimate_tokens(message.content)
    made = estimate_tokens(text)
    for call in calls:
        made += estimate_tokens(call.name + call.arguments)
    return Usage(sent, made, cached_tokens=0, reasoning_tokens=0, cost_usd=0.0, turns=1)


def _tool_call(item: Mapping[str, Any], index: int, digest: bytes) -> ToolCall:
    arguments = item.get("arguments", {})
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments)
    return ToolCall(
        str(item.get("id") or f"call_{digest.hex()[:8]}_{index}"),
        str(item["tool"]),
        arguments=arguments,
    )


def _as_calls(text: str, digest: bytes) -> tuple[str, tuple[ToolCall, ...]]:
    """The calls in a text such as `[{"name": "area", "arguments": {}}]`; without any, the text."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text, ()
    if isinstance(value, list):
        items = [item for item in cast("list[Any]", value) if isinstance(item, dict)]
    else:
        items = []
    named = [
        {**item, "tool": re.sub(r"[^\w-]", "_", str(item["name"]))}
        for item in items
        if "name" in item
    ]
    calls = tuple(_tool_call(item, number, digest=digest) for number, item in enumerate(named, 1))
    if calls:
        return ("", calls)
    return (text, ())


def _cut(text: str, max_tokens: int | None) -> str:
    """The longest beginning whose estimated size is within the limit."""
    if max_tokens is None or estimate_tokens(text) <= max_tokens:
        return text
    longer = bisect_right(
        range(1, len(text) + 1), max_tokens, key=lambda size: estimate_tokens(text[:size])
    )
    return text[:longer]


def _made_up(request: ModelRequest, rng: random.Random) -> str:
    from html import escape

    hints = request.hints
    prompt = next((m.content for m in reversed(request.messages) if m.role == "user"), "")
    topic = " ".join((hints.task or prompt).split())
    if len(topic) > 80:
        topic = topic[:79] + "…"
    if hints.output_type == "json":
        from evaluator.models.synthesis import synthesise

        return json.dumps(synthesise(hints.schema, rng), ensure_ascii=False)
    if hints.output_type == "xml":
        return f"<result>[simulated] {escape(topic, quote=False)}</result>"
    if hints.schema in ("number", "integer", "boolean"):
        from evaluator.models.synthesis import synthesise

        return json.dumps(synthesise(hints.schema, rng))
    if topic:
        return f"[simulated] an answer to: {topic}"
    return "[simulated]"


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value.strip()
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        return str(value)


def _bag(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.lower()))


def _spoiled(answer: str, hints: Hints, rng: random.Random) -> str:
    """A wrong answer of the same shape."""
    others = sorted({output for _, output in hints.examples if output.strip() != answer.strip()})
    if others:
        return rng.choice(others)
    try:
        return json.dumps(_spoiled_value(json.loads(answer)), ensure_ascii=False)
    except (ValueError, RecursionError):
        return f"[simulated] a wrong answer, {rng.randrange(1000)}"


def _spoiled_value(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, str):
        return f"not {value}"
    if isinstance(value, dict):
        members = cast("dict[str, Any]", value)
        return {name: _spoiled_value(member) for name, member in members.items()} or {"wrong": True}
    if isinstance(value, list):
        items = cast("list[Any]", value)
        return [_spoiled_value(item) for item in items] or ["wrong"]
    return "wrong"


def _mangled(answer: str, output_type: str, rng: random.Random) -> str:
    """The answer in a form that models often give. It stays readable with fences or prose, perhaps
    not if it is cut.
    """
    ways = ["fence", "prose", "cut"]
    if output_type == "json":
        ways += ["quotes", "comma"]
    way = rng.choice(ways)
    if way == "fence":
        return f"```{output_type if output_type != 'text' else ''}\n{answer}\n```"
    if way == "prose":
        return f"Sure, here is what you asked for:\n\n{answer}\n\nLet me know if you need more."
    if way == "quotes":
        return answer.replace('"', "'")
    if way == "comma" and answer.rstrip()[-1:] in ("}", "]"):
        stripped = answer.rstrip()
        return f"{stripped[:-1]},{stripped[-1]}"
    return answer[: max(1, len(answer) * 2 // 3)]
