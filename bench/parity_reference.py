"""Verdicts of the reference implementations, for `parity.py`: reads {kind: cases} and writes {kind: verdicts}, as JSON.

    python bench/parity_reference.py < cases.json

It runs in an environment with the packages of `parity.txt` and does not import `evaluator`. A kind whose packages are
missing has a text instead of verdicts.
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
from types import ModuleType, SimpleNamespace
from typing import Any

Case = dict[str, Any]


def choice() -> Callable[[Case], float]:
    parse_answers = import_module("inspect_ai.solver._multiple_choice").parse_answers

    def verdict(case: Case) -> float:
        state: Any = SimpleNamespace(output=SimpleNamespace(completion=case["output"]), choices=case["options"])
        return float(parse_answers(state, False) == {case["target"]})

    return verdict


def numeric() -> Callable[[Case], float]:
    """GSM8K of lm-eval: `flexible-extract`, then exact match without commas, dollar signs and a final point."""
    regex_filter = import_module("lm_eval.filters.extraction").RegexFilter
    read = regex_filter(r"(-?[$0-9.,]{2,})|(-?[0-9]+)", group_select=-1)

    def plain(text: str) -> str:
        for ignored in (",", r"\$", r"(?s).*#### ", r"\.$"):
            text = re.sub(ignored, "", text)
        return text.lower()

    return lambda case: float(plain(next(iter(read.apply([[case["output"]]], [{}])))[0]) == plain(case["target"]))


def squad_em() -> Callable[[Case], float]:
    normal = _lm_eval("qasper/metrics.py")["normalize_answer"]
    return lambda case: float(any(normal(case["output"]) == normal(each) for each in case["target"]))


def squad_f1() -> Callable[[Case], float]:
    f1 = _lm_eval("qasper/metrics.py")["f1_abstractive"]
    return lambda case: float(max(f1([case["output"]], [each]) for each in case["target"]))


def drop() -> Callable[[Case], float]:
    process = _lm_eval("drop/utils.py")["process_results"]

    def verdict(case: Case) -> float:
        golds = [tuple(each) for each in case["target"]]
        return float(process({"answers": golds}, [case["output"]])["f1"])

    return verdict


def _lm_eval(path: str) -> dict[str, Any]:
    """A module of lm-eval's tasks, run from its file: importing the package needs all of lm-eval's dependencies."""
    found = find_spec("lm_eval")
    if found is None or not found.submodule_search_locations:
        raise ImportError("No module named 'lm_eval'")
    return runpy.run_path(f"{found.submodule_search_locations[0]}/tasks/{path}")


def math() -> Callable[[Case], float]:
    math_verify: Any = import_module("math_verify")
    parse, verify = math_verify.parse, math_verify.verify
    return lambda case: float(verify(parse(f"${case['target']}$"), parse(case["output"])))


def calls() -> Callable[[Case], float]:
    """BFCL's AST evaluation of Python functions, without its table of models, whose clients are large packages."""
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


_KINDS = (choice, numeric, squad_em, squad_f1, drop, math, calls)
KINDS = {each.__name__: each for each in _KINDS} | {"choice_default": choice}


def main() -> None:
    logging.disable()
    found: dict[str, Any] = {}
    for kind, cases in json.load(sys.stdin).items():
        try:
            with contextlib.redirect_stdout(sys.stderr):
                verdict = KINDS[kind]()
                found[kind] = [verdict(case) for case in cases]
        except ImportError as error:
            found[kind] = str(error)
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
