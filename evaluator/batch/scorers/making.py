"""Scorers from what an author writes: a name, a table, a line of a command, a function."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias, cast

from evaluator.batch.identity import digest, template_part
from evaluator.batch.scorers.choice import Choice
from evaluator.batch.scorers.contract import Scorer, words
from evaluator.batch.scorers.functions import FunctionScorer, load_function, of_function
from evaluator.batch.scorers.graders import Graded, Reference, Rubric
from evaluator.batch.scorers.majority import Majority
from evaluator.batch.scorers.numeric import Numeric
from evaluator.batch.scorers.overlap import F1, RougeL
from evaluator.batch.scorers.pairwise import Pairwise
from evaluator.batch.scorers.patterns import Regex
from evaluator.batch.scorers.settings import Settings, build, fits
from evaluator.batch.scorers.similarity import Similarity
from evaluator.batch.scorers.structure import JsonEqual, JsonSchema, JsonSubset
from evaluator.batch.scorers.text import Exact, Includes
from evaluator.batch.scorers.values import type_name
from evaluator.errors import EvaluatorError, UsageError
from evaluator.library import TemplateLibrary
from evaluator.library.syntax import nearest

_KINDS: tuple[type[Settings], ...] = (
    Exact, Includes, Regex, Numeric, Choice, F1, RougeL, Similarity, JsonEqual, JsonSubset, JsonSchema,
    Graded, Reference, Rubric, Pairwise, Majority,
)  # fmt: skip
SCORERS: Mapping[str, type[Settings]] = MappingProxyType({kind.type: kind for kind in _KINDS})
"""The shipped scorers by name; a class's docstring says what it does, its fields are its arguments."""

Spec: TypeAlias = "str | Mapping[str, Any] | Callable[..., Any] | Scorer"

_FUNCTION = re.compile(r"(?P<path>(?:.+\.py|[A-Za-z_][\w.]*):[A-Za-z_][\w.]*)(?::(?P<arguments>.*))?", re.DOTALL)
_KEY = re.compile(r"([A-Za-z_]\w*)=")
_NEXT = re.compile(r",(?=[A-Za-z_]\w*=)")
_OF_FUNCTIONS = ("name", "pass_at")


def make_scorer(spec: Spec, *, name: str | None = None) -> Scorer:
    """The scorer that `spec` means; `name` comes before one that it says.

    A text is read by `parse_scorer`. A mapping has a `type` (a name of SCORERS, `module:function` or
    `file.py:function`) and the arguments. A function becomes a FunctionScorer. A Scorer is taken as it is.

    Raises: UsageError, for an unknown name or argument, with the nearest, or one of a wrong type; MissingExtra.
    """
    if isinstance(spec, str):
        return parse_scorer(spec) if name is None else make_scorer(_read(spec), name=name)
    if isinstance(spec, Mapping):
        return _of_mapping({**spec, **({} if name is None else {"name": name})})
    if isinstance(spec, type):
        raise UsageError(f"{spec.__name__} is a class: give a scorer, such as {spec.__name__}()")
    if isinstance(spec, Scorer):
        if name is not None and name != spec.name:
            raise UsageError(f"scorer {spec.name!r} has its name already; make it with name={name!r}")
        return spec
    if callable(spec):
        return of_function(spec, name)
    raise UsageError(f"a scorer is a name, a table with a type, a function or a Scorer, not {type(spec).__name__}")


def make_scorers(specs: Iterable[Spec]) -> tuple[Scorer, ...]:
    """The scorers of a batch. Raises: UsageError, as `make_scorer` does, and where two have one name."""
    if isinstance(specs, str | Mapping) or callable(specs):
        raise UsageError("scorers are a list: put the one in brackets")
    made: dict[str, Scorer] = {}
    for spec in specs:
        scorer = make_scorer(spec)
        if scorer.name in made:
            raise UsageError(f"two scorers are named {scorer.name!r}; give one a name: {scorer.name}:name=…")
        made[scorer.name] = scorer
    return tuple(made.values())


def describe_scorer(scorer: Scorer, library: TemplateLibrary) -> dict[str, Any]:
    """What determines a scorer's judgements: its own description, with the hash of each template that it calls.

    Raises: UsageError, for a description that fails or is no JSON object, and for a template that is not there;
    TemplateError, for one that has errors.
    """
    described = _description(scorer)
    if not described.get("templates"):
        return described
    return {**described, "templates": {name: template_part(library, name) for name in described["templates"]}}


def is_bounded(described: Mapping[str, Any]) -> bool:
    """Whether a scorer that describes itself so gives values in [0, 1] only, as each shipped one does; one of somebody
    else's may give any."""
    kind = described.get("type")
    return isinstance(kind, str) and kind in SCORERS


def _description(scorer: Scorer) -> dict[str, Any]:
    """Raises: UsageError that names the scorer, where it says what is no description."""
    try:
        described: Any = scorer.describe()
    except EvaluatorError:
        raise
    except Exception as error:
        raise UsageError(f"scorer {scorer.name!r}: describe() failed: {words(error)}") from error
    if not isinstance(described, dict):
        raise UsageError(f"scorer {scorer.name!r}: describe() gave {type_name(described)}, expected a dict")
    said = cast("dict[str, Any]", described)
    try:
        digest(said)
    except UsageError as error:
        raise UsageError(f"scorer {scorer.name!r}: describe() gave what is {error}") from error
    if not fits(said.get("templates"), Sequence[str] | None):
        raise UsageError(f"scorer {scorer.name!r}: describe() gave templates that are no list of names")
    return said


def parse_scorer(text: str) -> Scorer:
    """A scorer as a command line has it: `includes`, `includes:ignore_case=true,name=found`, `score.py:close`,
    `package.module:close:pass_at=0.7`.

    A value is JSON where it can be read so, else text, and ends before a comma that a `name=` follows; write one that
    has such a comma as JSON, in quotes.

    Raises: UsageError, as `make_scorer` does.
    """
    return _of_mapping(_read(text))


def _read(text: str) -> dict[str, Any]:
    kind, colon, rest = text.strip().partition(":")
    if kind in SCORERS:
        return {"type": kind, **(_arguments(kind, rest) if colon else {})}
    match = _FUNCTION.fullmatch(text.strip())
    if match is None:
        return {"type": kind}
    return {"type": match["path"], **(_arguments(match["path"], match["arguments"]) if match["arguments"] else {})}


def _arguments(kind: str, text: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    at = 0
    while at < len(text):
        key = _KEY.match(text, at)
        if key is None:
            raise UsageError(
                f"{kind}: {text[at:]!r} is no argument; write name=value, with commas between: {kind}:a=1,b=2"
            )
        if key[1] in found:
            raise UsageError(f"{kind}: the argument {key[1]} is given twice")
        found[key[1]], at = _argument(text, key.end())
    return found


def _argument(text: str, at: int) -> tuple[Any, int]:
    """The value that begins at `at`, and where the next argument begins."""
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
    return (text[at:], len(text)) if following is None else (text[at : following.start()], following.end())


def _of_mapping(spec: Mapping[str, Any]) -> Scorer:
    arguments = {str(key): value for key, value in spec.items()}
    kind = arguments.pop("type", None)
    if not isinstance(kind, str):
        raise UsageError(f"a scorer's table needs a type, one of {', '.join(SCORERS)}, or file.py:function")
    if kind in SCORERS:
        return build(SCORERS[kind], arguments)
    if _FUNCTION.fullmatch(kind):
        return _loaded(kind, arguments)
    listed = ", ".join(SCORERS)
    raise UsageError(f"there is no scorer {kind!r}{nearest(kind, SCORERS)} (there are {listed}; or file.py:function)")


def _loaded(path: str, arguments: dict[str, Any]) -> Scorer:
    """Raises: UsageError."""
    kind = path.partition(":")[0]
    try:
        found = load_function(path)
    except UsageError as error:
        raise UsageError(f"{error}{nearest(kind, SCORERS)}") from error
    for key in arguments:
        if key not in _OF_FUNCTIONS:
            known = f"{nearest(key, _OF_FUNCTIONS)} (it takes {', '.join(_OF_FUNCTIONS)})"
            raise UsageError(f"{path} has no argument {key!r}{known}")
    if isinstance(found, Scorer) and not isinstance(found, FunctionScorer):
        if arguments:
            raise UsageError(f"{path} is a scorer already and takes no arguments here")
        return found
    name, pass_at = arguments.get("name"), arguments.get("pass_at")
    if name is not None and not isinstance(name, str):
        raise UsageError(f"{path}: name is {name!r:.40}, expected text")
    if isinstance(found, FunctionScorer):
        return FunctionScorer(found.function, name or found.name, found.pass_at if pass_at is None else pass_at)
    if not callable(found):
        raise UsageError(f"{path} is a {type(found).__name__}, expected a function")
    return of_function(found, name, 0.5 if pass_at is None else pass_at)
