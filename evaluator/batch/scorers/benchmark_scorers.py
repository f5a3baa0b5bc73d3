"""Scorers that benchmarks define: `drop` and `quasi_exact` of question answering, SQuAD's
normalisation, and `ifeval`: the verifiable instructions of IFEval, checked by its official code,
which lm-eval ships.
"""

from __future__ import annotations

import re
import string
from collections.abc import Sequence
from functools import lru_cache, partial
from importlib.util import find_spec
from typing import Any, ClassVar, cast

from evaluator.batch.records import Score
from evaluator.batch.scorers.builtin_scorer import (
    ResultScorer,
    TargetScorer,
    as_list,
    as_text,
    expected_one_of,
    question_of,
    shown,
)
from evaluator.batch.scorers.contract import (
    NO_TARGET,
    ScorerInput,
    binary_score,
    compute_queue,
    graded_score,
)
from evaluator.errors import MissingExtra, UsageError
from evaluator.fields import Share
from evaluator.files.project_code import import_extra
from evaluator.lazy_dataclass import frozen

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_ASCII_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ANSWER_LINE = re.compile(r"\banswer\s*:[ \t]*([^\n]+)", re.IGNORECASE)
_MAX_SPANS = 50


def squad_normal(text: str) -> str:
    """A text as SQuAD 2.0's evaluation script compares it: lower case, without ASCII punctuation
    and articles.
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_ASCII_PUNCTUATION)).split())


@frozen(kw_only=True)
class DropScorer(ResultScorer):
    """DROP's F1 of aligned spans, with its exact match in the metadata; passed if `pass_at` (1.0)
    is reached.

    The target is a text, or a list of alternatives, each a text or a list of spans. The answer is
    the parsed value, if it is a list of spans, else one span: the text after the last `Answer:` in
    a line, or the whole text. `separator` splits such a text into spans. Source: Dua et al., "DROP:
    A Reading Comprehension Benchmark Requiring Discrete Reasoning Over Paragraphs", 2019, and its
    evaluation script.
    """

    type: ClassVar[str] = "drop"
    pass_at: Share = 1.0
    separator: str | None = None

    def check(self) -> None:
        if self.separator == "":
            raise UsageError("drop: separator is empty, expected the text between spans")

    async def score(self, scored: ScorerInput) -> Score:
        target: Any = scored.sample.target
        if target is None or target == []:
            return NO_TARGET
        alternatives = [_spans(each) for each in as_list(target)]
        found = self._found(self.value(scored))
        pairs = [drop_scores(found, each) for each in alternatives if each and each[0].strip()]
        if pairs:
            exact, f1 = (max(column, default=0.0) for column in zip(*pairs, strict=True))
        else:
            exact, f1 = (0.0, 0.0)
        if f1 >= self.pass_at:
            why = ""
        else:
            why = expected_one_of(map(shown, map(", ".join, alternatives)))
        return graded_score(
            f1, self.pass_at, answer=", ".join(found), explanation=why, metadata={"exact": exact}
        )

    def _found(self, value: Any) -> list[str]:
        if isinstance(value, list | tuple):
            return _spans(value)
        text = as_text(value, "the answer")
        lines = _ANSWER_LINE.findall(text)
        text = lines[-1] if lines else text
        if self.separator is not None:
            return text.split(self.separator)
        return [text]


def _spans(value: Any) -> list[str]:
    """Raises: UsageError, for too many spans, or anything but texts and numbers."""
    spans = [as_text(each, "a span") for each in as_list(value)]
    if len(spans) > _MAX_SPANS:
        raise UsageError(f"drop: {len(spans)} spans; the limit is {_MAX_SPANS}")
    return spans


def drop_scores(found: Sequence[str], expected: Sequence[str]) -> tuple[float, float]:
    """Exact match, and the mean F1 of the spans in their best alignment, rounded to two places as
    by the script.
    """
    texts = [[_drop_normal(span) for span in spans] for spans in (found, expected)]
    bags = [[{*text.split()} for text in spans] for spans in texts]
    exact = float({*texts[0]} == {*texts[1]} and len(texts[0]) == len(texts[1]))
    scores = [[_bag_f1(given, wanted) for given in bags[0]] for wanted in bags[1]]
    best = best_alignment(scores)
    return exact, round(best / max(len(found), len(expected)), 2)


def _bag_f1(found: set[str], expected: set[str]) -> float:
    """The F1 of two sets of words; 0 if the expected one has numbers and shares none of them."""
    numbers = {word for word in expected if _is_number(word)}
    if numbers and not numbers & found:
        return 0.0
    common = len(found & expected)
    precision = common / len(found) if found else 1.0
    recall = common / len(expected) if expected else 1.0
    if precision + recall:
        return 2 * precision * recall / (precision + recall)
    return 0.0


def best_alignment(scores: list[list[float]]) -> float:
    """The largest sum of `scores`, one at most of each row and column: the Hungarian method, in
    cubic time.
    """
    size = max(len(scores), len(scores[0]) if scores else 0)
    cost = [
        [-row[column] if column < len(row) else 0.0 for column in range(size)] for row in scores
    ]
    cost += [[0.0] * size for _ in range(size - len(scores))]
    rows = [0.0] * (size + 1)
    columns = [0.0] * (size + 1)
    row_of = [0] * (size + 1)
    for row in range(1, size + 1):
        row_of[0] = row
        at = 0
        least = [float("inf")] * (size + 1)
        before = [0] * (size + 1)
        used = [False] * (size + 1)
        while row_of[at]:
            used[at] = True
            step = float("inf")
            following = 0
            for column in range(1, size + 1):
                if used[column]:
                    continue
                reduced = cost[row_of[at] - 1][column - 1] - rows[row_of[at]] - columns[column]
                if reduced < least[column]:
                    least[column] = reduced
                    before[column] = at
                if least[column] < step:
                    step = least[column]
                    following = column
            for column in range(size + 1):
                if used[column]:
                    rows[row_of[column]] += step
                    columns[column] -= step
                else:
                    least[column] -= step
            at = following
        while at:
            row_of[at], at = row_of[before[at]], before[at]
    return -sum(cost[row_of[column] - 1][column - 1] for column in range(1, size + 1))


def _drop_normal(text: str) -> str:
    words: list[str] = []
    for token in re.split(r" |-", text.lower()):
        if not _is_number(token):
            token = token.translate(_ASCII_PUNCTUATION)
        if _is_number(token):
            token = str(float(token))
        words += _ARTICLES.sub(" ", token).split()
    return " ".join(words)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


@frozen(kw_only=True)
class QuasiExactScorer(TargetScorer):
    """The text equals the target as GAIA compares them: as numbers without `$`, `%` and commas if
    the target is a number; item by item if it is a list with commas or semicolons; else without
    white space, punctuation and case. One of several targets is enough. `of`, or a template with an
    output format, gives the answer alone. Source: Mialon et al., "GAIA: a benchmark for General AI
    Assistants", 2023, and its scorer.
    """

    type: ClassVar[str] = "quasi_exact"

    async def compare(self, text: str, wanted: list[str]) -> Score:
        if any(_quasi_equal(text, target) for target in wanted):
            return binary_score(True, text)
        return binary_score(
            False,
            text,
            explanation=f"{expected_one_of(map(shown, wanted))}, got {shown(text)}",
        )


def _quasi_equal(text: str, target: str) -> bool:
    if _is_number(target):
        return _as_number(text) == float(target)
    if "," in target or ";" in target:
        given, expected = (re.split("[,;]", each) for each in (text, target))
        return len(given) == len(expected) and all(
            _as_number(a) == float(b) if _is_number(b) else _letters(a) == _letters(b)
            for a, b in zip(given, expected, strict=True)
        )
    return _letters(text).translate(_ASCII_PUNCTUATION) == _letters(target).translate(
        _ASCII_PUNCTUATION
    )


def _as_number(text: str) -> float | None:
    text = re.sub("[$%,]", "", text)
    if _is_number(text):
        return float(text)
    return None


def _letters(text: str) -> str:
    return re.sub(r"\s", "", text).lower()


@frozen(kw_only=True)
class IfevalScorer(ResultScorer):
    """The text follows the instructions of a row of IFEval: `instruction_id_list` and `kwargs` in
    its inputs or metadata, and the prompt. It gives four values: `prompt_strict` and `prompt_loose`
    are 1 if all instructions are followed, `instruction_strict` and `instruction_loose` the share
    of them. "Loose" also accepts the text without its first or last line and without asterisks.
    Needs the extra `evaluator[ifeval]`. Source: Zhou et al., "Instruction-Following Evaluation for
    Large Language Models", 2023, and its checker.
    """

    type: ClassVar[str] = "ifeval"
    values: ClassVar[tuple[str, ...]] = (
        "prompt_strict",
        "prompt_loose",
        "instruction_strict",
        "instruction_loose",
    )

    def check(self) -> None:
        if find_spec("lm_eval") is None:
            raise MissingExtra("lm-eval", "ifeval")

    async def score(self, scored: ScorerInput) -> Any:
        row = {**scored.sample.metadata, **scored.sample.inputs}
        names = row.get("instruction_id_list")
        arguments = row.get("kwargs")
        if not isinstance(names, list) or not isinstance(arguments, list):
            raise UsageError(
                "ifeval: the row needs the lists instruction_id_list and kwargs, in its inputs or "
                "metadata"
            )
        names = cast("list[Any]", names)
        if not names or len(names) != len(cast("list[Any]", arguments)):
            raise UsageError(
                f"ifeval: expected as many kwargs as instructions, got {len(arguments)} for "
                f"{len(names)}"
            )
        prompt = question_of(scored.sample.inputs)
        # One after the other: the detection of languages is not safe in threads.
        strict, loose = await compute_queue().call(
            partial(_followed, names, arguments, prompt, self.text(scored))
        )
        return {
            "prompt_strict": _score(strict, names, of_all=True),
            "prompt_loose": _score(loose, names, of_all=True),
            "instruction_strict": _score(strict, names, of_all=False),
            "instruction_loose": _score(loose, names, of_all=False),
        }


def _score(followed: Sequence[bool], names: Sequence[Any], *, of_all: bool) -> Score:
    missed = [
        str(name) for name, is_followed in zip(names, followed, strict=True) if not is_followed
    ]
    if of_all:
        value = float(not missed)
    else:
        value = sum(followed) / len(followed)
    about = {"followed": sum(followed), "instructions": len(followed)}
    return Score(
        value,
        not missed,
        explanation=f"not followed: {', '.join(missed)}" if missed else "",
        metadata=about,
    )


def _followed(
    names: list[Any], arguments: list[Any], prompt: str, text: str
) -> tuple[list[bool], list[bool]]:
    """Which instructions the text follows, strictly and loosely. Raises: UsageError,
    MissingExtra.
    """
    official = _official_checker()
    row = official.InputExample(0, names, prompt, arguments)
    try:
        strict = official.test_instruction_following_strict
        loose = official.test_instruction_following_loose
        return strict(row, text).follow_instruction_list, loose(row, text).follow_instruction_list
    except KeyError as error:
        raise UsageError(f"ifeval: {error} is not an instruction of IFEval") from error
    except LookupError as error:
        message = (
            "ifeval: data of NLTK is missing; download it once: python -m nltk.downloader punkt_tab"
        )
        raise UsageError(message) from error
    except (TypeError, AttributeError, ValueError) as error:
        raise UsageError(
            f"ifeval: kwargs do not fit the instructions {', '.join(map(str, names))}: {error}"
        ) from error


@lru_cache(maxsize=1)
def _official_checker() -> Any:
    """The official code, with a fixed seed for the detection of languages."""
    # The first process of a group, rank 0, downloads data of NLTK at import and prints that.
    module = import_extra("lm_eval.tasks.ifeval.utils", "ifeval", {"LOCAL_RANK": "1"})
    import_extra("langdetect", "ifeval").DetectorFactory.seed = 0
    return module
