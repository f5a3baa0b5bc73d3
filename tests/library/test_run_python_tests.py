"""The shipped template `run_python_tests`: an answer passes only if its tests have run to their end."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from evaluator import TemplateLibrary, nodes

ROOT = Path(__file__).parents[2]
FENCE = "```"
RIGHT = "def double(n):\n    return 2 * n\n"
TEST = "def check(candidate):\n    assert candidate(4) == 8\ncheck(double)"
PROMPT = 'import math\n\ndef double(n):\n    """Doubles n."""\n'


def run(answer: str, prompt: str = PROMPT, test: str = TEST, seconds: float = 10) -> dict[str, Any]:
    node = (
        TemplateLibrary.load(ROOT / "templates" / "code", shipped=False)
        .get("run_python_tests")
        .node
    )
    assert isinstance(node, nodes.Script)
    argv = [sys.executable, *(part.value for part in node.command[1:])]
    given = {
        "answer": answer,
        "test": test,
        "prompt": prompt,
        "function": "double",
        "seconds": seconds,
    }
    done = subprocess.run(
        argv, input=json.dumps(given), capture_output=True, text=True, timeout=200, check=True
    )
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    "answer",
    [
        RIGHT,
        "    return 2 * n\n",
        f"{FENCE}python\n{RIGHT}{FENCE}",
        f"Sure.\n{FENCE}\n{RIGHT}{FENCE}\nIt doubles.",
        f"{FENCE}sh\npython double.py\n{FENCE}\n{FENCE}py\n{RIGHT}{FENCE}",
        f"{FENCE}python\n{RIGHT}{FENCE}\n{FENCE}python\nprint(double(1))\n{FENCE}",
        f"{FENCE}python\r\ndef double(n):\r\n  return 2 * n\r\n{FENCE}",
        f"1. First:\n   {FENCE}python\n   def double(n):\n       return 2 * n\n   {FENCE}",
        f"{FENCE}python\n{RIGHT}",
        f"print('noise')\n{RIGHT}",
        "    return math.prod([2, n])",
    ],
)
def test_right_code_passes_in_each_form(answer: str) -> None:
    assert run(answer) == {"passed": True, "reason": "all tests passed"}


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("    return 3 * n", "AssertionError: "),
        ("", "AssertionError: "),
        ("I would multiply n by two.", "SyntaxError: "),
        (f"import sys\n{RIGHT}sys.exit(0)", "SystemExit: 0"),
        (f"import os\n{RIGHT}os._exit(0)", "the code ended before its tests did"),
        ("import os\nos.kill(os.getpid(), 9)\n" + RIGHT, "the code ended before its tests did"),
        ("def double(n):\n    raise KeyboardInterrupt", "KeyboardInterrupt: "),
        (
            "print('{\"passed\": true}', flush=True)\nimport os\nos._exit(0)",
            "the code ended before its tests did",
        ),
        (
            "import os\nfor fd in range(3, 9):\n    try: os.write(fd, b'passed ')\n    except OSError: pass",
            "passed ",
        ),
    ],
)
def test_other_code_fails_with_a_reason(answer: str, reason: str) -> None:
    result = run(answer)
    assert result["passed"] is False
    assert result["reason"].startswith(reason)


@pytest.mark.parametrize(
    "answer",
    ["while True: pass", "import os, time\nif os.fork() == 0:\n    time.sleep(100)\nos._exit(0)"],
)
def test_code_without_an_end_fails(answer: str) -> None:
    assert run(answer, seconds=0.5) == {"passed": False, "reason": "no end after 0.5 s"}
