"""A real Chromium over its DevTools protocol: open a file, run JavaScript in it, press keys."""

from __future__ import annotations

import asyncio
import contextlib
import re
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp

NAMES = ("chromium", "chromium-browser", "google-chrome")
WIDE = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
KEYS = {
    "Enter": 13,
    "Escape": 27,
    "ArrowRight": 39,
    "ArrowLeft": 37,
    "ArrowDown": 40,
    "Tab": 9,
    " ": 32,
}
CHARACTERS = {"/": 191, "?": 191} | {each: ord(each.upper()) for each in "0123456789fjknpqsuvw"}


def find_chromium() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


@contextlib.contextmanager
def running(profile: Path) -> Iterator[str]:
    """The WebSocket's address of a headless browser, which ends with the block."""
    program = find_chromium()
    assert program is not None
    command = [
        program,
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--no-first-run",
        "--disable-background-networking",
        "--remote-debugging-port=0",
        f"--user-data-dir={profile}",
        "about:blank",
    ]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    ) as process:
        try:
            assert process.stderr is not None
            found = (re.search(r"ws://\S+", line) for line in process.stderr)
            yield next(match[0] for match in found if match)
        finally:
            process.terminate()


class Page:
    """One tab. `requests` are the addresses that it asked for, `problems` what its console complained of."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._session: str | None = None
        self._last = 0
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._document: str | None = None
        self._loaded = asyncio.Condition()
        self.requests: list[str] = []
        self.problems: list[str] = []

    async def send(self, method: str, **params: Any) -> Any:
        self._last += 1
        answer = self._answers[self._last] = asyncio.get_running_loop().create_future()
        message: dict[str, Any] = {"id": self._last, "method": method, "params": params}
        await self._socket.send_json(
            message | ({"sessionId": self._session} if self._session else {})
        )
        return await answer

    async def listen(self) -> None:
        async for message in self._socket:
            data = message.json()
            match data.get("method"):
                case None:
                    answer = self._answers.pop(data["id"])
                    if "error" in data:
                        answer.set_exception(RuntimeError(str(data["error"])))
                    else:
                        answer.set_result(data["result"])
                case "Page.lifecycleEvent" if data["params"]["name"] == "load":
                    async with self._loaded:
                        self._document = data["params"]["loaderId"]
                        self._loaded.notify_all()
                case "Network.requestWillBeSent":
                    self.requests.append(data["params"]["request"]["url"])
                case "Runtime.exceptionThrown" | "Log.entryAdded":
                    self.problems.append(str(data["params"]))
                case _:
                    pass

    async def attach(self) -> None:
        target = await self.send("Target.createTarget", url="about:blank")
        attached = await self.send(
            "Target.attachToTarget", targetId=target["targetId"], flatten=True
        )
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            await self.send(f"{domain}.enable")
        await self.send("Page.setLifecycleEventsEnabled", enabled=True)

    async def open(self, path: Path, *, width: int = 1280, height: int = 900) -> None:
        """Opens a report and returns once it has built itself."""
        await self.resize(width, height)
        await opened(self, path.as_uri())

    async def visit(self, address: str) -> None:
        """Opens an address and returns once this document, and no earlier one, is loaded."""
        wanted = (await self.send("Page.navigate", url=address))["loaderId"]
        async with self._loaded:
            await self._loaded.wait_for(lambda: self._document == wanted)

    async def follow(self, key: str) -> None:
        """Presses a key that leads to another page, and returns once that is drawn."""
        earlier = self._document
        await self.press(key)
        async with self._loaded:
            await self._loaded.wait_for(lambda: self._document != earlier)
        await self.run(becomes("document.documentElement.dataset.ready"))

    async def resize(self, width: int, height: int = 900) -> None:
        await self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    async def media(self, *, scheme: str = "light", media: str = "") -> None:
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        await self.send("Emulation.setEmulatedMedia", media=media, features=features)

    async def run(self, script: str) -> Any:
        """The value of a JavaScript expression; waits for a promise."""
        found = await self.send(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in found:
            raise RuntimeError(str(found["exceptionDetails"]))
        return found["result"].get("value")

    async def press(self, key: str) -> None:
        shared = {"key": key, "code": key, "windowsVirtualKeyCode": (KEYS | CHARACTERS)[key]}
        is_typed = key in ("Enter", " ", *CHARACTERS)
        text = {"text": {"Enter": "\r"}.get(key, key)} if is_typed else {}
        await self.send("Input.dispatchKeyEvent", type="keyDown", **shared, **text)
        await self.send("Input.dispatchKeyEvent", type="keyUp", **shared)


@contextlib.asynccontextmanager
async def tab(address: str) -> AsyncIterator[Page]:
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(address, max_msg_size=0) as socket,
    ):
        page = Page(socket)
        listening = asyncio.create_task(page.listen())
        try:
            await page.attach()
            yield page
        finally:
            listening.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await listening


def becomes(condition: str) -> str:
    """JavaScript that waits until the page fulfils a condition."""
    return (
        f"new Promise((done) => {{ const look = () => ({condition}) && (done(true), true);"
        "if (!look()) new MutationObserver((_, seen) => look() && seen.disconnect())"
        ".observe(document, {subtree: true, childList: true, attributes: true, characterData: true}); })"
    )


async def opened(page: Page, address: str) -> None:
    """Opens an address and returns once the page is drawn."""
    await page.visit(address)
    await page.run(becomes("document.documentElement.dataset.ready"))


async def links(page: Page, prefix: str) -> list[str]:
    return await page.run(
        f"[...document.querySelectorAll('main a[href^=\"{prefix}\"]')].map((link) => link.href)"
    )
