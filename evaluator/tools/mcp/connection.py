"""A session with one MCP server, opened and closed by its own asyncio task.

The SDK's cancel scopes have to be entered and left by the same task; requests may come from any
task. Every failure is a ToolError that names the server and the cause, within the time of the
request. Nothing is sent twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from evaluator.errors import EvaluatorError, MissingExtra, ToolError
from evaluator.errors.messages import LOGGER
from evaluator.files.project_code import import_extra
from evaluator.processes.concurrency import in_thread
from evaluator.record.redact import Redactor
from evaluator.tools.mcp.content import EventWatch, ToolListing, event_of, listing_of
from evaluator.tools.mcp.servers import McpServer
from evaluator.tools.mcp.transport import GRACE_S, ServerProcess, http, stdio

if TYPE_CHECKING:
    from mcp import Client

MAX_TOOLS = 1_000
MAX_PAGES = 100
# A server that sends more messages than these, which nobody asked for, keeps the process busy.
MAX_MESSAGES = 20_000
_MESSAGES_PER_SECOND = 1_000
_CHECK_S = 5.0
_LEARN_WHY_S = 5.0
_SHOWN_CHARS = 500
_CONNECTION_CLOSED = -32000
_METHOD_NOT_FOUND = -32601
_SDK = ("mcp", "mcp.client.streamable_http", "mcp.client.subscriptions")

T = TypeVar("T")


class Connection:
    """A session that is being opened, is open, or has ended. The constructor opens it; it is never
    opened again.

    `watch` gets what the server announces; a server that cannot announce it ends the session.
    """

    def __init__(
        self,
        server: McpServer,
        environ: Mapping[str, str],
        cwd: Path | None,
        watch: EventWatch | None = None,
    ) -> None:
        self.server = server
        self._watch = watch
        self.why = ""
        """The reason why the session ended; "" before its end."""
        self._environ = environ
        self._cwd = cwd
        self._redactor = Redactor(server.secrets(environ))
        self._refused: list[str] = []
        self._process: ServerProcess | None = None
        self._stop = asyncio.Event()
        self._opened: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._opened.add_done_callback(_retrieve_exception)
        self._listing: ToolListing | None = None
        self._changes = 0
        self._messages = 0.0
        self._counted_at = 0.0
        self._checking: asyncio.Task[None] | None = None
        self._requests: set[asyncio.Future[Any]] = set()
        self._session_task = asyncio.create_task(self._keep_open(), name=f"mcp-{server.name}")

    @property
    def is_over(self) -> bool:
        return self._session_task.done() or self._stop.is_set()

    async def ended(self) -> str:
        """Waits until the session has ended. Returns: why."""
        await asyncio.wait([self._session_task])
        return self.why

    async def settle(self) -> None:
        """Waits for a running check whether a server that did not answer is still alive."""
        if self._checking is not None:
            await asyncio.wait([self._checking])

    # -- the session -------------------------------------------------------------------------------

    async def _keep_open(self) -> None:
        try:
            await in_thread(_load_sdk)
            # The handshake of current servers first; a newer server may answer it with an error.
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
                self._opened.set_exception(
                    ToolError(f"MCP server {self.server.name!r} cannot be used: {self.why}")
                )

    async def _session(self, mode: str) -> bool:
        """One session from start to end. Returns False if the server refused this way of opening
        it.
        """
        from mcp import Client, MCPError
        from mcp.types import Implementation

        process = self._process = None
        if self.server.command is not None:
            process = self._process = await ServerProcess.start(
                self.server, self._environ, cwd=self._cwd
            )
        try:
            async with AsyncExitStack() as stack:
                client = Client(
                    http(self.server, self._environ, refused=self._refused)
                    if process is None
                    else stdio(process),
                    mode=mode,
                    cache=None,
                    client_info=Implementation(name="evaluator", version=version("evaluator")),
                    message_handler=self._handle_message,
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
                self.why = "; ".join(
                    filter(None, (self.why or process.why, process.other_output()))
                )
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
        """Subscribes to changes; servers without a handshake do not announce them otherwise."""
        from mcp.client.subscriptions import ListenNotSupportedError, SubscriptionLost

        is_watch = self._watch is not None
        uris = ()
        if self._watch is not None:
            uris = self._watch.uris
        try:
            async with client.listen(
                tools_list_changed=True,
                prompts_list_changed=is_watch,
                resources_list_changed=is_watch,
                resource_subscriptions=uris,
            ) as changes:
                if refused := sorted({*uris} - {*(changes.honored.resource_subscriptions or ())}):
                    return self._end_watch(f"it does not announce changes of {', '.join(refused)}")
                async for _ in changes:
                    pass  # each is also a message
            self._end_watch("it has ended the subscription")
        except ListenNotSupportedError:
            await self._subscribe(client, uris)
        except SubscriptionLost as error:
            self._end_watch(f"the subscription was lost: {self._described(error)}")
        except Exception as error:
            LOGGER.debug("MCP server %s announces no changes", self.server.name, exc_info=True)
            if uris:
                self._end_watch(f"it does not announce changes: {self._described(error)}")

    async def _subscribe(self, client: Client, uris: tuple[str, ...]) -> None:
        """Subscribes to the resources at a server with a handshake, which announces everything else
        by itself.
        """
        from mcp.types import EmptyResult, SubscribeRequest, SubscribeRequestParams

        for uri in uris:
            try:  # not by the client's own method, which warns that newer servers have another one
                request = SubscribeRequest(params=SubscribeRequestParams(uri=uri))
                await client.session.send_request(request, EmptyResult)
            except Exception as error:
                return self._end_watch(
                    f"it does not announce changes of {uri}: {self._described(error)}"
                )

    def _end_watch(self, why: str) -> None:
        if self._watch is not None:
            self.why = self.why or why
            self._stop.set()

    async def _handle_message(self, message: Any) -> None:
        now = asyncio.get_running_loop().time()
        elapsed = now - self._counted_at
        self._messages = max(0.0, self._messages - elapsed * _MESSAGES_PER_SECOND) + 1
        self._counted_at = now
        if self._messages > MAX_MESSAGES:
            self.why = self.why or f"it sent more than {MAX_MESSAGES:,} messages without a request"
            self._stop.set()
            return
        event = event_of(message)
        if event is None:
            return
        if event["event"] == "tools_changed":
            self._changes += 1
            self._listing = None
        if self._watch is not None:
            self._watch.on_event(event)

    # -- requests ----------------------------------------------------------------------------------

    async def request(
        self,
        what: str,
        send: Callable[[Client], Awaitable[T]],
        timeout_s: float,
        *,
        is_call: bool = False,
    ) -> T:
        """The answer to the request that `send` makes, within `timeout_s` seconds, which include
        opening the session.

        `is_call`: the request may change something, which the text of an error then mentions.

        Raises: ToolError.
        """
        name = self.server.name
        timer = asyncio.timeout(timeout_s)
        try:
            async with timer:
                client = await asyncio.shield(self._opened)
                return await self._send(client, what, send=send, is_call=is_call)
        except TimeoutError as error:
            if not timer.expired():
                raise
            after = ""
            if not self._opened.done():
                after = ", its start included"
            else:
                self._check()
                if is_call:
                    after = "; the call was not repeated and may still take effect"
            output = ""
            if self._process is not None:
                output = self._process.other_output()
            raise ToolError(
                f"MCP server {name!r} did not answer {what} within {timeout_s:.3g} "
                f"s{after}{output and f'; {output}'}"
            ) from error

    async def _send(
        self, client: Client, what: str, send: Callable[[Client], Awaitable[T]], is_call: bool
    ) -> T:
        from mcp import MCPError
        from pydantic import ValidationError

        name = self.server.name
        answer = asyncio.ensure_future(send(client))
        self._requests.add(answer)
        answer.add_done_callback(self._requests.discard)
        answer.add_done_callback(_retrieve_exception)
        try:
            await asyncio.wait([answer, self._session_task], return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                raise self._ended(what, is_call)
            return answer.result()
        except MCPError as error:
            if error.code == _CONNECTION_CLOSED:
                await self._learn_why()
                raise self._ended(what, is_call) from error
            self._check()
            raise ToolError(
                f"MCP server {name!r} answered {what} with an error: {self._described(error)}"
            ) from error
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"]))
            raise ToolError(
                f"MCP server {name!r} answered {what} with a message that violates the protocol: "
                f"{place}: {first['msg']}"
            ) from error
        except (EvaluatorError, asyncio.CancelledError):
            raise
        except Exception as error:
            raise ToolError(
                f"MCP server {name!r} answered {what} with a message that cannot be used: "
                f"{self._described(error)}"
            ) from error
        finally:
            answer.cancel()

    async def _learn_why(self) -> None:
        """Waits for the reason: how the program ended, or for HTTP whether the session still
        works.
        """
        ends: list[asyncio.Task[Any]] = [self._session_task]
        if self.server.command is None:
            ends.append(self._check())
        await asyncio.wait(ends, timeout=_LEARN_WHY_S, return_when=asyncio.FIRST_COMPLETED)

    def _ended(self, what: str, is_call: bool) -> ToolError:
        why = self.why or "the connection closed"
        after = ""
        if is_call:
            after = "; the call was not repeated and may have taken effect"
        return ToolError(f"MCP server {self.server.name!r} was lost during {what}: {why}{after}")

    def _check(self) -> asyncio.Task[None]:
        """Checks in the background whether the server still answers, and closes the session if
        not.
        """
        if self._checking is None or self._checking.done():
            self._checking = asyncio.create_task(self._ping())
        return self._checking

    async def _ping(self) -> None:
        from mcp import MCPError

        try:
            async with asyncio.timeout(_CHECK_S):
                await self._opened.result().session.send_ping()
        except MCPError as error:
            if error.code == _METHOD_NOT_FOUND:
                return
        except Exception:
            pass  # whatever failed, the server did not answer
        else:
            return
        self.why = self.why or "it no longer answers"
        self._stop.set()

    async def listing(self, timeout_s: float) -> ToolListing:
        """The server's tools; requested again after the server announced a change.

        Raises: ToolError.
        """
        if self._listing is not None:
            return self._listing
        changes = self._changes
        tools = await self.request("tools/list", _list_tools, timeout_s=timeout_s)
        # In a thread, as checks of many large schemas take seconds.
        listing = await in_thread(lambda: listing_of(self.server, tools))
        if changes == self._changes:
            self._listing = listing
        return listing

    async def aclose(self, why: str = "") -> None:
        """Ends the session; returns when its server process is dead. With a reason `why`, it is
        killed at once.
        """
        self.why = self.why or why
        self._stop.set()
        await asyncio.wait([self._session_task], timeout=2 * GRACE_S)
        self._session_task.cancel()  # a server that does not let the session end
        await asyncio.wait([self._session_task])

    def _described(self, error: BaseException) -> str:
        error = _first(error)
        text = " ".join(str(error).split())[:_SHOWN_CHARS] or type(error).__name__
        if self._refused:
            text = f"{text} ({self._refused[0]})"
        return self._redactor.redact(text)


async def _list_tools(client: Client) -> list[Any]:
    tools: list[Any] = []
    cursor: str | None = None
    seen: set[str] = set()
    while True:
        page = await client.list_tools(cursor=cursor)
        tools += page.tools
        cursor = page.next_cursor
        if len(tools) > MAX_TOOLS:
            raise ToolError(f"it lists more than {MAX_TOOLS:,} tools")
        if cursor is None or cursor in seen:
            return tools
        seen.add(cursor)
        if len(seen) > MAX_PAGES:
            raise ToolError(f"its list of tools has more than {MAX_PAGES:,} pages")


def _load_sdk() -> None:
    """Raises: MissingExtra."""
    for module in _SDK:
        import_extra(module, "mcp")
    # Our errors have what the SDK logs about a failing server; without a handler it would go to the
    # terminal.
    for name in ("mcp", "client"):
        logger = logging.getLogger(name)
        if not logger.handlers:
            logger.addHandler(logging.NullHandler())


def _first(error: BaseException) -> BaseException:
    """The first exception inside an exception group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _retrieve_exception(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()
