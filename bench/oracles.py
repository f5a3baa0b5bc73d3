"""Prints what other implementations compute from the examples of our tests, which have these values
as expected ones: ppi-python of corrected means (`tests/batch/statistics/test_corrected.py`), lm-eval
of log likelihoods (`tests/batch/scorers/test_probability_scorers.py`).

    python bench/oracles.py --python PYTHON

PYTHON has the packages `ppi-python==0.2.3` and `lm-eval[api]==0.4.13`. They are not in the
development group: ppi-python installs a package `tests` and needs scikit-learn and Numba, lm-eval
has a hundred dependencies.
"""

import argparse
import json
import math
import random
import re
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

ROWS = {
    "an apple": ["zoo", "banana cat", "apple"],
    "the cat ": ["dog eel", "eagle", "cat cat"],
}
TEXTS = ["an apple bed cow", "dog eel  fox zoo"]


def corrected_means() -> list[dict[str, float]]:
    import numpy as np
    from ppi_py import ppi_mean_ci, ppi_mean_pointestimate

    found: list[dict[str, float]] = []
    for seed in range(3):
        rng = random.Random(seed)
        predictions = [rng.random() for _ in range(200)]
        places = sorted(rng.sample(range(200), 50))
        labels = np.array([predictions[place] + rng.gauss(0, 0.3) for place in places])
        seen = np.array([predictions[place] for place in places])
        unseen = np.array([f for place, f in enumerate(predictions) if place not in places])
        (mean,) = ppi_mean_pointestimate(labels, seen, unseen)
        low, high = ppi_mean_ci(labels, seen, unseen, alpha=0.05)
        found.append({"mean": float(mean), "low": float(low[0]), "high": float(high[0])})
    return found


def likelihoods(url: str) -> dict[str, Any]:
    """Of the options after the questions, with whether each token is the most likely one, and of
    whole texts without their first token.
    """
    from lm_eval.models.openai_completions import LocalCompletionsAPI

    words: list[str] = []

    def encode(text: str, **_: Any) -> list[int]:
        """The tokens of the table model."""
        found: list[int] = []
        for word in re.findall(r"\s*\S+|\s+\Z", text):
            if word not in words:
                words.append(word)
            found.append(words.index(word))
        return found

    model = LocalCompletionsAPI(
        base_url=f"{url}/completions",
        model="table",
        tokenizer_backend=None,
        tokenized_requests=False,
    )
    model.tokenizer = SimpleNamespace(eot_token=0)
    model.tok_encode = encode
    model.decode_batch = lambda batch: ["".join(words[each] for each in ids) for ids in batch]
    pairs = [(context, f" {option}") for context, options in ROWS.items() for option in options]
    given = model.loglikelihood([SimpleNamespace(args=pair) for pair in pairs])
    of_texts = [_text_pair(text) for text in TEXTS]
    rolling = model.loglikelihood([SimpleNamespace(args=pair) for pair in of_texts])
    return {
        "options": {
            context + option: [value, bool(is_greedy)]
            for (context, option), (value, is_greedy) in zip(pairs, given, strict=True)
        },
        "texts": {text: value for text, (value, _) in zip(TEXTS, rolling, strict=True)},
        "perplexities": {
            text: math.exp(-value / len(encode(rest)))
            for text, (_, rest), (value, _) in zip(TEXTS, of_texts, rolling, strict=True)
        },
    }


def _text_pair(text: str) -> tuple[str, str]:
    first, space, rest = text.partition(" ")
    return first, space + rest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--python", help="an interpreter with the packages")
    parser.add_argument("--url", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.url:
        found = {"corrected": corrected_means(), **likelihoods(arguments.url)}
        sys.stdout.write(json.dumps(found, indent=1) + "\n")
        return
    if not arguments.python:
        parser.error("name an interpreter with --python")
    from tests.models.table_model import table_server

    with table_server() as server:
        command = [arguments.python, __file__, "--url", server.base_url]
        raise SystemExit(subprocess.run(command, check=False).returncode)


if __name__ == "__main__":
    main()
