"""An editor without a window: pygls' client drives the real server over standard input and output."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from pathlib import Path
from typing import Any

from lsprotocol import types
from pygls.lsp.client import BaseLanguageClient

CAPABILITIES = types.ClientCapabilities(
    text_document=types.TextDocumentClientCapabilities(
        completion=types.CompletionClientCapabilities(
            completion_item=types.ClientCompletionItemOptions(snippet_support=True)
        )
    ),
    workspace=types.WorkspaceClientCapabilities(
        workspace_edit=types.WorkspaceEditClientCapabilities(
            document_changes=True, resource_operations=[types.ResourceOperationKind.Create]
        )
    ),
)


class Editor:
    """A session with `evaluator lsp` in a folder. Texts are those that the editor shows."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.folder = folder
        self.options = options
        self.texts: dict[str, str] = {}
        self.versions: dict[str, int] = {}
        self.diagnostics: dict[str, types.PublishDiagnosticsParams] = {}
        self.messages: list[str] = []
        self.loop = asyncio.new_event_loop()
        self.client = BaseLanguageClient("test", "1")
        self._arrived = asyncio.Event()

        @self.client.feature(types.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)
        def published(params: types.PublishDiagnosticsParams) -> None:
            self.diagnostics[params.uri] = params
            self._arrived.set()

        @self.client.feature(types.WINDOW_SHOW_MESSAGE)
        def shown(params: types.ShowMessageParams) -> None:
            self.messages.append(params.message)

    def __enter__(self) -> Editor:
        self.run(self._start())
        return self

    def __exit__(self, *_: object) -> None:
        async def stop() -> None:
            await self.client.shutdown_async(None)
            self.client.exit(None)
            with contextlib.suppress(asyncio.CancelledError):
                await self.client.stop()

        self.run(stop())
        self.loop.close()

    def run(self, awaitable: Any) -> Any:
        return self.loop.run_until_complete(asyncio.wait_for(awaitable, 120))

    async def _start(self) -> None:
        await self.client.start_io(sys.executable, "-m", "evaluator", "lsp", cwd=str(self.folder))
        self.initialized = await self.client.initialize_async(
            types.InitializeParams(
                capabilities=CAPABILITIES,
                root_uri=self.folder.as_uri(),
                initialization_options=self.options or None,
            )
        )
        self.client.initialized(types.InitializedParams())

    def uri(self, name: str) -> str:
        return (self.folder / name).as_uri()

    def identifier(self, name: str) -> types.TextDocumentIdentifier:
        return types.TextDocumentIdentifier(self.uri(name))

    def open(self, name: str, text: str | None = None) -> None:
        if text is None:
            text = (self.folder / name).read_text(encoding="utf-8")
        self.texts[name] = text
        self.versions[name] = 1
        item = types.TextDocumentItem(self.uri(name), "xml", 1, text)
        self.client.text_document_did_open(types.DidOpenTextDocumentParams(item))

    def change(self, name: str, text: str) -> None:
        self.texts[name] = text
        self.versions[name] += 1
        self.client.text_document_did_change(
            types.DidChangeTextDocumentParams(
                types.VersionedTextDocumentIdentifier(
                    uri=self.uri(name), version=self.versions[name]
                ),
                [types.TextDocumentContentChangeWholeDocument(text=text)],
            )
        )

    def findings(self, name: str) -> list[types.Diagnostic]:
        """The diagnostics of the present version of a text."""

        async def wait() -> list[types.Diagnostic]:
            while True:
                known = self.diagnostics.get(self.uri(name))
                if known is not None and known.version == self.versions.get(name):
                    return list(known.diagnostics)
                self._arrived.clear()
                await self._arrived.wait()

        return self.run(wait())

    def place(self, name: str, mark: str, shift: int = 0) -> types.Position:
        """The place `shift` characters after the beginning of `mark` in a text."""
        offset = self.texts[name].index(mark) + shift
        before = self.texts[name][:offset]
        line = before.count("\n")
        return types.Position(line, len(before) - before.rfind("\n") - 1)

    def complete(self, name: str, mark: str, shift: int = 0) -> dict[str, types.CompletionItem]:
        params = types.CompletionParams(self.identifier(name), self.place(name, mark, shift))
        found = self.run(self.client.text_document_completion_async(params))
        return {item.label: item for item in found.items}

    def hover(self, name: str, mark: str, shift: int = 0) -> str:
        params = types.HoverParams(self.identifier(name), self.place(name, mark, shift))
        found = self.run(self.client.text_document_hover_async(params))
        return "" if found is None else found.contents.value

    def actions(self, name: str, start: str, end: str | None = None) -> dict[str, Any]:
        first = self.place(name, start)
        last = first if end is None else self.place(name, end, len(end))
        params = types.CodeActionParams(
            self.identifier(name), types.Range(first, last), types.CodeActionContext([])
        )
        found = self.run(self.client.text_document_code_action_async(params))
        return {action.title: action for action in found}

    def command(self, command: str, *arguments: Any) -> Any:
        params = types.ExecuteCommandParams(command, list(arguments))
        return self.run(self.client.workspace_execute_command_async(params))


def apply(text: str, edits: list[types.TextEdit]) -> str:
    """A text of ASCII with the edits made."""
    starts = [0]
    for line in text.split("\n"):
        starts.append(starts[-1] + len(line) + 1)

    def offset(position: types.Position) -> int:
        return starts[position.line] + position.character

    for edit in sorted(edits, key=lambda one: offset(one.range.start), reverse=True):
        text = text[: offset(edit.range.start)] + edit.new_text + text[offset(edit.range.end) :]
    return text
