"""One batch killed (SIGKILL) at random, again and again, and gone on with: what was lost, and what
was paid for twice.

    python bench/kill.py [--n 2000] [--kills 50] [--concurrency 64] [--seed 0]

A server in this process counts how often each prompt is asked, and knows how many calls were open
when the kill came. The batch is the command `evaluator batch`; each session is killed at a random
time after its first call, so that the kills are spread over the whole batch. In the end the results
are compared with those of a batch that nobody disturbed.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import sysconfig
from collections import Counter
from pathlib import Path
from typing import Any

import tasks
from figures import Figure, parser_for, remarks, report, work_folder

from evaluator.batch import open_batch

PROGRAM = str(Path(sysconfig.get_path("scripts")) / "evaluator")
PROFILE = """<handler name="bench"><backend>openai_compatible</backend><model>bench</model>
<base_url>http://127.0.0.1:{port}/v1</base_url></handler>"""
DELAY_S, A_SECOND = 0.02, 2000


class Counting:
    """Answers each prompt after DELAY_S with a text that depends on it alone."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.open = 0
        self.called = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                size = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
                body = json.loads(await reader.readexactly(size))
                await self.answer(body["messages"][-1]["content"], writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def answer(self, prompt: str, writer: asyncio.StreamWriter) -> None:
        self.asked[prompt] += 1
        self.called.set()
        self.open += 1
        try:
            await asyncio.sleep(DELAY_S)
            message = {
                "role": "assistant",
                "content": f"{len(prompt)} characters, {hash_of(prompt)}",
            }
            body = json.dumps(
                {
                    "id": "x",
                    "object": "chat.completion",
                    "created": 1,
                    "model": "bench",
                    "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
                    "usage": {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12},
                }
            ).encode()
            writer.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
                % len(body)
                + body
            )
            await writer.drain()
        finally:
            self.open -= 1


def hash_of(prompt: str) -> int:
    return sum(ord(sign) * place for place, sign in enumerate(prompt, 1)) % 9973


async def session(
    folder: Path, output: str, options: list[str], kill_after_s: float | None, server: Counting
) -> int | None:
    """Runs `evaluator batch`; the calls that were open when it was killed, None where it came to
    its end before.
    """
    server.called.clear()
    is_there = (folder / output / "manifest.json").exists()
    where = ["--resume", output] if is_there else ["--output", output]
    process = await asyncio.create_subprocess_exec(
        PROGRAM,
        "batch",
        *options,
        *where,
        "--progress",
        "none",
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, "EVALUATOR_TRUST": str(folder)},
    )
    ended = asyncio.ensure_future(process.communicate())
    if kill_after_s is not None:
        await asyncio.wait(
            [ended, asyncio.ensure_future(server.called.wait())],
            return_when=asyncio.FIRST_COMPLETED,
        )
        await asyncio.wait([ended], timeout=kill_after_s)
    if kill_after_s is not None and not ended.done():
        still_open = server.open
        process.kill()
        await ended
        return still_open
    _, err = await ended
    if process.returncode:
        raise SystemExit(err.decode()[-2000:])
    return None


async def measure(arguments: Any, folder: Path) -> list[Figure]:
    say = remarks(arguments.json)
    server = Counting()
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0, backlog=512)
    port = listening.sockets[0].getsockname()[1]
    (folder / "handlers").mkdir()
    (folder / "handlers" / "bench.xml").write_text(PROFILE.format(port=port), encoding="utf-8")
    tasks.library(folder / "templates")
    with (folder / "rows.jsonl").open("w", encoding="utf-8") as file:
        for number in range(arguments.n):
            file.write(
                json.dumps({"id": f"row-{number}", "target": "characters", **tasks.row(number)})
                + "\n"
            )
    options = [
        "--template",
        tasks.NAME,
        "--rows",
        "rows.jsonl",
        "--scorer",
        "includes",
        "--handler",
        "bench",
        "--concurrency",
        str(arguments.concurrency),
    ]
    await session(folder, "undisturbed", options, None, server)
    expected = contents(folder / "undisturbed")
    server.asked.clear()

    draw = random.Random(arguments.seed)
    kills, open_calls = 0, 0
    # About what one share of the calls takes: most kills meet some that are done, some in flight,
    # and some to come.
    share_s = DELAY_S + arguments.n / arguments.kills / A_SECOND
    while kills < arguments.kills:
        found = await session(folder, "killed", options, draw.uniform(0, 2 * share_s), server)
        if found is None:
            break
        kills += 1
        open_calls += found
        say(f"kill {kills}: {found} calls open, {len(server.asked)} of {arguments.n} prompts asked")
    await session(folder, "killed", options, None, server)
    again = contents(folder / "killed")
    repeated = server.asked.total() - len(server.asked)
    listening.close()
    different = sum(again.get(key) != value for key, value in expected.items()) + len(
        again.keys() - expected.keys()
    )
    return [
        Figure("kills", kills, ""),
        Figure("results that are missing or different", different, "", 0),
        Figure("calls repeated", repeated, ""),
        Figure("calls open at the kills, together", open_calls, ""),
        Figure(
            "calls repeated : most that can be in flight",
            repeated / max(1, kills * arguments.concurrency),
            "",
            1,
        ),
    ]


def contents(folder: Path) -> dict[tuple[str, int], tuple[Any, ...]]:
    return {
        (r.sample_id, r.epoch): (r.verdict, r.content, r.inputs)
        for r in open_batch(folder).results()
    }


def main() -> None:
    parser = parser_for(__doc__)
    parser.add_argument("--n", type=int, default=2000)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="where everything is written, and stays")
    arguments = parser.parse_args()
    with work_folder(arguments.folder) as folder:
        figures = asyncio.run(measure(arguments, folder))
    report(figures, as_json=arguments.json)


if __name__ == "__main__":
    sys.exit(main())
