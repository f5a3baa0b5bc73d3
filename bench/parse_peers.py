"""What other parsers read, for `parse_public.py`: reads [[text, schema], …] and writes [[found,
value], …], as JSON.

    python bench/parse_peers.py READER < texts.json

It runs in an environment with the packages of `parse_peers.txt` and does not import `evaluator`.
Every parser is called as its documentation says. An exception, and more than 10 s for one text, is
`[false, null]`. Exit code 3: not installed.
"""

import json
import signal
import sys
from importlib import import_module
from typing import Any

SECONDS = 10
READERS = {
    "json_repair": ("json_repair", "repair_json"),
    "partial-json-parser": ("partial_json_parser", "loads"),
    "langchain-core": ("langchain_core.utils.json", "parse_json_markdown"),
    "demjson3": ("demjson3", "decode"),
    "dirtyjson": ("dirtyjson", "loads"),
    "json5": ("json5", "loads"),
}


class TooLong(BaseException):
    pass


def _stop(*_: object) -> None:
    raise TooLong


def main() -> None:
    reader = sys.argv[1]
    module, function = READERS[reader]
    try:
        read = getattr(import_module(module), function)
    except ImportError:
        sys.exit(3)
    signal.signal(signal.SIGALRM, _stop)
    found: list[tuple[bool, Any]] = []
    for text, schema in json.load(sys.stdin):
        options = {"return_objects": True, "schema": schema} if reader == "json_repair" else {}
        signal.alarm(SECONDS)
        try:
            found.append((True, json.loads(json.dumps(read(text, **options), default=repr))))
        except (Exception, TooLong):
            found.append((False, None))
        finally:
            signal.alarm(0)
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
