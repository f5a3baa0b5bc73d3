"""Turns text into an entry: its goal in one sentence, and its type by the words that it shares with
each type.

Offline and deterministic. A text that fits no type, or two about equally well, is `unknown`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import cast

from evaluator.errors import UsageError
from evaluator.errors.messages import cut
from evaluator.library.matching import LexicalRanker
from evaluator.nodes import TopLevel
from evaluator.queue.entries import TYPES, EntryType
from evaluator.xml.build import build
from evaluator.xml.source import read_source

MAX_CHARS = 100_000
# Lower than for templates: an entry of the wrong type is still done by the template that fits its
# text.
_LOW_SCORE = 0.05
_MAX_GOAL_CHARS = 300
# A sentence ends before a space and a capital letter or digit; a dot in a name or a number ends
# none.
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[^\W_a-z])")

_DESCRIPTIONS = {
    "info-lookup": (
        "Find, look up or research information",
        "find out, search, compare, summarise, explain, what is, which, who, when, how many, list "
        "the, current price, "
        "weather, news, web, top, facts, investigate, analyse, read about, check whether",
    ),
    "file-creation": (
        "Create, write or edit a file or document",
        "save, write to, markdown, report, table, csv, json, docx, pdf, spreadsheet, slides, "
        "draft a document, update "
        "the file, append, rename, readme, notes, folder",
    ),
    "code-execution": (
        "Run or execute a script, program or command",
        "shell, bash, python, tests, unit tests, build, compile, install, deploy, migrate, "
        "benchmark, restart, command "
        "line, execute code, pipeline, backup",
    ),
    "agent-delegation": (
        "Delegate or hand off complex work to an agent",
        "subagent, sub-agent, assistant, agents, coordinate, orchestrate, multi-step, whole "
        "project, refactor the "
        "module, implement the feature, end to end",
    ),
    "reminder-scheduling": (
        "Remind somebody or schedule something at a time",
        "reminder, remind me, schedule, calendar, appointment, alarm, every day, every week, "
        "weekly, daily, tomorrow, "
        "tonight, next monday, at noon, cron, deadline, recurring",
    ),
    "messaging": (
        "Send a message to a person or channel",
        "email, mail, e-mail, post, slack, teams, chat, channel, notify, tell, reply, announce, "
        "sms, telegram, "
        "whatsapp, discord, forward, invite",
    ),
}


@dataclass(frozen=True, slots=True)
class _Described:
    name: str
    node: TopLevel


def classify(text: str) -> EntryType:
    """The type whose description fits the text best; `unknown` if none fits or two fit equally
    well.
    """
    matches = _ranker().rank(text, limit=2)
    if not matches or matches[0].score < _LOW_SCORE:
        return "unknown"
    if len(matches) > 1 and matches[1].score > matches[0].score / 2:
        return "unknown"
    return cast(EntryType, matches[0].template.name)


def type_named(name: str) -> EntryType:
    """The type with this name. Raises: UsageError, if there is none."""
    if name not in TYPES:
        raise UsageError(f"{name!r:.60} is not a type of the queue; use {', '.join(TYPES)}")
    return name


def goal_of(text: str) -> str:
    """The first sentence of the text, on one line."""
    flat = " ".join(text.split())
    goal = _SENTENCE_END.split(flat, maxsplit=1)[0]
    return cut(goal, _MAX_GOAL_CHARS)


def checked_text(text: str, noun: str = "text") -> str:
    """A text of an entry, `noun` in messages. Raises: UsageError, if it is empty, too long, or not
    Unicode.
    """
    if not text.strip():
        raise UsageError(f"the {noun} of the entry is empty; write one or leave it out")
    if len(text) > MAX_CHARS:
        raise UsageError(
            f"the {noun} of the entry has {len(text):,} characters, at most {MAX_CHARS:,}; name a "
            "file in it"
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(
            f"the {noun} of the entry is not UTF-8, or holds half of a surrogate pair; write the "
            "character whole"
        ) from error
    return text


@cache
def _ranker() -> LexicalRanker:
    tasks = "".join(
        f'<task name="{name}"><description>{description}</description><criteria>{criteria}</criteria></task>'
        for name, (description, criteria) in _DESCRIPTIONS.items()
    )
    built = build(read_source(f"<library>{tasks}</library>".encode(), "<types of entries>"))
    return LexicalRanker(
        _Described(name, node) for name, node in zip(_DESCRIPTIONS, built.templates, strict=True)
    )
