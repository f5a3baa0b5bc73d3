"""The Evaluator: takes a request, a template's name or a node, and returns a TaskResult or a
TaskError. A PreparedRequest does so for many rows.
"""

from __future__ import annotations

from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Mapping,
    Sequence,
)
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from evaluator.errors import UsageError
from evaluator.errors.messages import type_of
from evaluator.errors.results import Outcome, TaskError, TaskId
from evaluator.fields import Count, accept
from evaluator.handler.conversation import OnMessage
from evaluator.interpreter.evaluator_parts import EvaluatorParts
from evaluator.interpreter.failures import failure, to_task_error
from evaluator.interpreter.frame import (
    ContextItem,
    Domain,
    EventCallback,
    OnBegin,
    RunOptions,
    Shots,
)
from evaluator.interpreter.requests import prepare_request, prepare_words
from evaluator.interpreter.runs import Binder, record_run
from evaluator.interpreter.sync import sync_form
from evaluator.language.scopes import plain
from evaluator.nodes import Call, Cond, Function, Node, Task
from evaluator.record.store import TaskStore

if TYPE_CHECKING:
    from evaluator.interpreter.chat import Chat, ChatReply
    from evaluator.interpreter.compile import CompiledTask
    from evaluator.interpreter.preview import Preview
    from evaluator.interpreter.recovery import OnUnfinished, Replay

_SHARED_BY_ROWS = ("model", "handler", "model_roles", "ask_model")
"""The options of `Evaluator.evaluate` that are those of `Evaluator.prepare`."""


class PreparedRequest:
    """A request that was found, read or matched, with the options that its rows share."""

    __slots__ = ("_bind", "_domain", "options")

    def __init__(self, domain: Domain, options: RunOptions, bind: Binder | TaskError) -> None:
        self.options = options
        self._bind = bind
        self._domain = domain

    async def evaluate(self, inputs: Mapping[str, Any] | None = None, **options: Any) -> Outcome:
        """The outcome with the inputs of one row; `options` are further ones of
        `Evaluator.evaluate`.

        Raises: UsageError, for arguments of the wrong Python type.
        """
        _check_inputs(inputs)
        row_options = self.options
        if options:
            if options.get("shots"):
                options["shots"] = _plain_shots(options["shots"])
            row_options = replace(row_options, **options)
        epoch = row_options.epoch
        if type(epoch) is not int or epoch < 1:
            raise UsageError(f"epoch is {epoch!r}, expected an integer, 1 or more")
        try:
            values: dict[str, Any] = plain(inputs or {}, "inputs")
            if isinstance(self._bind, TaskError):
                return self._bind
            run = self._bind(values)
        except Exception as error:
            return to_task_error(error)
        if isinstance(run, TaskError):
            return run
        run.options = row_options
        run.domain = self._domain
        return await record_run(run)


class Evaluator(EvaluatorParts):
    """Evaluates tasks. One Evaluator serves any number of concurrent evaluations of one event loop.

    >>> evaluator = Evaluator(handler="offline", tasks_dir=None)  # a simulated model
    >>> question = {"question": "What is the capital of Australia?"}
    >>> evaluator.evaluate_sync("answer_question", question).unwrap().content
    'Canberra'
    >>> evaluator.evaluate_sync("sentiment", {}).reason  # a failure is a value; unwrap() raises it
    'input_validation_failure'

    Most used: `evaluate` and `evaluate_sync` run one task, `evaluate_batch` many, `library.match`
    finds templates for a request, `render` shows what a model would see, `chat` talks with it,
    `resume` and `replay` read task files. For scored batches see `run_batch`. `close`, or `with
    Evaluator() as evaluator:`, ends its connections.

    What runs:

    - library: the templates, or a folder of them (default: `templates/` here, then the shipped
      ones).
    - handler: a profile or its name (default: `default`).
    - profiles: handler profiles by name (default: `handlers/` here, then the shipped ones).
    - model: used for every task, whatever templates and profiles name, except tasks whose role has
      a model.
    - model_roles: the model of each role, such as `grader`; first those given here, then those of
      the profile.
    - backend: answers every model call itself (a simulated or replaying one, or your own).
    - tools: further tools that templates may name.

    What it may do:

    - roots: the folders that tasks may read, the first one also where scripts run (default: the
      current folder).
    - sandbox: where scripts run, such as "bubblewrap", "none" or "docker:IMAGE", whatever profiles
      and templates say.
    - trust: the profiles in `handlers/` here may name hosts, keys and commands, and templates
      Python code (`module:Model`); otherwise only what the user has allowed, see
      docs/explanation/security.md. Profiles that are passed need no permission. `trust` also
      allows `resume` to run the XML that a task file of another user or machine records.
    - max_depth: levels of subtasks.
    - reparse: a task that ran out of turns, context or output may be decomposed, once, where its
      template allows it.
    - rerank: where the words of a request do not decide on a template (no score of 0.5 or more),
      the model chooses one of the five best, or none, in a call of its own.
    - asker: answers questions to the user.
    - background: such as `evaluator.background.BackgroundTools`: with it, models may start tasks in
      the background.

    What it keeps:

    - tasks_dir: the folder of task files (default `tasks`; None records nothing).
    - sync: what survives a loss of power: "off" only what the system has already written to disk,
      "task" every ended task, "step" every step. A killed process loses nothing in any mode.
    - cache: a response cache, or the file of one: responses that are reused, see `models.cache`.
    - memory: answers `fresh_context`.

    What it reports:

    - notice: gets each line for the user (default: the log, see `evaluator.errors.messages`).
    - tracer: an OpenTelemetry tracer, or True for the global provider's; see
      docs/howto/trace-runs.md.

    Raises: ConfigurationError, if the profile cannot be read, is unknown or not allowed, or a root
    is not a folder.
    """

    async def evaluate(
        self,
        request: str | Node | Function,
        inputs: Mapping[str, Any] | None = None,
        *,
        model: str | None = None,
        handler: str | None = None,
        model_roles: Mapping[str, str] | None = None,
        target: str | None = None,
        epoch: int = 1,
        ask_model: bool = True,
        labels: Mapping[str, str] | None = None,
        shots: Shots = (),
        on_text: Callable[[str], None] | None = None,
        on_event: EventCallback | None = None,
        on_message: OnMessage | None = None,
        on_begin: OnBegin | None = None,
    ) -> Outcome:
        """Evaluates a template's name, a request in words, a task as XML text, or a node.

        XML is repaired where its meaning is clear, with a warning in the notes; with
        `<manual_xml>true</manual_xml>` it is taken as it is.

        Words are matched to the atomic templates; the best is used if it fits well enough. With the
        evaluator's `rerank` the model chooses where the words do not decide. Inputs that it needs
        and `inputs` lacks are extracted from the words by the model, as a recorded step, or, with
        `ask_model` False, are an error that lists them. A node is evaluated as it is; an atomic
        node that has neither name nor instructions is a request, matched like words.
        `model` and `handler` (a profile's name) replace the evaluator's; `model_roles` are added to
        it and come first. `target` is the answer that a simulated model gives. `epoch`, from 1,
        distinguishes repetitions for the cache. `labels` are written into the task file's header.
        `shots` are few-shot examples, each the inputs and the answer of an earlier turn of an
        atomic task. `on_text` receives text as it streams in; `on_event` `(path, what)` as steps
        start; `on_message` `(path, message)` each message of a conversation with a model;
        `on_begin` the id of the task file as soon as there is one.

        Returns: a TaskResult, or a TaskError for every way of failing. Raises only cancellation and
        UsageError, for arguments of the wrong Python type.
        """
        prepared = self.prepare(
            request, model=model, handler=handler, model_roles=model_roles, ask_model=ask_model
        )
        return await prepared.evaluate(
            inputs,
            target=target,
            epoch=epoch,
            labels=labels,
            shots=shots,
            on_text=on_text,
            on_event=on_event,
            on_message=on_message,
            on_begin=on_begin,
        )

    def prepare(
        self,
        request: str | Node | Function,
        *,
        model: str | None = None,
        handler: str | None = None,
        model_roles: Mapping[str, str] | None = None,
        ask_model: bool = True,
    ) -> PreparedRequest:
        """Prepares a request for many rows: what does not depend on a row is done once.

        `evaluate` prepares its request too; a batch does it once for all rows. The arguments, and
        those of the `evaluate` of what is returned, are those of `Evaluator.evaluate`. If the
        request cannot be evaluated, the outcome of each row is the TaskError.

        Raises: UsageError, for a request of the wrong Python type.
        """
        if not isinstance(  # pyright: ignore[reportUnnecessaryIsInstance]
            request, str | Task | Call | Cond | Function
        ):
            raise UsageError(f"request is {type_of(request)}, expected text or a node")
        default = self._options
        options = RunOptions(
            model or default.model,
            handler or default.handler,
            model_roles={**(default.model_roles or {}), **(model_roles or {})},
            ask_model=ask_model,
        )
        services = self.services
        rerank = ask_model and services.rerank
        return self._prepared(
            lambda: prepare_request(services, request, ask_model=ask_model, rerank=rerank), options
        )

    def _prepared(self, find: Callable[[], Binder], options: RunOptions) -> PreparedRequest:
        if self._reports_interrupted:
            self._report_interrupted()
        services = self.services
        bind: Binder | TaskError
        try:
            bind = find()
            servers = services.profile(options.handler).mcp
            if servers:
                services.mcp.check(servers)
        except Exception as error:
            bind = to_task_error(error)
        return PreparedRequest(services.new_domain(options.handler), options, bind)

    async def evaluate_words(
        self,
        words: str,
        template: str,
        inputs: Mapping[str, Any] | None = None,
        *,
        context: Sequence[tuple[str, str]] = (),
        labels: Mapping[str, str] | None = None,
    ) -> Outcome:
        """Evaluates a request in words, whatever they look like, with the template of this name.

        Inputs that the template needs and `inputs` lacks are extracted from the words by the model.
        The task sees `context`, each a source and a text, whatever it inherits. `labels` and the
        result are as for `evaluate`.
        """
        if not isinstance(words, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"request is {type_of(words)}, expected text")
        options = replace(self._options, labels=labels)
        items = [ContextItem(source, text) for source, text in context]
        prepared = self._prepared(
            lambda: prepare_words(self.services, words, template, context=items), options
        )
        return await prepared.evaluate(inputs)

    async def resume(
        self,
        task_id: int,
        inputs: Mapping[str, Any] | None = None,
        *,
        shots: Shots = (),
        unfinished: OnUnfinished = "ask",
        allow_changed: bool = False,
        repair: bool = False,
        trust: bool = False,
        on_text: Callable[[str], None] | None = None,
        on_event: EventCallback | None = None,
    ) -> Outcome:
        """Resumes a run that was interrupted, aborted or failed, without repeating what its task
        file records.

        The results of completed steps are taken from the record; calls that were in flight are made
        again. A tool call or script with a side effect that was begun and has no recorded end is
        asked about through the evaluator's `asker`; `unfinished` decides instead: "repeat" it,
        "tell" the model that its end is not known, or "stop". `inputs` are those that the record
        lacks because they are secret; `shots` the few-shot examples of the run, needed where they
        hold a secret.

        Where a template, a file that the task reads, or the model has changed, the run stops at the
        first step that differs, and does not run it; `allow_changed` continues with the current
        version. A task file that is damaged, as by a loss of power, is refused; `repair` continues
        from the whole records before the damage and saves the rest beside the file. A task file
        that no program of this user wrote is not resumed; with `trust` the caller vouches for its
        template, its inputs and its steps.

        Returns: the outcome, with `notes["resumed"]`; for a completed run the recorded one. A
        TaskError too where the run cannot be resumed: its cause is a RecordError (TaskBusy,
        StepChanged, StepUnfinished, …).
        Raises: UsageError, for arguments of the wrong Python type.
        """
        from evaluator.interpreter.recovery import ON_UNFINISHED, resume

        if unfinished not in ON_UNFINISHED:
            raise UsageError(f"unfinished is one of {', '.join(ON_UNFINISHED)}, not {unfinished!r}")
        _check_inputs(inputs)
        _check_flag("allow_changed", allow_changed)
        _check_flag("repair", repair)
        _check_flag("trust", trust)
        callbacks = RunOptions(on_text=on_text, on_event=on_event, shots=_plain_shots(shots))
        try:
            values = cast("dict[str, Any]", plain(dict(inputs or {}), "inputs"))
            return await resume(
                self.services,
                task_id,
                inputs=values,
                unfinished=unfinished,
                allow_changed=allow_changed,
                trust=trust,
                callbacks=callbacks,
                repair=repair,
            )
        except Exception as error:
            number = None
            if type(task_id) is int:
                number = TaskId(task_id)
            return replace(to_task_error(error), task_id=number)

    async def replay(self, task: int | str | Path, *, template_changes: bool = False) -> Replay:
        """Evaluates a recorded run again from its record alone: no call is made, no tool run,
        nothing written.

        Stops at the first step that differs from the record. With `template_changes` it continues
        past steps whose content has changed, with the recorded answers, and reports what the model
        would now see differently.

        Raises: RecordError, if there is no such task or it cannot be read; UsageError or
        TemplateError, if its template is missing.
        """
        from evaluator.interpreter.recovery import replay

        _check_flag("template_changes", template_changes)
        if isinstance(task, str):
            task = Path(task)
        return await replay(self.services, task, past_changes=template_changes)

    async def compile(
        self,
        words: str,
        *,
        allow_scripts: bool = False,
        allow_tools: Collection[str] = (),
        model: str | None = None,
        handler: str | None = None,
    ) -> CompiledTask:
        """Has a model write the task that `words` describe as XML, and checks it; nothing of it is
        run.

        Scripts and commands are refused unless `allow_scripts`, tools except those in
        `allow_tools`. The call is a recorded run. `evaluate(task.node, …)` runs the result.

        Raises: UsageError, if `words` is blank.
        """
        from evaluator.interpreter.compile import compile_task

        options = replace(
            self._options,
            model=model or self._options.model,
            handler=handler or self._options.handler,
        )
        return await compile_task(
            self.services,
            words,
            allow_scripts=allow_scripts,
            allow_tools=allow_tools,
            options=options,
        )

    async def chat(
        self,
        ask: Callable[[], Awaitable[str | None]],
        show: Callable[[ChatReply], None],
        *,
        resume: int | None = None,
        on_text: Callable[[str], None] | None = None,
        on_message: OnMessage | None = None,
        on_begin: OnBegin | None = None,
        on_start: Callable[[Chat], None] | None = None,
    ) -> Outcome:
        """Runs an interactive session in one Handler, with the profile's tools.

        The profile's limits hold for each query. Memory adds context that is relevant to a query.

        `ask` gives the next query, None to end; `show` gets each reply. `on_start` gets the
        session, whose `cancel_answer` cancels the answer in progress. `on_text`, `on_message` and
        `on_begin` are as for `evaluate`. `resume` continues the session of a task file and first
        shows its recorded replies.

        Returns: the outcome of the session; its content is the last answer.
        """
        from evaluator.interpreter.chat import Chat

        session = Chat(ask, show)
        if on_start is not None:
            on_start(session)
        try:
            callbacks = RunOptions(on_text=on_text, on_message=on_message, on_begin=on_begin)
            if resume is not None:
                return await session.resume(self.services, resume, callbacks)
            options = replace(
                self._options, on_text=on_text, on_message=on_message, on_begin=on_begin
            )
            return await session.start(self.services, options)
        except Exception as error:
            return to_task_error(error)

    evaluate_sync = sync_form(
        evaluate,
        "`evaluate` for code that is not async; works inside a running event loop too (a "
        "notebook's).",
    )
    resume_sync = sync_form(resume, "`resume` for code that is not async.")
    replay_sync = sync_form(replay, "`replay` for code that is not async.")

    def render(
        self, request: str | Node | Function, inputs: Mapping[str, Any] | None = None
    ) -> tuple[Outcome, list[Preview]]:
        """Shows what the model would see for `request`, without a call, a script or a task file.

        Returns: the outcome (a TaskError where something cannot be resolved) and each request in
        order. Only the first is exact: later requests follow simulated answers.
        """
        from evaluator.interpreter.preview import PreviewBackend

        backend = PreviewBackend()
        outcome = self.previewing(backend).evaluate_sync(request, inputs)
        return outcome, backend.seen

    def evaluate_batch(
        self,
        name: str | Node,
        rows: Iterable[Mapping[str, Any]] | AsyncIterable[Mapping[str, Any]],
        *,
        concurrency: int = 16,
        task_files: Literal["packed", "each"] = "packed",
        **options: Any,
    ) -> AsyncGenerator[Outcome, None]:
        """Evaluates `name` with each row as its inputs; results come in the order of the rows.

        At most `concurrency` evaluations run at once and at most four times as many results wait
        for an earlier one, so memory does not grow with the number of rows. A row that fails is a
        TaskError in its place; none is dropped. `options` are those of `evaluate`. Closing the
        iterator cancels running evaluations. `task_files`: "each" task has a file, or all are
        "packed" into a few files.

        Raises: UsageError, at once, for text, a path, a mapping or a frame: `run_batch` takes
        those.
        """
        from evaluator.interpreter.batch import evaluate_rows

        accept(Count, concurrency, "concurrency", UsageError)
        accept(Literal["packed", "each"], task_files, "task_files", UsageError)
        services = self.services
        store = services.store
        is_packed = store is not None and task_files == "packed"
        if store is not None and is_packed:
            store = TaskStore(
                store.root, redactor=store.redactor, sync=self.init_args["sync"], is_packed=True
            )
        chooser = services.chooser.with_limiter(services.limiter, services.cache)
        own = self._of(self.init_args, replace(services, store=store, chooser=chooser))
        shared = {key: options.pop(key) for key in _SHARED_BY_ROWS if key in options}
        prepared: PreparedRequest | None = None

        def evaluate_row(row: Mapping[str, Any]) -> Awaitable[Outcome]:
            nonlocal prepared
            # Not by `isinstance` first, which takes longer for a dict.
            if type(row) is not dict and not isinstance(cast("object", row), Mapping):
                return _refuse_row(row)
            if prepared is None:
                self._report_interrupted()
                prepared = own.prepare(name, **shared)
            return prepared.evaluate(row, **options)

        def end() -> None:
            if store is not None and is_packed:
                store.close()

        return evaluate_rows(evaluate_row, rows, concurrency, at_end=end)


async def _refuse_row(row: object) -> TaskError:
    return failure(
        "input_validation_failure",
        f"a row is {type_of(row)}, expected a mapping of names to values",
    )


def _check_flag(name: str, value: object) -> None:
    """Raises: UsageError, for anything but True and False."""
    if not isinstance(value, bool):
        raise UsageError(f"{name} is {value!r}, expected True or False")


def _check_inputs(inputs: object) -> None:
    """Raises: UsageError, if these cannot be the inputs of a request."""
    if inputs is None or type(inputs) is dict:
        return
    if not isinstance(inputs, Mapping):
        raise UsageError(f"inputs is {type_of(inputs)}, expected a mapping of names to values")


def _is_shot(value: object) -> bool:
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        return False
    return isinstance(value[0], Mapping)


def _plain_shots(shots: Shots) -> Shots:
    """Few-shot examples as plain data.

    Raises: UsageError, for anything but pairs of inputs and answer.
    """
    for shot in shots:
        if not _is_shot(shot):
            raise UsageError(f"shots has {shot!r:.60}, expected pairs of inputs and answer")
    return tuple(
        (cast("dict[str, Any]", plain(dict(inputs))), str(answer)) for inputs, answer in shots
    )
