"""The batch APIs of providers: many requests in one batch, answered within a day at half price.

`ProviderBatches` is the protocol of an API. `batches_of` asks a backend for the API of its
provider.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Protocol

from evaluator.errors import ProviderError
from evaluator.lazy_dataclass import frozen
from evaluator.models.backend import Backend, ModelRequest, ModelResponse


@frozen
class ProviderBatch:
    """A batch at the provider, as it was seen last.

    `status` is the provider's word. `is_over`: nothing of it runs any more. `tag` is what it was
    created with, and `upload` the file of its requests, each None where the answer does not tell.
    `created` and `expires` are Unix times. `problem`: why it was rejected as a whole, before
    anything was billed; `is_refused_now`: only because too much is enqueued. `files` have its
    results.
    """

    id: str
    status: str
    is_over: bool
    tag: str | None = None
    upload: str | None = None
    created: float | None = None
    expires: float | None = None
    requests: int | None = None
    problem: str | None = None
    is_refused_now: bool = False
    files: tuple[str, ...] = ()


@frozen
class BatchAnswer:
    """The result of one request of a batch: a response, or an error. A retryable error may be
    tried in another batch.
    """

    custom_id: str
    response: ModelResponse | None = None
    error: ProviderError | None = None

    @property
    def cause(self) -> str:
        """In a word: answered, unanswered (expired or cancelled), failed or refused."""
        error = self.error
        if error is None:
            return "answered"
        if error.kind == "timeout":
            return "unanswered"
        return "failed" if error.retryable else "refused"


class ProviderBatches(Protocol):
    """The batch API of one provider. Each method makes one attempt; all raise ProviderError."""

    @property
    def format(self) -> str:
        """The wire format: "openai", "anthropic", "gemini" or "mistral"."""
        ...

    @property
    def max_requests(self) -> int: ...

    @property
    def max_bytes(self) -> int: ...

    def request_line(self, custom_id: str, request: ModelRequest) -> bytes:
        """A request as a line of a file, for `create`. Raises: ProviderError of the kind
        `bad_request`, for what the API cannot take.
        """
        ...

    async def upload(self, path: Path, tag: str, *, is_repeated: bool) -> str | None:
        """Sends a file of requests, unless `is_repeated` and the provider has it already. Returns:
        its id; None where `create` sends the requests.
        """
        ...

    async def create(self, path: Path, upload: str | None, tag: str) -> ProviderBatch:
        """Creates a batch, which will be billed. It is not idempotent."""
        ...

    def listed(self) -> AsyncIterator[ProviderBatch]:
        """The batches of the account, the newest first."""
        ...

    async def look(self, batch: str) -> ProviderBatch: ...

    def answers(self, batch: ProviderBatch) -> AsyncIterator[BatchAnswer]:
        """The answers in all files of results of a batch that is over, in no order."""
        ...

    async def cancel(self, batch: str) -> None: ...

    async def clean_up(self, batch: ProviderBatch, upload: str | None) -> None:
        """Deletes the files of a batch, or the batch with its results, at the provider."""
        ...

    async def aclose(self) -> None: ...


def batches_of(backend: Backend, model: str) -> ProviderBatches | None:
    """The batch API that `backend` reaches `model` with; None if it has none."""
    own: Callable[[str], ProviderBatches | None] | None = getattr(backend, "batches", None)
    if own is None:
        return None
    return own(model)


def is_certainly_absent(error: ProviderError) -> bool:
    """Whether a request that failed with `error` certainly had no effect."""
    if error.status is None:
        return not error.maybe_billed
    return error.status < 500 and error.status not in (408, 409)


def unanswered(cause: str) -> ProviderError:
    """The error of a request that a batch did not answer, and that was not billed: it expired or
    was cancelled.
    """
    return ProviderError(
        f"the provider batch ended before the request was answered ({cause})",
        kind="timeout",
        retryable=True,
        maybe_billed=False,
    )
