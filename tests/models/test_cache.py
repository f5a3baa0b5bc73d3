"""The response cache: what it stores and what it does not, its statistics, and that it never fails a run."""

from __future__ import annotations

import asyncio
import multiprocessing
import sqlite3
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from evaluator import (
    Attachment,
    CacheMark,
    ConfigurationError,
    Evaluator,
    HandlerConfig,
    Message,
    ModelRequest,
    ModelResponse,
    ProviderError,
    RecordError,
    ResponseCache,
    SimulatedBackend,
    TaskStore,
    ToolCall,
    ToolSpec,
    Usage,
)
from evaluator.files.trust import signature
from evaluator.models import cache_store
from evaluator.models.cache_store import CacheKey
from evaluator.store import database
from evaluator.testing import LoopbackServer, json_reply

TOOL = ToolSpec("look", "Looks.", {"type": "object", "properties": {}})
IMAGE = Attachment("image/png", b"\x89PNG\r\n\x1a\n1", "a.png")
ASKED = ModelRequest(
    "m",
    (
        Message("system", "be brief"),
        Message("user", "first"),
        Message("assistant", "yes"),
        Message("user", "q"),
    ),
    tools=(TOOL,),
    temperature=0.0,
    schema={"type": "object"},
)
ANSWER = ModelResponse("a", "stop", usage=Usage(10, 5, 0, 0, 0.25, 1), model="m-1")


def of(request=ASKED, endpoint="e", epoch=1, **more):
    return CacheKey.of(request, endpoint=endpoint, epoch=epoch, **more)


@pytest.fixture
def cache(tmp_path):
    made = ResponseCache(tmp_path / "cache" / "c.db")
    yield made
    made.close()


def put_answer(cache, key, response=ANSWER):
    async def main():
        async with cache.one_at_a_time(key):
            cache.put(key, response)

    asyncio.run(main())
    cache.close()


def find_answer(cache, key):
    async def main():
        async with cache.one_at_a_time(key):
            return cache.get(key)

    return asyncio.run(main())


# -- the key --------------------------------------------------------------------------------------------------------


def changed_message(place, message):
    return replace(ASKED, messages=(*ASKED.messages[:place], message, *ASKED.messages[place + 1 :]))


CHANGES = [
    ({"epoch": 2}, None),
    ({"endpoint": "other"}, "the endpoint was e and is other"),
    ({"request": replace(ASKED, model="n")}, "the model was m and is n"),
    ({"request": replace(ASKED, temperature=0.7)}, "temperature was 0.0 and is 0.7"),
    ({"request": replace(ASKED, temperature=None)}, "temperature was 0.0 and is not set"),
    ({"request": replace(ASKED, seed=1)}, "seed was not set and is 1"),
    ({"request": replace(ASKED, max_output_tokens=9)}, "max_output_tokens was not set and is 9"),
    ({"tool_calling": "text"}, "tool_calling was not set and is text"),
    ({"request": replace(ASKED, tools=())}, "tools: none now"),
    ({"request": replace(ASKED, tools=(replace(TOOL, description="Sees."),))}, "tools: changed"),
    ({"request": replace(ASKED, schema=None)}, "schema: none now"),
    ({"request": replace(ASKED, schema={"type": "array"})}, "schema: changed"),
    ({"request": changed_message(0, Message("system", "be long"))}, "system message: changed"),
    (
        {"request": changed_message(1, Message("user", "first", attachments=(IMAGE,)))},
        "message 1 differs",
    ),
    ({"request": changed_message(3, Message("user", "Q"))}, "message 3 differs"),
    ({"request": replace(ASKED, messages=(*ASKED.messages, Message("user", "more")))}, None),
]


def test_marks_for_the_prompt_cache_of_a_provider_do_not_change_the_key():
    assert of(replace(ASKED, cache_marks=(CacheMark(0, 3),))) == of()


@pytest.mark.parametrize(("change", "words"), CHANGES)
def test_a_request_that_differs_is_a_miss_that_names_the_difference_within_a_turn_and_epoch(
    cache, change, words
):
    put_answer(cache, of())
    key = of(**change)
    assert find_answer(cache, key) is None
    first_message_differs = words == "message 1 differs"
    assert cache.explain_miss(key) == (None if first_message_differs else words)
    assert words is None or key.differences(of()) == [words]


def test_time_limits_hints_and_the_order_of_keys_do_not_change_the_key():
    other = replace(
        ASKED,
        timeout_s=1.0,
        tools=(replace(TOOL, parameters={"properties": {}, "type": "object"}),),
    )
    assert of(other).key == of().key


@pytest.mark.parametrize("data", [b"\x89PNG\r\n\x1a\n2", b""])
def test_an_attachment_counts_with_its_bytes(data):
    one = changed_message(1, Message("user", "x", attachments=(IMAGE,)))
    shown = Attachment("image/png", data, "a.png") if data else IMAGE.withheld()
    other = changed_message(1, Message("user", "x", attachments=(shown,)))
    assert of(one).key != of(other).key


# -- what is given again --------------------------------------------------------------------------------------------


def test_a_hit_is_the_response_with_its_tokens_and_without_its_cost(cache):
    response = replace(
        ANSWER,
        finish_reason="tool_calls",
        tool_calls=(ToolCall("1", "look", "{}"),),
        reasoning="hm",
    )
    put_answer(cache, of(), response)
    assert find_answer(cache, of()) == replace(response, usage=Usage(10, 5, 0, 0, 0.0, 1))


@pytest.mark.parametrize(
    "response",
    [
        replace(ANSWER, finish_reason="length"),
        replace(ANSWER, finish_reason="refusal"),
        replace(ANSWER, finish_reason="content_filter"),
        replace(ANSWER, finish_reason="unknown"),
        replace(ANSWER, content=" \n"),
    ],
    ids=lambda response: response.finish_reason,
)
def test_an_answer_that_is_not_whole_is_not_stored(cache, response):
    put_answer(cache, of(), response)
    assert find_answer(cache, of()) is None


def test_the_first_answer_stays(cache):
    put_answer(cache, of())
    put_answer(cache, of(), replace(ANSWER, content="later"))
    got = find_answer(cache, of())
    assert got is not None
    assert got.content == "a"


def test_an_answer_is_found_before_it_is_on_disk(cache):
    async def main():
        async with cache.one_at_a_time(of()):
            cache.put(of(), ANSWER)
            return cache.get(of())

    assert asyncio.run(main()) is not None


def test_equal_requests_at_the_same_time_wait_for_the_first(cache):
    calls: list[int] = []

    async def one():
        async with cache.one_at_a_time(of()):
            if cache.get(of()) is not None:
                return
            calls.append(1)
            await asyncio.sleep(0)
            if len(calls) == 1:
                raise ProviderError("no")
            cache.put(of(), ANSWER)

    async def main():
        return await asyncio.gather(*(one() for _ in range(10)), return_exceptions=True)

    failed = [error for error in asyncio.run(main()) if error is not None]
    assert (len(calls), len(failed)) == (2, 1), (
        "a failed call answers no other, the next one answers all"
    )


def test_the_file_is_private_and_holds_no_text_of_requests(cache):
    put_answer(cache, of(changed_message(3, Message("user", "a very secret question"))))
    for path in cache.path.parent.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert b"secret question" not in path.read_bytes()


def _fill(path: str, first: int) -> None:
    cache = ResponseCache(path)

    async def main() -> None:
        for number in range(first, first + 40):
            key = of(changed_message(3, Message("user", f"q{number}")))
            async with cache.one_at_a_time(key):
                if cache.get(key) is None:
                    cache.put(key, replace(ANSWER, content=str(number)))

    asyncio.run(main())
    cache.close()


def test_several_processes_write_side_by_side(tmp_path):
    path = tmp_path / "c.db"
    processes = [
        multiprocessing.get_context("spawn").Process(target=_fill, args=(str(path), first))
        for first in (0, 20, 40)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    stats = ResponseCache(path).stats()
    assert (stats.entries, stats.hits + stats.misses) == (80, 120)


# -- statistics and clearing ----------------------------------------------------------------------------------------


def test_statistics_show_savings_by_model(cache):
    put_answer(cache, of())
    put_answer(
        cache, of(replace(ASKED, model="n")), replace(ANSWER, usage=Usage(10, 5, 0, 0, None, 1))
    )
    for _ in range(3):
        find_answer(cache, of())
    find_answer(cache, of(replace(ASKED, model="n")))
    find_answer(cache, of(epoch=7))
    cache.close()
    stats = cache.stats()
    assert (stats.entries, stats.hits, stats.misses) == (2, 4, 1)
    assert stats.bytes > 0
    assert stats.oldest
    m, n = stats.by_model["m"], stats.by_model["n"]
    assert (m.entries, m.hits, m.misses) == (1, 3, 1)
    assert (m.saved.input_tokens, m.saved.output_tokens, m.saved.cost_usd) == (30, 15, 0.75)
    assert n.saved.cost_usd is None


def test_clear_removes_only_what_matches(cache):
    put_answer(cache, of())
    put_answer(cache, of(replace(ASKED, model="n")))
    assert cache.clear(model="n", older_than_s=3600) == 0
    assert cache.clear(model="n") == 1
    assert find_answer(cache, of()) is not None
    cache.close()
    assert cache.clear() == 1
    assert cache.stats().entries == 0


def test_a_missing_cache_is_empty_and_is_not_created(tmp_path):
    cache = ResponseCache(tmp_path / "none.db")
    assert (cache.stats().entries, cache.clear()) == (0, 0)
    assert not cache.path.exists()


def test_what_was_not_used_for_longest_is_removed_first(tmp_path):
    path = tmp_path / "c.db"
    connection = database.connect(path, cache_store.FORMAT, 1.0)
    for number in range(300):
        key = of(changed_message(3, Message("user", str(number))))
        row = cache_store.CachedResponse(
            key, '{"content": "' + "x" * 2000 + '"}', "{}", float(number)
        )
        cache_store.write(connection, [row], {}, {}, 0.0)
    cache_store.write(
        connection, [], {of(changed_message(3, Message("user", "0"))).key: 1}, {}, 1000.0
    )
    bound = cache_store.size(connection) // 2
    cache_store.prune(connection, bound)
    assert cache_store.size(connection) <= bound * 0.9
    left = {row[0] for row in connection.execute("SELECT created FROM response")}
    assert {0.0, 299.0} <= left
    assert 1.0 not in left
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    assert path.stat().st_size <= bound * 1.1


def test_the_whole_cache_stays_within_its_bound(tmp_path):
    cache = ResponseCache(tmp_path / "c.db", max_bytes=200_000)

    async def main() -> None:
        for number in range(600):
            key = of(changed_message(3, Message("user", str(number))))
            async with cache.one_at_a_time(key):
                cache.put(key, replace(ANSWER, content="x" * 3000))
            if number % 100 == 99:
                await asyncio.to_thread(cache.stats)

    asyncio.run(main())
    cache.close()
    assert 0 < cache.stats().entries < 300


# -- what goes wrong ------------------------------------------------------------------------------------------------


def damaged(path: Path) -> None:
    path.write_bytes(b"this is no database, only a file of some length " * 100)


def of_another_program(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE theirs (x)")
    connection.close()


def newer(path: Path) -> None:
    connection = database.connect(path, cache_store.FORMAT, 1.0)
    connection.execute("PRAGMA user_version = 99")
    connection.close()


def a_folder(path: Path) -> None:
    path.mkdir()


def broken_row(path: Path) -> None:
    cache = ResponseCache(path)
    put_answer(cache, of())
    connection = database.connect(path, cache_store.FORMAT, 1.0)
    # Of this user's own program, and not what it can read.
    key, usage = connection.execute("SELECT key, usage FROM response").fetchone()
    mark = signature(cache_store.signed_part(key, "[]", usage))
    connection.execute("UPDATE response SET response = '[]', signature = ?", (mark,))
    connection.close()


@pytest.mark.parametrize(
    "spoil", [damaged, of_another_program, newer, a_folder, broken_row], ids=lambda f: f.__name__
)
def test_an_unusable_cache_is_reported_once_and_the_run_continues(tmp_path, spoil):
    path = tmp_path / "c.db"
    spoil(path)
    said: list[str] = []
    cache = ResponseCache(path, notice=said.append)

    async def main() -> None:
        for _ in range(3):
            async with cache.one_at_a_time(of()):
                assert cache.get(of()) is None
                assert cache.explain_miss(of(epoch=3)) is None
                cache.put(of(), ANSWER)

    asyncio.run(main())
    cache.close()
    assert len(said) == 1
    assert str(path) in said[0]


@pytest.mark.parametrize("spoil", [damaged, a_folder])
def test_statistics_of_an_unusable_cache_are_an_error(tmp_path, spoil):
    spoil(tmp_path / "c.db")
    with pytest.raises(
        (RecordError, ConfigurationError),
        match=r"c\.db: (the cache cannot be read|it is not a regular file)",
    ):
        ResponseCache(tmp_path / "c.db").stats()


@pytest.mark.parametrize("spoil", [of_another_program, newer])
def test_the_database_of_another_program_is_never_written(tmp_path, spoil):
    path = tmp_path / "c.db"
    spoil(path)
    with pytest.raises(ConfigurationError, match="another"):
        ResponseCache(path).clear()


def test_a_run_continues_without_a_locked_database(tmp_path, monkeypatch):
    monkeypatch.setattr("evaluator.models.cache._WRITE_BUSY_S", 0.01)
    path, said = tmp_path / "c.db", []
    other = database.connect(path, cache_store.FORMAT, 0.01)
    other.execute("BEGIN IMMEDIATE")
    cache = ResponseCache(path, notice=said.append)
    put_answer(cache, of())
    other.execute("ROLLBACK")
    other.close()
    assert len(said) == 1
    assert "locked" in said[0]


def test_a_run_continues_with_a_full_disk(tmp_path, monkeypatch):
    said: list[str] = []
    cache = ResponseCache(tmp_path / "c.db", notice=said.append)
    put_answer(cache, of())
    real = database.connect

    def small(*args):
        connection = real(*args)
        # SQLite says the same as where the disk is full.
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages}")
        return connection

    monkeypatch.setattr(database, "connect", small)
    put_answer(cache, of(epoch=2), replace(ANSWER, content="x" * 1_000_000))
    assert len(said) == 1
    assert "full" in said[0]
    monkeypatch.setattr(database, "connect", real)
    assert find_answer(cache, of()) is not None


# -- in an evaluation -----------------------------------------------------------------------------------------------

XML = """<library>
<task name="ask" type="atomic"><description>d</description><inputs><input name="x"/></inputs>
<instructions>Q {{ x }}</instructions></task>
<task name="two" type="sequential"><description>d</description><inputs><input name="x"/></inputs>
<context_management><accumulate_data>false</accumulate_data></context_management><steps>
<task type="atomic"><description>a</description><instructions>Q {{ x }}</instructions></task>
<task type="atomic"><description>b</description><instructions>Q {{ x }}</instructions></task>
</steps></task></library>"""


class Mine(SimulatedBackend):
    """Neither simulated nor replaying by its name, and not free."""

    @property
    def name(self):
        return "mine"

    async def complete(self, request, *, on_text=None):
        response = await super().complete(request, on_text=on_text)
        return replace(response, usage=replace(response.usage, cost_usd=None))


def evaluating(make_evaluator, tmp_path, script, **options):
    xml = XML.removeprefix("<library>").removesuffix("</library>")
    config = HandlerConfig(backoff_s=(0.0,), prices=(1e6, 1e6), **options)
    return make_evaluator(xml, backend=Mine(script=script), handler=config, cache=tmp_path / "c.db")


def ask(evaluator, name="ask", x="1", **options):
    async def main():
        async with evaluator:
            return await evaluator.evaluate(name, {"x": x}, **options)

    return asyncio.run(main())


def test_an_earlier_answer_is_used_again_and_marked_as_cached(make_evaluator, tmp_path):
    seen = []
    evaluator = evaluating(
        make_evaluator, tmp_path, lambda r: seen.append(r) or f"answer {len(seen)}"
    )
    first, second, other = ask(evaluator), ask(evaluator), ask(evaluator, epoch=2)
    assert [o.content for o in (first, second, other)] == ["answer 1", "answer 1", "answer 2"]
    assert [o.notes.get("cached_calls") for o in (first, second, other)] == [None, 1, None]
    assert first.usage.cost_usd > 0
    assert second.usage == replace(first.usage, cost_usd=0.0)
    store = TaskStore(tmp_path / "tasks")
    steps = [next(s for s in store.read(n).steps if s.start.kind == "model") for n in (1, 2, 3)]
    assert [step.end.extra for step in steps] == [None, {"cached": True}, None]
    assert evaluator.replay_sync(2).ok
    assert store.read(3).header.extra["epoch"] == 2


def test_equal_steps_of_one_task_share_an_answer(make_evaluator, tmp_path):
    seen = []
    evaluator = evaluating(make_evaluator, tmp_path, lambda r: seen.append(r) or "same")
    outcome = ask(evaluator, "two").unwrap()
    assert (len(seen), outcome.notes["cached_calls"], outcome.usage.turns) == (1, 1, 2)


def test_the_record_explains_a_miss_of_the_same_conversation(make_evaluator, tmp_path):
    ask(evaluating(make_evaluator, tmp_path, lambda r: "ok"))
    ask(evaluating(make_evaluator, tmp_path, lambda r: "ok", temperature=0.5))
    steps = TaskStore(tmp_path / "tasks").read(2).steps
    said = [step.end.extra for step in steps if step.start.kind == "model"]
    assert said == [{"cache_miss": "temperature was not set and is 0.5"}]


def test_errors_are_not_stored(make_evaluator, tmp_path):
    answers = [ProviderError("no", kind="bad_request"), "fine"]

    def script(_):
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    evaluator = evaluating(make_evaluator, tmp_path, script)
    assert not ask(evaluator).ok
    assert ask(evaluator).content == "fine"


def test_simulated_answers_are_never_stored(make_evaluator, tmp_path):
    xml = XML.removeprefix("<library>").removesuffix("</library>")
    evaluator = make_evaluator(xml, script=lambda r: "ok", cache=tmp_path / "c.db")
    ask(evaluator)
    assert not (tmp_path / "c.db").exists()


def said(content):
    return {
        "choices": [{"message": {"role": "assistant", "content": content}, "finish_reason": "stop"}]
    }


def test_two_servers_do_not_share_answers(tmp_path):
    library = tmp_path / "t.xml"
    library.write_text(XML)
    contents = []
    with LoopbackServer() as one, LoopbackServer() as other:
        for server in (one, other, one):
            server.enqueue(json_reply(said(f"from {server.base_url}")))
            config = HandlerConfig(base_url=server.base_url, model="m", backoff_s=())
            evaluator = Evaluator(library, config, tasks_dir=None, cache=tmp_path / "c.db")
            contents.append(ask(evaluator).unwrap().content)
        assert contents == [
            f"from {one.base_url}",
            f"from {other.base_url}",
            f"from {one.base_url}",
        ]
        assert (one.posts, other.posts) == (1, 1)


def test_a_given_cache_is_shared_by_evaluators(make_evaluator, tmp_path):
    cache, seen = ResponseCache(tmp_path / "shared.db"), []
    xml = XML.removeprefix("<library>").removesuffix("</library>")
    for _ in range(2):
        evaluator = make_evaluator(
            xml, backend=Mine(script=lambda r: seen.append(r) or "ok"), cache=cache
        )
        ask(evaluator)
    assert len(seen) == 1


def test_the_text_of_a_hit_is_streamed_too(make_evaluator, tmp_path):
    evaluator = evaluating(make_evaluator, tmp_path, lambda r: "some words")
    ask(evaluator)
    pieces = []
    ask(evaluator, on_text=pieces.append)
    assert "".join(pieces) == "some words"


@pytest.mark.parametrize("epoch", [0, -1, True, 1.0, "1"])
def test_an_epoch_counts_from_one(make_evaluator, tmp_path, epoch):
    from evaluator import UsageError

    with pytest.raises(UsageError, match="epoch is"):
        ask(evaluating(make_evaluator, tmp_path, None), epoch=epoch)
