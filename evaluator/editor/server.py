"""The language server over standard input and output: requests of an editor, answered from the
project.

Texts are synchronised as a whole. Findings are published after each change, those of other files
where they have changed too.

The commands that a user triggers in an editor: the prompts of a template, and a run with the
simulated model. Both take the inputs of the template's first example.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from lsprotocol import types
from pygls.lsp.server import LanguageServer
from pygls.uris import from_fs_path, to_fs_path

from evaluator.authoring.portraits import (
    offline_evaluator,
    prompts_of,
    runs_programs,
    sample_inputs,
)
from evaluator.editor.actions import Change, actions
from evaluator.editor.completion import completions
from evaluator.editor.hover import RENDER, SIMULATE, folding, hover, lenses, symbols
from evaluator.editor.names import Key, Names, Site, declaration_of, files_with, renamed
from evaluator.editor.project import Document, Project, View
from evaluator.errors import Diagnostic, EvaluatorError, TemplateError, UsageError
from evaluator.errors.messages import visible
from evaluator.errors.results import TaskError
from evaluator.nodes import Function
from evaluator.xml.format import ROOTS, format_source
from evaluator.xml.source import read_source


def rendered(project: Project, view: View, name: str) -> str:
    """What a model would see for a template, without a call. Raises: EvaluatorError."""
    prompts = next(prompts_of(view.library, project.profiles, name))
    lines = [f"({prompts.title})", *prompts.requests]
    if prompts.error is not None:
        lines.append(f"error: {prompts.error}")
    return visible("\n".join(lines))


def simulated(project: Project, view: View, name: str) -> str:
    """The result of a run with the simulated model, which is not recorded. Raises: EvaluatorError,
    also for a template that runs programs.
    """
    node = view.library.get(name).node
    if isinstance(node, Function):
        raise UsageError(f"`{name}` is a function; run a template that calls it")
    if runs_programs(view.library, node):
        raise UsageError(
            f"`{name}` runs programs or tools, which an editor does not; use: "
            f"evaluator run --template {name} --handler offline"
        )
    with offline_evaluator(view.library, project.profiles) as evaluator:
        outcome = evaluator.evaluate_sync(name, sample_inputs(node))
    if isinstance(outcome, TaskError):
        return visible(f"error: {outcome}")
    return visible(f"{outcome.content}\n\n(simulated model)")


_SEVERITIES = {
    "error": types.DiagnosticSeverity.Error,
    "warning": types.DiagnosticSeverity.Warning,
    "note": types.DiagnosticSeverity.Information,
}


class TemplateServer(LanguageServer):
    """A language server for one project. `model` is the one that prices are for."""

    def __init__(self, model: str | None = None) -> None:
        super().__init__(
            "evaluator",
            version("evaluator"),
            text_document_sync_kind=types.TextDocumentSyncKind.Full,
        )
        self.model = model
        self.shows_results = False
        self._project: Project | None = None
        self._published: dict[str, tuple[int | None, list[Diagnostic]]] = {}
        self._is_due = False

    @property
    def project(self) -> Project:
        if self._project is None:
            encoding = self.server_capabilities.position_encoding
            self._project = Project(
                Path.cwd(), encoding or types.PositionEncodingKind.Utf16, self.model
            )
        return self._project

    def document(self, uri: str) -> Document | None:
        path = path_of(uri)
        return None if path is None else self.project.document(path)

    def publish_soon(self) -> None:
        """Publishes the findings when the messages that have arrived are handled."""
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self.publish)

    def publish(self) -> None:
        """Sends the findings of each file whose findings or text have changed."""
        self._is_due = False
        project = self.project
        found = project.findings()
        for path in {*found, *self._published, *project.documents}:
            opened = project.documents.get(path)
            if opened is None:
                document_version = None
            else:
                document_version = opened.version
            state = (document_version, found.get(path, []))
            if self._published.get(path) == state:
                continue
            if path in found or path in project.documents:
                self._published[path] = state
            else:
                del self._published[path]
            document = project.document(path)
            if document is None:
                shown = []
            else:
                shown = [_diagnostic(document, d) for d in state[1]]
            self.text_document_publish_diagnostics(
                types.PublishDiagnosticsParams(uri_of(path), shown, document_version)
            )


def path_of(uri: str) -> str | None:
    """The path that a file's URI names, without links; None for another URI, and for a name that no
    file can have.
    """
    path = to_fs_path(uri)
    if not uri.startswith("file:") or path is None:
        return None
    try:
        return os.path.realpath(path)
    except ValueError:  # a zero byte, or half of a surrogate pair
        return None


def uri_of(path: str) -> str:
    return from_fs_path(path) or ""


def _diagnostic(document: Document, diagnostic: Diagnostic) -> types.Diagnostic:
    start = document.offset_of(diagnostic.span)
    message = diagnostic.message
    if diagnostic.hint:
        message = f"{message}; {diagnostic.hint}"
    return types.Diagnostic(
        document.range(start, document.word_end(start)),
        message,
        severity=_SEVERITIES[diagnostic.severity],
        code=diagnostic.code,
        source="evaluator",
    )


def make_server(model: str | None = None) -> TemplateServer:
    """The server with all its features; `start_io` starts it."""
    # Errors are answers of requests; nothing is written to the terminal.
    logging.getLogger("pygls").addHandler(logging.NullHandler())
    server = TemplateServer(model)
    _add_synchronisation(server)
    _add_reading(server)
    _add_changing(server)
    _add_commands(server)
    return server


def _add_synchronisation(server: TemplateServer) -> None:
    @server.feature(types.INITIALIZE)
    def initialize(ls: TemplateServer, params: types.InitializeParams) -> None:
        folders = params.workspace_folders
        if folders:
            root = path_of(folders[0].uri)
        else:
            root = None
        if root is None and params.root_uri is not None:
            root = path_of(params.root_uri)
        if root is not None and os.path.isdir(root):
            os.chdir(root)
        options: Any = params.initialization_options
        if isinstance(options, dict):
            ls.shows_results = options.get("showsResults") is True
            if isinstance(options.get("model"), str) and options["model"]:
                ls.model = options["model"]

    @server.feature(types.INITIALIZED)
    def initialized(ls: TemplateServer, params: types.InitializedParams) -> None:
        capabilities = ls.client_capabilities.workspace
        watched = capabilities and capabilities.did_change_watched_files
        if watched is not None and watched.dynamic_registration:
            patterns = ["**/*.xml", "**/*.json"]
            options = types.DidChangeWatchedFilesRegistrationOptions(
                [types.FileSystemWatcher(pattern) for pattern in patterns]
            )
            registration = types.Registration(
                "watched-files", types.WORKSPACE_DID_CHANGE_WATCHED_FILES, options
            )
            ls.client_register_capability(types.RegistrationParams([registration]), _ignore)
        ls.publish_soon()

    @server.feature(types.TEXT_DOCUMENT_DID_OPEN)
    def did_open(ls: TemplateServer, params: types.DidOpenTextDocumentParams) -> None:
        item = params.text_document
        _take(ls, item.uri, item.text, item.version)

    @server.feature(types.TEXT_DOCUMENT_DID_CHANGE)
    def did_change(ls: TemplateServer, params: types.DidChangeTextDocumentParams) -> None:
        if params.content_changes:
            text = params.content_changes[-1].text
            _take(ls, params.text_document.uri, text, params.text_document.version)

    @server.feature(types.TEXT_DOCUMENT_DID_CLOSE)
    def did_close(ls: TemplateServer, params: types.DidCloseTextDocumentParams) -> None:
        path = path_of(params.text_document.uri)
        if path is not None:
            ls.project.close(path)
            ls.publish_soon()

    @server.feature(types.TEXT_DOCUMENT_DID_SAVE)
    def did_save(ls: TemplateServer, params: types.DidSaveTextDocumentParams) -> None:
        path = path_of(params.text_document.uri)
        if path is not None and path not in ls.project.documents:
            ls.project.reload()
            ls.publish_soon()

    @server.feature(types.WORKSPACE_DID_CHANGE_WATCHED_FILES)
    def did_change_files(ls: TemplateServer, params: types.DidChangeWatchedFilesParams) -> None:
        changed = {path_of(change.uri) for change in params.changes}
        if changed - ls.project.documents.keys() - {None}:
            ls.project.reload()
            ls.publish_soon()


def _ignore(_: object) -> None:
    """The answer to a registration says nothing."""


def _take(ls: TemplateServer, uri: str, text: str, document_version: int | None) -> None:
    path = path_of(uri)
    if path is not None and path.endswith(".xml"):
        ls.project.open(path, text, document_version)
        ls.publish_soon()


def _add_reading(server: TemplateServer) -> None:
    options = types.CompletionOptions(trigger_characters=["<", "{", ".", "|", '"', "'", " ", "/"])

    @server.feature(types.TEXT_DOCUMENT_COMPLETION, options)
    def complete(ls: TemplateServer, params: types.CompletionParams) -> types.CompletionList:
        document = ls.document(params.text_document.uri)
        if document is None:
            return types.CompletionList(is_incomplete=False, items=[])
        return completions(ls.project, document, params.position, _has_snippets(ls))

    @server.feature(types.TEXT_DOCUMENT_HOVER)
    def on_hover(ls: TemplateServer, params: types.HoverParams) -> types.Hover | None:
        document = ls.document(params.text_document.uri)
        return None if document is None else hover(ls.project, document, params.position)

    @server.feature(types.TEXT_DOCUMENT_DEFINITION)
    def definition(ls: TemplateServer, params: types.DefinitionParams) -> types.Location | None:
        document = ls.document(params.text_document.uri)
        if document is None:
            return None
        found = _name_at(ls, document, params.position)
        library = ls.project.library_of(document.path)
        if found is None or library is None:
            return None
        site = declaration_of(ls.project, library, document.path, found[1])
        return None if site is None else _location(ls.project, site)

    @server.feature(types.TEXT_DOCUMENT_REFERENCES)
    def references(ls: TemplateServer, params: types.ReferenceParams) -> list[types.Location]:
        document = ls.document(params.text_document.uri)
        if document is None:
            return []
        found = _name_at(ls, document, params.position)
        if found is None:
            return []
        name = found[1][-1]
        sites = Names(ls.project, files_with(ls.project, document.path, name)).all_of(found[1])
        return [
            _location(ls.project, site)
            for site in sites
            if params.context.include_declaration or not site.is_declaration
        ]

    @server.feature(types.TEXT_DOCUMENT_DOCUMENT_SYMBOL)
    def on_symbols(
        ls: TemplateServer, params: types.DocumentSymbolParams
    ) -> list[types.DocumentSymbol]:
        document = ls.document(params.text_document.uri)
        return [] if document is None else symbols(document)

    @server.feature(types.TEXT_DOCUMENT_FOLDING_RANGE)
    def on_folding(
        ls: TemplateServer, params: types.FoldingRangeParams
    ) -> list[types.FoldingRange]:
        document = ls.document(params.text_document.uri)
        return [] if document is None else folding(document)

    @server.feature(types.TEXT_DOCUMENT_CODE_LENS)
    def on_lenses(ls: TemplateServer, params: types.CodeLensParams) -> list[types.CodeLens]:
        path = path_of(params.text_document.uri)
        if path is None:
            view = None
        else:
            view = ls.project.view(path)
        return [] if view is None else lenses(ls.project, view)


def _name_at(
    ls: TemplateServer, document: Document, position: types.Position
) -> tuple[Site, Key] | None:
    names = Names(ls.project, [document.path])
    return names.at(document.path, document.offset(position))


def _has_snippets(ls: TemplateServer) -> bool:
    described = ls.client_capabilities.text_document
    completion = described and described.completion
    item = completion and completion.completion_item
    return item is not None and item.snippet_support is True


def _location(project: Project, site: Site) -> types.Location:
    document = project.document(site.path)
    if document is None:
        start = types.Position(0, 0)
        return types.Location(uri_of(site.path), types.Range(start, start))
    return types.Location(uri_of(site.path), document.range(site.start, site.end))


def _add_changing(server: TemplateServer) -> None:
    @server.feature(types.TEXT_DOCUMENT_FORMATTING)
    def on_format(
        ls: TemplateServer, params: types.DocumentFormattingParams
    ) -> list[types.TextEdit] | None:
        document = ls.document(params.text_document.uri)
        if document is None:
            return None
        try:
            source = read_source(document.text, document.path)
        except TemplateError:
            return None
        if source.root.tag not in ROOTS:
            return None
        return _edits(document, format_source(source))

    @server.feature(types.TEXT_DOCUMENT_PREPARE_RENAME)
    def prepare_rename(
        ls: TemplateServer, params: types.PrepareRenameParams
    ) -> types.PrepareRenamePlaceholder | None:
        document = ls.document(params.text_document.uri)
        if document is None:
            return None
        found = _name_at(ls, document, params.position)
        if found is None or found[1][0] in ("profile", "file"):
            return None
        site, key = found
        return types.PrepareRenamePlaceholder(document.range(site.start, site.end), key[-1])

    @server.feature(types.TEXT_DOCUMENT_RENAME, types.RenameOptions(prepare_provider=True))
    def rename(ls: TemplateServer, params: types.RenameParams) -> types.WorkspaceEdit | None:
        document = ls.document(params.text_document.uri)
        if document is None:
            return None
        offset = document.offset(params.position)
        new = params.new_name
        try:
            sites = renamed(ls.project, document.path, offset, new)
        except UsageError as error:
            message = types.ShowMessageParams(types.MessageType.Error, str(error))
            ls.window_show_message(message)
            return None
        changes: dict[str, list[types.TextEdit]] = {}
        for site in sites:
            place = _location(ls.project, site)
            changes.setdefault(place.uri, []).append(types.TextEdit(place.range, new))
        return types.WorkspaceEdit(changes=changes)

    kinds = [
        types.CodeActionKind.QuickFix,
        types.CodeActionKind.RefactorExtract,
        types.CodeActionKind.SourceFixAll,
    ]

    @server.feature(types.TEXT_DOCUMENT_CODE_ACTION, types.CodeActionOptions(kinds))
    def on_actions(ls: TemplateServer, params: types.CodeActionParams) -> list[types.CodeAction]:
        document = ls.document(params.text_document.uri)
        if document is None:
            return []
        start = document.offset(params.range.start)
        end = document.offset(params.range.end)
        findings = ls.project.findings().get(document.path, [])
        wanted = params.context.only
        found: list[types.CodeAction] = []
        for action in actions(ls.project, document, start, end, findings, _can_create(ls)):
            if wanted is not None and not any(action.kind.startswith(kind) for kind in wanted):
                continue
            diagnostic = action.diagnostic
            found.append(
                types.CodeAction(
                    action.title,
                    kind=action.kind,
                    diagnostics=None if diagnostic is None else [_diagnostic(document, diagnostic)],
                    edit=_workspace_edit(ls.project, action.change),
                )
            )
        return found


def _can_create(ls: TemplateServer) -> bool:
    described = ls.client_capabilities.workspace
    edit = described and described.workspace_edit
    operations = edit and edit.resource_operations
    return operations is not None and types.ResourceOperationKind.Create in operations


def _edits(document: Document, text: str) -> list[types.TextEdit]:
    """The edit that makes the text of a document `text`: of the part that differs."""
    old = document.text
    if old == text:
        return []
    start = len(os.path.commonprefix([old, text]))  # noqa: RUF071 (character by character)
    end = 0
    most = min(len(old), len(text)) - start
    while end < most and old[len(old) - 1 - end] == text[len(text) - 1 - end]:
        end += 1
    place = document.range(start, len(old) - end)
    return [types.TextEdit(place, text[start : len(text) - end])]


def _workspace_edit(project: Project, change: Change) -> types.WorkspaceEdit:
    edits: list[types.TextDocumentEdit | types.CreateFile] = []
    changes: dict[str, Sequence[types.TextEdit]] = {}
    for path, text in change.texts.items():
        uri = uri_of(path)
        changed: list[types.TextEdit] = []
        document_version = None
        if path in change.created:
            edits.append(types.CreateFile(uri))
            place = types.Range(types.Position(0, 0), types.Position(0, 0))
            changed = [types.TextEdit(place, text)]
        elif (document := project.document(path)) is not None:
            changed = _edits(document, text)
            document_version = document.version
        identifier = types.OptionalVersionedTextDocumentIdentifier(uri, document_version)
        edits.append(types.TextDocumentEdit(identifier, changed))
        changes[uri] = changed
    if change.created:
        return types.WorkspaceEdit(document_changes=edits)
    return types.WorkspaceEdit(changes=changes)


def _add_commands(server: TemplateServer) -> None:
    @server.command(RENDER)
    async def render(ls: TemplateServer, path: str, name: str) -> str:
        return await _run(ls, rendered, path, name)

    @server.command(SIMULATE)
    async def simulate(ls: TemplateServer, path: str, name: str) -> str:
        return await _run(ls, simulated, path, name)


async def _run(ls: TemplateServer, run: Any, path: str, name: str) -> str:
    """Runs a command beside the loop, and shows its text where the client does not show results."""
    try:
        view = ls.project.view(path)
        if view is None:
            raise UsageError(f"{path} is not a file of templates")
        text: str = await asyncio.to_thread(run, ls.project, view, name)
    except EvaluatorError as error:
        text = f"error: {error}"
    if not ls.shows_results:
        ls.window_show_message(types.ShowMessageParams(types.MessageType.Info, text))
    return text
