"""The shipped scorers by name, and scorers made from names, tables, command-line texts and
functions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from itertools import islice
from types import MappingProxyType
from typing import Any, TypeAlias, cast

from evaluator.batch.identity import digest, template_part
from evaluator.batch.records import Sample
from evaluator.batch.scorers.benchmark_scorers import DropScorer, IfevalScorer, QuasiExactScorer
from evaluator.batch.scorers.builtin_scorer import BuiltinScorer, suggestion
from evaluator.batch.scorers.calls_scorer import CallsScorer
from evaluator.batch.scorers.choice_scorer import ChoiceScorer
from evaluator.batch.scorers.contract import Scorer, exception_text, score_names, type_name
from evaluator.batch.scorers.function_scorer import (
    FunctionScorer,
    function_scorer,
    load_function,
    unloaded,
)
from evaluator.batch.scorers.json_scorers import JsonEqualScorer, JsonSchemaScorer, JsonSubsetScorer
from evaluator.batch.scorers.math_scorer import MathScorer
from evaluator.batch.scorers.model_graded import (
    GradedScorer,
    ModelGradedScorer,
    ReferenceScorer,
)
from evaluator.batch.scorers.numeric_scorer import NumericScorer
from evaluator.batch.scorers.panels import (
    ConfidenceScorer,
    LoglikelihoodScorer,
    MajorityScorer,
    PairwiseScorer,
    PerplexityScorer,
)
from evaluator.batch.scorers.rubric_scorer import RubricScorer
from evaluator.batch.scorers.text_scorers import (
    ExactScorer,
    F1Scorer,
    IncludesScorer,
    RegexScorer,
    RougeLScorer,
    SimilarityScorer,
)
from evaluator.errors import EvaluatorError, UsageError
from evaluator.errors.messages import type_of
from evaluator.fields import accept, check_names, fits
from evaluator.library import TemplateLibrary

_CLASSES: tuple[type[BuiltinScorer], ...] = (
    ExactScorer,
    IncludesScorer,
    RegexScorer,
    NumericScorer,
    ChoiceScorer,
    F1Scorer,
    RougeLScorer,
    SimilarityScorer,
    JsonEqualScorer,
    JsonSubsetScorer,
    JsonSchemaScorer,
    GradedScorer,
    ReferenceScorer,
    RubricScorer,
    PairwiseScorer,
    MajorityScorer,
    DropScorer,
    QuasiExactScorer,
    MathScorer,
    CallsScorer,
    IfevalScorer,
    ConfidenceScorer,
    LoglikelihoodScorer,
    PerplexityScorer,
)


def by_type(classes: Iterable[type[BuiltinScorer]]) -> Mapping[str, type[BuiltinScorer]]:
    """The classes by their `type`. Raises: TypeError, for a class that is not declared as a shipped
    scorer must be.
    """
    found: dict[str, type[BuiltinScorer]] = {}
    for scorer in classes:
        own = vars(scorer)
        name = scorer.__name__
        is_frozen = "__dataclass_params__" in own and own["__dataclass_params__"].frozen
        if (
            not is_frozen
            or "__slots__" not in own
            or not all(field.kw_only for field in fields(scorer))
        ):
            raise TypeError(
                f"{name}: decorate it with @dataclass(frozen=True, slots=True, kw_only=True)"
            )
        kind = own.get("type")
        if (
            not isinstance(kind, str)
            or not kind
            or "type" in {field.name for field in fields(scorer)}
        ):
            raise TypeError(
                f'{name}: write its name as a class variable: type: ClassVar[str] = "…"'
            )
        if missing := sorted(scorer.__abstractmethods__):
            raise TypeError(f"{name}: implement {' and '.join(missing)}, as its base class says")
        if not scorer.__doc__ or scorer.__doc__.startswith(f"{name}("):
            raise TypeError(f"{name}: describe it in a docstring")
        if kind in found:
            raise TypeError(
                f"{name} and {found[kind].__name__} have the same type {kind!r}; rename one"
            )
        found[kind] = scorer
    return MappingProxyType(found)


SCORERS: Mapping[str, type[BuiltinScorer]] = by_type(_CLASSES)
"""The shipped scorers by name. A class's docstring describes the scorer; its fields are the
arguments.
"""

ScorerSpec: TypeAlias = "str | Mapping[str, Any] | Callable[..., Any] | Scorer"

_FUNCTION = re.compile(
    r"(?P<path>(?:.+\.py|[A-Za-z_][\w.]*):[A-Za-z_][\w.]*)(?::(?P<arguments>.*))?", re.DOTALL
)
_KEY = re.compile(r"([A-Za-z_]\w*)=")
_NEXT = re.compile(r",(?=[A-Za-z_]\w*=)")
_FUNCTION_ARGUMENTS = ("name", "pass_at")
_MOST_CHECKED = 1_000


def make_scorer(spec: ScorerSpec, *, name: str | None = None) -> Scorer:
    """The scorer for `spec`; `name` takes precedence over a name in it.

    A text is read by `parse_scorer`. A mapping has a `type` (a name of SCORERS, `module:function`
    or `file.py:function`) and the arguments. A function becomes a FunctionScorer. A Scorer is
    returned unchanged.

    Raises: UsageError, for an unknown name or argument (it suggests the nearest) or a wrong type;
    MissingExtra.
    """
    if isinstance(spec, str):
        if name is None:
            return parse_scorer(spec)
        return make_scorer(read_spec(spec, SCORERS), name=name)
    if isinstance(spec, Mapping):
        return _of_mapping({**spec, **({} if name is None else {"name": name})})
    if isinstance(spec, type):
        raise UsageError(f"{spec.__name__} is a class; give an instance, such as {spec.__name__}()")
    if isinstance(spec, Scorer):
        if name is not None and name != spec.name:
            raise UsageError(
                f"scorer {spec.name!r} already has a name; create it with name={name!r}"
            )
        return spec
    if callable(spec):
        return function_scorer(spec, name)
    raise UsageError(
        "a scorer is a name, a table with a type, a function or a Scorer, not "
        f"{type(spec).__name__}"
    )


def make_scorers(specs: Iterable[ScorerSpec]) -> tuple[Scorer, ...]:
    """The scorers of a batch. Raises: UsageError, as `make_scorer` does, and for two scorers with
    the same name.
    """
    if isinstance(specs, str | Mapping) or callable(specs):
        raise UsageError("scorers are a list; put a single one in brackets")
    made: list[Scorer] = []
    names = set[str]()
    for spec in specs:
        scorer = make_scorer(spec)
        for name in score_names(scorer):
            if name in names:
                raise UsageError(
                    f"two scorers are named {name!r}; give one a name: {scorer.name}:name=…"
                )
            names.add(name)
        made.append(scorer)
    return tuple(made)


def member_scorers(scorer: Scorer) -> Iterator[Scorer]:
    """The scorers that judge for `scorer`, each asked once: the graders of a majority and the
    judges of a scorer that asks several, at any depth, else itself.
    """
    if isinstance(scorer, MajorityScorer):
        for grader in scorer.graders:
            yield from member_scorers(grader)
    elif isinstance(scorer, ModelGradedScorer):
        yield from scorer.members()
    else:
        yield scorer


def check_rows(samples: Iterable[Sample | None], scorers: Iterable[Scorer]) -> None:
    """Checks the first 1,000 rows, see `RowSource.read_ahead`, with the scorers that can.

    Raises: UsageError, for a row that a scorer cannot score, such as one with a target that it
    cannot compare; says which row.
    """
    checking: list[BuiltinScorer] = []
    for scorer in scorers:
        if isinstance(scorer, BuiltinScorer) and (
            type(scorer).check_row is not BuiltinScorer.check_row
            or type(scorer).check_target is not BuiltinScorer.check_target
        ):
            checking.append(scorer)
    if not checking:
        return
    for sample in islice(samples, _MOST_CHECKED):
        if sample is None:
            return
        for scorer in checking:
            try:
                scorer.check_row(sample)
            except UsageError as error:
                raise UsageError(
                    f"scorer {scorer.name!r}, row {sample.id!r:.80}: {error}"
                ) from error


def describe_scorer(scorer: Scorer, library: TemplateLibrary) -> dict[str, Any]:
    """The data that determine a scorer's scores: its own description, and the hash of each template
    that it calls.

    Raises: UsageError, for a description that fails or is not a JSON object, and for a missing
    template; TemplateError, for one with errors.
    """
    try:
        described: Any = scorer.describe()
    except EvaluatorError:
        raise
    except Exception as error:
        raise UsageError(
            f"scorer {scorer.name!r}: describe() failed: {exception_text(error)}"
        ) from error
    if not isinstance(described, dict):
        raise UsageError(
            f"scorer {scorer.name!r}: describe() returned {type_name(described)}, expected a dict"
        )
    described = cast("dict[str, Any]", described)
    try:
        digest(described)
    except UsageError as error:
        raise UsageError(f"scorer {scorer.name!r}: the result of describe() is {error}") from error
    templates = described.get("templates")
    if not fits(templates, Sequence[str] | None):
        raise UsageError(
            f"scorer {scorer.name!r}: describe() returned templates that are not a list of names"
        )
    if not templates:
        return described
    return {**described, "templates": {name: template_part(library, name) for name in templates}}


def is_bounded(described: Mapping[str, Any]) -> bool:
    """Whether a scorer with this description gives only values in [0, 1]: the shipped ones do,
    others may not.
    """
    kind = described.get("type")
    return isinstance(kind, str) and kind in SCORERS


def parse_scorer(text: str) -> Scorer:
    """A scorer from its text on a command line: `includes`, `includes:ignore_case=true,name=found`,
    `score.py:close`, `package.module:close:pass_at=0.7`.

    A value is JSON if it is valid JSON, else text, and ends before a comma with `name=` after it.
    Write a value with such a comma as JSON, in quotes.

    Raises: UsageError, as `make_scorer` does.
    """
    return _of_mapping(read_spec(text, SCORERS))


def read_spec(text: str, kinds: Collection[str]) -> dict[str, Any]:
    """The table that a text stands for; its `type` is one of `kinds` or the path of a function.
    Raises: UsageError.
    """
    kind, colon, rest = text.strip().partition(":")
    if kind in kinds:
        return {"type": kind, **(_arguments(kind, rest) if colon else {})}
    match = _FUNCTION.fullmatch(text.strip())
    if match is None:
        return {"type": kind}
    return {
        "type": match["path"],
        **(_arguments(match["path"], match["arguments"]) if match["arguments"] else {}),
    }


def _arguments(kind: str, text: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    at = 0
    while at < len(text):
        key = _KEY.match(text, at)
        if key is None:
            raise UsageError(
                f"{kind}: {text[at:]!r} is not an argument; write name=value, separated by "
                f"commas: {kind}:a=1,b=2"
            )
        if key[1] in found:
            raise UsageError(f"{kind}: the argument {key[1]} is given twice")
        found[key[1]], at = _argument(text, key.end())
    return found


def _argument(text: str, at: int) -> tuple[Any, int]:
    """The value at `at`, and where the next argument begins."""
    try:
        value, end = json.JSONDecoder().raw_decode(text, at)
    except (ValueError, RecursionError):
        pass
    else:
        if end == len(text):
            return value, end
        if _NEXT.match(text, end):
            return value, end + 1
    following = _NEXT.search(text, at)
    if following is None:
        return (text[at:], len(text))
    return (text[at : following.start()], following.end())


def _of_mapping(spec: Mapping[str, Any]) -> Scorer:
    arguments = {str(key): value for key, value in spec.items()}
    kind = arguments.pop("type", None)
    if not isinstance(kind, str):
        raise UsageError(
            f"a scorer's table needs a type, one of {', '.join(SCORERS)}, or file.py:function"
        )
    if kind in SCORERS:
        return SCORERS[kind].from_arguments(arguments, make_scorer)
    if _FUNCTION.fullmatch(kind):
        return _loaded(kind, arguments)
    listed = ", ".join(SCORERS)
    raise UsageError(
        f"there is no scorer {kind!r}{suggestion(kind, SCORERS)} (scorers: {listed}; or "
        "file.py:function)"
    )


def _loaded(path: str, arguments: dict[str, Any]) -> Scorer:
    """Raises: UsageError."""
    if (named := unloaded(path, arguments.get("name"))) is not None:
        return named
    kind = path.partition(":")[0]
    try:
        found, around = load_function(path)
    except UsageError as error:
        raise UsageError(f"{error}{suggestion(kind, SCORERS)}") from error
    check_names(arguments, _FUNCTION_ARGUMENTS, UsageError, where=f"{path}: ")
    if isinstance(found, Scorer) and not isinstance(found, FunctionScorer):
        if arguments:
            raise UsageError(f"{path} is already a scorer and takes no arguments here")
        return found
    name = arguments.get("name")
    pass_at = arguments.get("pass_at")
    accept(str | None, name, f"{path}: name", UsageError)
    if isinstance(found, FunctionScorer):
        return replace(
            found,
            name=name or found.name,
            pass_at=found.pass_at if pass_at is None else pass_at,
            around=around,
        )
    if not callable(found):
        raise UsageError(f"{path} is {type_of(found)}, expected a function")
    made = function_scorer(found, name, pass_at=0.5 if pass_at is None else pass_at)
    return replace(made, around=around)
