"""The exceptions of this package, and `Diagnostic`, a finding about a source.

    EvaluatorError              base of every exception that this package raises on purpose
    ├── UsageError              caller: arguments that do not fit a call
    │   ├── RowError            caller: a row of a batch; names file, line, column (`batch.rows`)
    │   ├── EditError           caller: an edit that cannot be made (`improve.xml_texts`)
    │   └── Undecided           caller: is there a provider batch? (`batch.submissions`)
    ├── ConfigurationError      caller: a profile, a key or a setting
    │   ├── MissingExtra        caller: an optional package; names the extra that installs it
    │   └── MissingKey          caller: the key of a provider (`handler.backends`)
    ├── TemplateError           caller: a template; carries diagnostics with line and column
    │   └── InputError          caller: the values given to a task do not fit its declared inputs
    ├── ExpressionError         caller: an expression or a text that cannot be resolved
    │   └── SandboxError        caller: the sandbox forbids it, or it exceeded its limits
    ├── RecordError             environment: a task file or its folder
    │   ├── RecordNotWritten    environment: a task file cannot be written; also a MachineError
    │   ├── CorruptRecord       environment: a task file whose bytes are not what was written
    │   ├── BatchDamaged        environment: results or a manifest of a batch are damaged
    │   ├── RecordIncomplete    environment: a replay reached the end of an unfinished record
    │   ├── TaskNotBegun        environment: a task file that is missing or ends in its header
    │   ├── TaskBusy            environment: a task that another process runs
    │   ├── StepChanged         caller: a step that differs from the recorded one
    │   └── StepUnfinished      environment: it is unknown whether a side effect took place
    ├── MachineError            environment: this machine lacks something; ends the whole run
    ├── ProviderError           environment: a call of a model backend failed
    ├── ContextError            environment: memory failed to provide context
    ├── ToolError               environment: a tool could not do what it was asked
    ├── NotAllowed              caller: a task needs more than the task that started it may
    ├── RepeatedCall            environment: a model repeats a tool call that changes nothing
    ├── ClusterLost             environment: no node of a cluster is left (`batch.engines.pool`)
    ├── MathFailed              environment: no comparison was made (`batch.scorers.math_scorer`)
    ├── NoSuchPage              caller: an address names nothing (`viewer.server.project`)
    ├── SessionClosed           caller: a Handler was used after its task had ended
    ├── OutOfBudget             a limit: a search cannot pay its next step (`improve.search`)
    ├── LimitReached            a limit: becomes a TaskError of type RESOURCE_EXHAUSTION
    │   └── CallRejected        a limit: a batch stops or has spent its budget; ends the run
    │       └── CallParked      the call waits for a provider batch; ends the run until then
    └── TaskFailed              carries a TaskError; raised only by `TaskError.unwrap()`

"Caller" and "environment" name the owner of the fault. `TaskError` (in `errors.results`) and
`Diagnostic` are values, not exceptions: they are returned, printed and recorded.

A MachineError is trouble of the machine that a run is on: no space, no file descriptors, no memory,
a disk that fails. It says nothing about a model or a task. It is never a tool's answer to a model
and never the result of a sample: it ends the run, which can be resumed when the cause is removed.
"""

from __future__ import annotations

import copyreg
import errno
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from evaluator.lazy_dataclass import frozen

if TYPE_CHECKING:
    from evaluator.nodes import Span

Severity = Literal["error", "warning", "note"]


@frozen
class Diagnostic:
    """A finding about a source. `code` is a stable word (`undefined-variable`), `hint` says what to
    do.

    An error stops the template; a warning is probably a mistake; a note says what a legal default
    does. `fix` is the text at `span` and the text that is clearly meant instead.
    """

    severity: Severity
    code: str
    message: str
    span: Span
    hint: str | None = None
    fix: tuple[str, str] | None = None

    def __str__(self) -> str:
        text = f"{self.span}: {self.severity}: {self.message} [{self.code}]"
        if self.hint:
            return f"{text}\n  hint: {self.hint}"
        return text

    def to_dict(self) -> dict[str, Any]:
        """The diagnostic as a flat JSON object; `from_dict` reads it."""
        own = {
            "severity": self.severity,
            "code": self.code,
            "message": self.message,
            "hint": self.hint,
        }
        return own | {"file": self.span.file, "line": self.span.line, "column": self.span.column}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Diagnostic:
        from evaluator.nodes import Span

        span = Span(data["file"], data["line"], column=data["column"])
        return cls(data["severity"], data["code"], data["message"], span, data["hint"])


class EvaluatorError(Exception):
    """Base of every exception that this package raises on purpose. Each can be pickled, with all
    its attributes.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        # Exception would call the constructor with `args`, which fails where the constructor has
        # other arguments.
        make = copyreg.__newobj__  # type: ignore[attr-defined]
        return make, (type(self), *self.args), self.__dict__


class UsageError(EvaluatorError):
    """A call with arguments that do not fit what was declared."""


class ConfigurationError(EvaluatorError):
    """A profile, key or setting is missing or wrong."""


class MissingExtra(ConfigurationError):
    """An optional package is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(
            f"{package} is not installed; install it with: pip install 'evaluator[{extra}]'"
        )
        self.package = package
        self.extra = extra


class TemplateError(EvaluatorError):
    """A template cannot be used; `diagnostics` say where and why."""

    def __init__(self, diagnostics: Sequence[Diagnostic]) -> None:
        super().__init__("\n".join(str(d) for d in diagnostics))
        self.diagnostics = tuple(diagnostics)

    @classmethod
    def of(cls, code: str, message: str, span: Span, hint: str | None = None) -> TemplateError:
        """The error with one finding."""
        return cls([Diagnostic("error", code, message=message, span=span, hint=hint)])


class InputError(TemplateError):
    """The values given to a task do not fit its declared inputs; `diagnostics` has one finding for
    each.
    """


class ExpressionError(EvaluatorError):
    """A text or an expression cannot be resolved. `code` is `undefined-variable`,
    `wrong-arity`, …
    """

    def __init__(self, message: str, span: Span, code: str = "expression") -> None:
        super().__init__(message)
        self.message = message
        self.span = span
        self.code = code

    def diagnostic(self) -> Diagnostic:
        message, found, names = self.message.partition("; did you mean ")
        hint = f"did you mean {names}" if found else None
        return Diagnostic("error", self.code, message=message, span=self.span, hint=hint)


class SandboxError(ExpressionError):
    """An expression uses something that the sandbox forbids, or exceeded its limit on time or
    size.
    """


class RecordError(EvaluatorError):
    """A task file or its folder cannot be read or written."""


class MachineError(EvaluatorError):
    """This machine lacks something that a run needs: disk space, file descriptors, memory, a disk
    that works.

    It ends the whole run; no task or model of the run sees it. The run can be resumed later. See
    `errors.machine`.
    """


class RecordNotWritten(RecordError, MachineError):
    """A task file cannot be created or written. No effect may follow that is not recorded, so the
    run ends.
    """


class CorruptRecord(RecordError):
    """The bytes of a task file are not what was written. `line` counts from 1, `offset` in
    bytes.
    """

    def __init__(self, path: str, line: int, offset: int, message: str) -> None:
        super().__init__(f"{path}:{line}: {message} (byte {offset})")
        self.path = path
        self.line = line
        self.offset = offset
        self.message = message


class BatchDamaged(RecordError):
    """The results or the manifest of a batch are not what was written. Resuming with `repair`
    continues.
    """


class TaskNotBegun(RecordError):
    """A task file is missing or ends inside its header: there is nothing to resume."""


class TaskBusy(RecordError):
    """A task cannot be resumed because another process runs it."""


class StepChanged(RecordError):
    """A step of a resumed or replayed run differs from the recorded one.

    `path` is the step's path; `recorded` and `now` are the two sides of the first difference, None
    if there is none to show.
    """

    def __init__(
        self, path: str, message: str, recorded: str | None = None, now: str | None = None
    ) -> None:
        has_sides = recorded is not None or now is not None
        if has_sides:
            sides = f": recorded {recorded or 'nothing'}, now {now or 'nothing'}"
        else:
            sides = ""
        super().__init__(f"{path}: {message}{sides}")
        self.path = path
        self.message = message
        self.recorded = recorded
        self.now = now


class RecordIncomplete(RecordError):
    """A replay reached a step whose end is not in the record: the recorded run was interrupted
    there.
    """

    def __init__(self, path: str) -> None:
        super().__init__(f"{path}: the record ends here")
        self.path = path


class StepUnfinished(RecordError):
    """A step with a side effect was started in an earlier run, and its result is unknown.

    `can_tell`: instead of repeating the step, the model can be told about it (a tool call that is
    not a script).
    """

    def __init__(self, path: str, name: str, how: str, can_tell: bool = True) -> None:
        super().__init__(f"{path}: {name} {how}; see what it did, then say whether to repeat it")
        self.path = path
        self.name = name
        self.how = how
        self.can_tell = can_tell


ProviderErrorKind = Literal[
    "rate_limit",
    "server",
    "timeout",
    "connection",
    "authentication",
    "bad_request",
    "not_found",
    "context_length",
    "content_filter",
    "malformed_response",
    "other",
]


class ProviderError(EvaluatorError):
    """A model call failed.

    `retryable`: the same call may succeed later. `maybe_billed`: it may have cost. `partial`:
    partial answer.
    """

    def __init__(
        self,
        message: str,
        *,
        kind: ProviderErrorKind = "other",
        status: int | None = None,
        retryable: bool = False,
        retry_after_s: float | None = None,
        maybe_billed: bool = False,
        partial: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.kind: ProviderErrorKind = kind
        self.status = status
        self.retryable = retryable
        self.retry_after_s = retry_after_s
        self.maybe_billed = maybe_billed
        self.partial = partial
        self.where = ""


class ContextError(EvaluatorError):
    """Memory failed to provide context."""


class ToolError(EvaluatorError):
    """A tool could not do what it was asked; the model receives the text.

    `retryable` False: the same call would fail again, so a tool that is declared retryable is not
    called again.
    """

    def __init__(self, message: str = "", *, retryable: bool = True) -> None:
        super().__init__(message)
        self.retryable = retryable


class NotAllowed(EvaluatorError):
    """A task needs a tool, a process, a file or a provider that the task which started it may not
    have.
    """


class RepeatedCall(EvaluatorError):
    """A model repeats a tool call with the same arguments and the same answer."""


class SessionClosed(EvaluatorError):
    """A Handler was used after the task that owned it had ended."""


class LimitReached(EvaluatorError):
    """A limit fired.

    `resource` is one of turns, context, output, time, tokens, cost, depth; `used` and `limit` have
    its unit. `partial`: partial answer.
    """

    def __init__(
        self, resource: str, used: float, limit: float, message: str, partial: str = ""
    ) -> None:
        super().__init__(message)
        self.resource = resource
        self.used = used
        self.limit = limit
        self.message = message
        self.partial = partial


class CallRejected(LimitReached):
    """A call that was not sent, because the batch was asked to stop or has spent its budget.

    It ends the whole run that wanted the call; no task or model of the run sees it. The run can be
    resumed later.
    """


class CallParked(CallRejected):
    """A call that waits for a provider batch. Its run ends, and is resumed with the answer."""

    def __init__(self) -> None:
        super().__init__("time", 0.0, limit=0.0, message="waits for the answer of a provider batch")

    def __reduce__(self) -> tuple[type[CallParked], tuple[()]]:
        return CallParked, ()


_ADVICE: dict[int, str] = {
    errno.ENOSPC: "free space or choose another folder",
    errno.EDQUOT: "free space within your quota or choose another folder",
    errno.EFBIG: "free space or raise the limit on the size of files (ulimit -f)",
    errno.EMFILE: "raise the limit of open files (ulimit -n) or lower the concurrency",
    errno.ENFILE: "the whole system has no file descriptor left: end other programs or raise its "
    "limit",
    errno.ENOMEM: "free memory or lower the concurrency",
    errno.EIO: "the disk or its file system fails: check it (dmesg) or choose another folder",
    errno.EROFS: "choose a folder on a file system that can be written",
}
_MAX_CAUSES = 20


def machine_trouble(error: BaseException) -> OSError | None:
    """The OSError among `error` and its causes that is this machine's own trouble; None if there is
    none.
    """
    seen: BaseException | None = error
    for _ in range(_MAX_CAUSES):
        # Subclasses have error numbers of their own: 5 is EIO, and the number of a broken TLS
        # connection.
        if type(seen) is OSError and seen.errno in _ADVICE:
            return seen
        if seen is None:
            return None
        seen = seen.__cause__ or (None if seen.__suppress_context__ else seen.__context__)
    return None


def machine_error(error: BaseException) -> MachineError | None:
    """`error` as a MachineError with advice, if this machine's own trouble is its cause; else
    None.
    """
    if isinstance(error, MachineError):
        return error
    trouble = machine_trouble(error)
    if trouble is None:
        return None
    found = MachineError(f"{error}; {advice_on(trouble)}")
    found.__cause__ = error
    return found


def advice_on(error: OSError) -> str:
    """What to do about a file that cannot be written or created because of `error`."""
    return _ADVICE.get(error.errno or 0, "choose another folder")
