"""One session with one server, opened, held and closed in a task of its own.

The SDK's cancel scopes have to be entered and left by one task; requests may come from any. Every way of failing is a
ToolError that names the server and says what happened, within the time of the request. Nothing is sent twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from evaluator.errors import EvaluatorError, MissingExtra, ToolError
from evaluator.handler.mcp.content import Listing, listing_of
from evaluator.handler.mcp.process import GRACE_S, ServerProcess
from evaluator.handler.mcp.servers import McpServer
from evaluator.handler.mcp.transport import http, stdio
from evaluator.handler.tools.threads import in_thread
from evaluator.record.redact import Redactor

if TYPE_CHECKING:
    from mcp import Client

MAX_TOOLS = 1_000
_CHECK_S = 5.0
_LEARN_WHY_S = 5.0
_SHOWN_CHARS = 500
_CONNECTION_CLOSED = -32000
_METHOD_NOT_FOUND = -32601

T = TypeVar("T")


class Connection:
    """A session that is being opened, is open, or is over. It opens at once and is never opened again."""

    def __init__(self, server: McpServer, environ: Mapping[str, str], cwd: Path | None) -> None:
        self.server = server
        self.why = ""
        """How it ended; "" before."""
        self._environ = environ
        self._cwd = cwd
        self._redactor = Redactor(server.secrets(environ))
        self._refused: list[str] = []
        self._process: ServerProcess | None = None
        self._stop = asyncio.Event()
        self._opened: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._opened.add_done_callback(_retrieved)
        self._listing: Listing | None = None
        self._changes = 0
        self._checking: asyncio.Task[None] | None = None
        self._asked: set[asyncio.Future[Any]] = set()
        self._held = asyncio.create_task(self._hold(), name=f"mcp-{server.name}")

    @property
    def is_over(self) -> bool:
        return self._held.done() or self._stop.is_set()

    async def settle(self) -> None:
        """Waits until it is known whether a server that did not answer is still there."""
        if self._checking is not None:
            await asyncio.wait([self._checking])

    # -- the session ----------------------------------------------------------------------------------------

    async def _hold(self) -> None:
        try:
            await in_thread(_load_sdk)
            # Servers of today first; one that answers a handshake with an error may be of the era after it.
            if not await self._session("legacy"):
                self.why = ""
                await self._session("auto")
        except EvaluatorError as error:
            self.why = self.why or str(error)
            if isinstance(error, MissingExtra) and not self._opened.done():
                self._opened.set_exception(error)
        except Exception as error:
            self.why = self.why or self._described(error)
        finally:
            self._stop.set()
            self.why = self.why or "it was closed"
            if not self._opened.done():
                self._opened.set_exception(ToolError(f"MCP server {self.server.name!r} cannot be used: {self.why}"))

    async def _session(self, mode: str) -> bool:
        """One session from its opening to its end. Returns False where the server refused this way of opening it."""
        from mcp import Client, MCPError
        from mcp.types import Implementation

        process = self._process = None
        if self.server.command is not None:
            process = self._process = await ServerProcess.start(self.server, self._environ, self._cwd)
        try:
            async with AsyncExitStack() as stack:
                client = Client(
                    http(self.server, self._environ, self._refused) if process is None else stdio(process),
                    mode=mode,
                    cache=None,
                    client_info=Implementation(name="evaluator", version=version("evaluator")),
                    message_handler=self._hear,
                )
                opening = asyncio.timeout(self.server.timeout_s)
                try:
                    async with opening:
                        await stack.enter_async_context(client)
                except TimeoutError:
                    if not opening.expired():
                        raise
                    self.why = f"it did not answer within {self.server.timeout_s:g} s of its start"
                    return True
                except Exception as error:
                    cause = _first(error)
                    if not isinstance(cause, MCPError):
                        raise
                    if cause.code != _CONNECTION_CLOSED:
                        self.why = f"it refused the session: {self._described(cause)}"
                        return mode != "legacy"
                    return True
                self._opened.set_result(client)
                await self._until_over(client, process)
        finally:
            if process is not None:
                await process.close(0 if self.why or process.why else GRACE_S)
                said = process.said()
                self.why = "; ".join(filter(None, (self.why or process.why, said)))
        return True

    async def _until_over(self, client: Client, process: ServerProcess | None) -> None:
        waits: list[asyncio.Task[Any]] = [asyncio.create_task(self._stop.wait())]
        if process is not None:
            waits.append(asyncio.create_task(process.finished.wait()))
        listening = asyncio.create_task(self._listen(client))
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (*waits, listening):
                task.cancel()
            await asyncio.wait([*waits, listening])

    async def _listen(self, client: Client) -> None:
        """Servers without a handshake tell of changes only who asks for it."""
        from mcp.client.subscriptions import ListenNotSupportedError, SubscriptionLost

        try:
            async with client.listen(tools_list_changed=True) as changes:
                async for _ in changes:
                    self._forget_listing()
        except (ListenNotSupportedError, SubscriptionLost):
            return
        except Exception:
            logging.getLogger("evaluator").debug("MCP server %s tells of no changes", self.server.name, exc_info=True)

    async def _hear(self, message: Any) -> None:
        if getattr(message, "method", None) == "notifications/tools/list_changed":
            self._forget_listing()

    def _forget_listing(self) -> None:
        self._changes += 1
        self._listing = None

    # -- requests -------------------------------------------------------------------------------------------

    async def request(
        self, what: str, send: Callable[[Client], Awaitable[T]], timeout_s: float, *, is_call: bool = False
    ) -> T:
        """The answer to what `send` asks, within `timeout_s` seconds, which count the opening too.

        `is_call`: it may change something, which an error then says.

        Raises: ToolError.
        """
        name = self.server.name
        timer = asyncio.timeout(timeout_s)
        try:
            async with timer:
                client = await asyncio.shield(self._opened)
                return await self._asked_of(client, what, send, is_call)
        except TimeoutError as error:
            if not timer.expired():
                raise
            if self._opened.done():
                self._check()
                after = "; the call was not repeated and may still take effect" if is_call else ""
            else:
                after = ", its start included"
            said = "" if self._process is None else self._process.said()
            raise ToolError(
                f"MCP server {name!r} did not answer {what} within {timeout_s:.3g} s{after}{said and f'; {said}'}"
            ) from error

    async def _asked_of(self, client: Client, what: str, send: Callable[[Client], Awaitable[T]], is_call: bool) -> T:
        from mcp import MCPError
        from pydantic import ValidationError

        name = self.server.name
        answer = asyncio.ensure_future(send(client))
        self._asked.add(answer)
        answer.add_done_callback(self._asked.discard)
        answer.add_done_callback(_retrieved)
        try:
            await asyncio.wait([answer, self._held], return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                raise self._ended(what, is_call)
            return answer.result()
        except MCPError as error:
            if error.code == _CONNECTION_CLOSED:
                await self._learn_why()
                raise self._ended(what, is_call) from error
            self._check()
            raise ToolError(f"MCP server {name!r} answered {what} with an error: {self._described(error)}") from error
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"]))
            raise ToolError(
                f"MCP server {name!r} answered {what} with what is not the protocol's: {place}: {first['msg']}"
            ) from error
        except (EvaluatorError, asyncio.CancelledError):
            raise
        except Exception as error:
            raise ToolError(
                f"MCP server {name!r} answered {what} with what cannot be used: {self._described(error)}"
            ) from error
        finally:
            answer.cancel()

    async def _learn_why(self) -> None:
        """A program's end says why; over HTTP one answer may be lost and the session still be there."""
        ends: list[asyncio.Task[Any]] = [self._held]
        if self.server.command is None:
            ends.append(self._check())
        await asyncio.wait(ends, timeout=_LEARN_WHY_S, return_when=asyncio.FIRST_COMPLETED)

    def _ended(self, what: str, is_call: bool) -> ToolError:
        why = self.why or "the connection closed"
        after = "; the call was not repeated and may have taken effect" if is_call else ""
        return ToolError(f"MCP server {self.server.name!r} was lost during {what}: {why}{after}")

    def _check(self) -> asyncio.Task[None]:
        """Asks in the background whether the server still answers, and closes the session if not."""
        if self._checking is None or self._checking.done():
            self._checking = asyncio.create_task(self._see_whether_it_answers())
        return self._checking

    async def _see_whether_it_answers(self) -> None:
        from mcp import MCPError

        try:
            async with asyncio.timeout(_CHECK_S):
                await self._opened.result().session.send_ping()
        except MCPError as error:
            if error.code == _METHOD_NOT_FOUND:
                return
        except Exception:
            pass  # whatever it was, it was no answer
        else:
            return
        self.why = self.why or "it no longer answers"
        self._stop.set()

    async def listing(self, timeout_s: float) -> Listing:
        """The server's tools, asked for again when the server has said that they changed.

        Raises: ToolError.
        """
        if self._listing is not None:
            return self._listing
        changes = self._changes
        tools = await self.request("tools/list", _list_tools, timeout_s)
        listing = listing_of(self.server, tools)
        if changes == self._changes:
            self._listing = listing
        return listing

    async def aclose(self) -> None:
        """Ends the session and returns when nothing of it is left."""
        self._stop.set()
        await asyncio.wait([self._held], timeout=2 * GRACE_S)
        self._held.cancel()  # a server that cannot even be told goodbye
        await asyncio.wait([self._held])

    def _described(self, error: BaseException) -> str:
        error = _first(error)
        told = " ".join(str(error).split())[:_SHOWN_CHARS] or type(error).__name__
        if self._refused:
            told = f"{told} ({self._refused[0]})"
        return self._redactor.redact(told)


async def _list_tools(client: Client) -> list[Any]:
    tools: list[Any] = []
    cursor: str | None = None
    seen: set[str] = set()
    while True:
        page = await client.list_tools(cursor=cursor)
        tools += page.tools
        cursor = page.next_cursor
        if cursor is None or cursor in seen:
            return tools
        if len(tools) > MAX_TOOLS:
            raise ToolError(f"it lists more than {MAX_TOOLS:,} tools")
        seen.add(cursor)


def _load_sdk() -> None:
    """Raises: MissingExtra."""
    try:
        import_module("mcp")
        import_module("mcp.client.streamable_http")
    except ImportError as error:
        raise MissingExtra("mcp", "mcp") from error
    # What the SDK logs about a server that fails is in our errors; without a handler it would go to the terminal.
    for name in ("mcp", "client"):
        logger = logging.getLogger(name)
        if not logger.handlers:
            logger.addHandler(logging.NullHandler())


def _first(error: BaseException) -> BaseException:
    """The exception that a group is about."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _retrieved(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()
