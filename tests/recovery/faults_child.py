"""The process that forks one `evaluator` command for each fault; see `faults.c`, which it is started with.

It reads jobs as lines of JSON (`argv`, `folder`, `out`, and the fault) and answers each with the exit code, negative for
a signal, and the number of counted calls. It imports everything once and runs a job of `recovery_child.py`, its
argument, so that a command takes milliseconds.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import sys
from functools import partial
from typing import Any

from recovery_child import warm

from evaluator import TemplateLibrary

MODULES = (
    "aiohttp",
    "evaluator.batch",
    "evaluator.batch.run",
    "evaluator.batch.engines",
    "evaluator.cli.main",
    "evaluator.cli.batch",
    "evaluator.cli.run",
    "evaluator.cli.tasks",
    "evaluator.interpreter.evaluator",
    "evaluator.models.openai_compatible",
    "evaluator.models.prices",
    "evaluator.xml.schema",
    "jsonschema",
    "lxml.etree",
)


def _run(job: dict[str, Any], report: int) -> None:
    from evaluator.cli import main

    os.chdir(job["folder"])
    os.environ["EVALUATOR_TRUST"] = job["folder"]
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(
            os.open(f"{job['out']}.{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number
        )
    sys.argv = ["evaluator", *job["argv"]]
    faults = ctypes.CDLL(None)
    faults.fault_arm(job["root"].encode(), job["at"], job["error"], job["mode"])
    code: Any = 70
    try:
        main(job["argv"])
    except SystemExit as end:
        code = end.code or 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os.write(report, b"%d" % faults.fault_count())
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main() -> None:
    for name in MODULES:
        importlib.import_module(name)
    # Loading the shipped templates would take two thirds of the time of a command.
    TemplateLibrary.load = partial(TemplateLibrary.load, shipped=False)  # pyright: ignore[reportAttributeAccessIssue]
    warm(json.loads(sys.argv[1]))
    commands, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for line in commands:
        job = json.loads(line)
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(read)
            _run(job, write)
        os.close(write)
        counted = os.read(read, 100)
        os.close(read)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        answers.write(json.dumps({"code": code, "calls": int(counted or 0)}).encode() + b"\n")


if __name__ == "__main__":
    main()
