"""`ifeval`: the verifiable instructions of IFEval, checked by its official code, which lm-eval
ships.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib.util import find_spec
from typing import Any, ClassVar, cast

from evaluator.batch.records import Score
from evaluator.batch.scorers.computing import compute_queue
from evaluator.batch.scorers.contract import ScorerInput
from evaluator.batch.scorers.result_scorer import ResultScorer, question_of
from evaluator.errors import MissingExtra, UsageError
from evaluator.files.libraries import import_extra


@dataclass(frozen=True, slots=True, kw_only=True)
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
