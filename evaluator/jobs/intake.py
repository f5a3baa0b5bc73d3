"""Turns text into an entry: its goal in one sentence, and its type by the words that it shares with
each type.

Offline and deterministic. A text that fits no type, or two about equally well, is `unknown`.

What a person says to a queue: words that control it, and messages that a model reads.

`skip T-02`, `retry T-03 use channel #research` control; any number of them, one a line. A message
that asks for work becomes entries, with the shipped template `read_message`: their goals, types,
dates, priority, and the earlier entries whose results they need.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Any, Literal, cast

from evaluator.errors import UsageError
from evaluator.errors.messages import cut, shortened
from evaluator.errors.results import Outcome, TaskError
from evaluator.interpreter.evaluator import Evaluator
from evaluator.jobs.entries import TYPES, EntryType
from evaluator.lazy_dataclass import frozen
from evaluator.library.matching import LexicalRanker
from evaluator.nodes import TopLevel
from evaluator.xml.build import build
from evaluator.xml.source import read_source

MAX_CHARS = 100_000
# Lower than for templates: an entry of the wrong type is still done by the template that fits its
# text.
_LOW_SCORE = 0.05
_MAX_GOAL_CHARS = 300
_MAX_READ_CHARS = 10_000
# A sentence ends before a space and a capital letter or digit; a dot in a name or a number ends
# none.
_SENTENCE_END = re.compile(r"(?<=[.!?…])\s+(?=[^\W_a-z])|(?<=[。！？])")
# The dot after these is a part of the word, as is that after an initial.
_ABBREVIATION = re.compile(
    r"(?:^|[\s(\"'])(?:"
    r"Mr|Mrs|Ms|Mx|Dr|Prof|Rev|Gen|Col|Capt|Lt|Sgt|Sen|Rep|Gov|Hon|St|Mt|Jr|Sr|Messrs"
    r"|e\.g|i\.e|cf|vs|viz|resp|approx|ca|etc|incl|excl|No|Nos|Nr|Fig|Figs|Eq|Sec|Ch|Vol|pp|p|Art"
    r"|Inc|Ltd|Corp|Co|Dept|Univ|Ave|Blvd|Rd|a\.m|p\.m|U\.S|U\.K|E\.U"
    r"|Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept?|Oct|Nov|Dec"
    r"|Hr|Fr|Dipl|Ing|bzw|z\.\s?B|d\.\s?h|u\.\s?a|Str|M|Mme|Mlle|Sra?|Dra?|[A-Z])\.$",
    re.I,
)
_GREETING = re.compile(
    r"(?:(?:hi|hello|hey|dear|greetings|good (?:morning|afternoon|evening|day)|thanks|thank you"
    r"|cheers|hallo|guten (?:morgen|tag|abend)|liebe[rs]?|sehr geehrte[rs]?|danke|bonjour|merci"
    r"|hola|gracias)\b|[你您]好|谢谢|こんにちは|ありがとう|안녕|감사)",
    re.I,
)
# "Hi Ana, could you …": the sentence without the greeting is the request.
_SALUTATION = re.compile(rf"{_GREETING.pattern}[^,.!?:;\n]{{0,40}}[,:–—-]\s+", re.I)
_ASKS = re.compile(
    r"\?[\"')]*$|\b(?:please|could you|can you|would you|will you|(?:would|'d) like|needs?|wants?"
    r"|must|should|ha(?:ve|s) to|remind|let me know|help me|make sure|bitte|k(?:ö|oe)nnte(?:st|n)"
    r"|brauche[n]?|por favor|s'il (?:vous|te) pla(?:î|i)t)\b|请|請|ください|お願い|주세요",
    re.I,
)
# A sentence that begins with one of these tells something; others begin with what is to be done.
_TELLS = re.compile(
    r"(?:i|i'm|i've|we|we're|we've|my|our|he|she|they|you|it|it's|there|this|that|these|those|the"
    r"|a|an|as|since|because|yesterday|today|hope|sorry|regards|best|ich|wir|mein|unser|der|die"
    r"|das|es|heute|gestern)\b",
    re.I,
)

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


@frozen
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
    """The first sentence of the text that asks for something, on one line; else the first that is
    not a greeting, else the first.
    """
    sentences = _sentences(text[:_MAX_READ_CHARS])
    whole = [sentence for sentence in sentences if not _GREETING.match(sentence)]
    # A single word, such as `Urgent!`, asks for nothing.
    asking = (
        sentence
        for sentence in sentences
        if _ASKS.search(sentence)
        or not (_GREETING.match(sentence) or _TELLS.match(sentence) or " " not in sentence)
    )
    return cut(next(asking, None) or [*whole, *sentences][0], _MAX_GOAL_CHARS)


def _sentences(text: str) -> list[str]:
    """The sentences, each on one line and without a salutation. A blank line ends a sentence."""
    found: list[str] = []
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        begun = ""
        for part in _SENTENCE_END.split(" ".join(paragraph.split())):
            begun = f"{begun} {part}" if begun else part
            if not _ABBREVIATION.search(begun):
                found.append(begun)
                begun = ""
        if begun:
            found.append(begun)
    shortened = (_without_salutation(sentence) for sentence in found)
    return [sentence for sentence in shortened if sentence]


def _without_salutation(sentence: str) -> str:
    match = _SALUTATION.match(f"{sentence} ")
    if match is None or not sentence[match.end() :]:
        return sentence
    rest = sentence[match.end() :]
    return rest[0].upper() + rest[1:]


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
        f'<task name="{name}"><description>{description}</description>'
        f"<criteria>{criteria}</criteria></task>"
        for name, (description, criteria) in _DESCRIPTIONS.items()
    )
    built = build(read_source(f"<library>{tasks}</library>".encode(), "<types of entries>"))
    return LexicalRanker(
        _Described(name, node) for name, node in zip(_DESCRIPTIONS, built.templates, strict=True)
    )


READER = "read_message"
_IDS = r"(?P<ids>T-\d+(?:(?:\s*,\s*(?:and\s+)?|\s+and\s+)T-\d+)*)"
_SKIP = re.compile(rf"(?:please\s+)?(?:skip|cancel)\s+{_IDS}\s*[.!]?", re.I)
_RETRY = re.compile(
    rf"(?:please\s+)?(?:retry|try\s+again)\s+{_IDS}(?:\s*[,:;]\s*|\s+|$)(?P<guidance>.*)", re.I
)


@frozen
class ControlWord:
    """A word that controls the queue, for one entry."""

    verb: Literal["skip", "retry"]
    id: str
    guidance: str | None = None


def read_controls(words: str) -> list[ControlWord]:
    """The words of a person, one control a line. Raises: UsageError, for any other line."""
    found: list[ControlWord] = []
    for line in filter(None, map(str.strip, words.splitlines())):
        if match := _SKIP.fullmatch(line):
            found += [ControlWord("skip", id_) for id_ in _ids(match)]
        elif match := _RETRY.fullmatch(line):
            guidance = match["guidance"].strip() or None
            found += [ControlWord("retry", id_, guidance) for id_ in _ids(match)]
        else:
            raise UsageError(
                f"{shortened(line)} does not control the queue; write skip T-02, or retry T-03 and "
                "what to do differently. New work is for: evaluator queue add"
            )
    if not found:
        raise UsageError("there are no words; write skip T-02, or retry T-03 and what to change")
    return found


def _ids(match: re.Match[str]) -> list[str]:
    return [found.upper() for found in re.findall(r"T-\d+", match["ids"], re.I)]


@frozen
class ReadEntry:
    """An entry that a model read out of a message. `after`: indexes of entries before it."""

    text: str
    goal: str
    type: EntryType
    priority: int = 0
    not_before: datetime | None = None
    after: Sequence[int] = ()


async def read_message(
    evaluator: Evaluator,
    message: str,
    now: datetime,
    check: Callable[[Outcome], None] | None = None,
) -> list[ReadEntry]:
    """The entries in a message, by the model of the evaluator. `check` gets the outcome first.

    Raises: UsageError, if the model's answer cannot be used; the message is unchanged then.
    """
    inputs = {"message": message, "now": now.isoformat(timespec="seconds")}
    outcome = await evaluator.evaluate(READER, inputs)
    if isinstance(outcome, TaskError):
        raise UsageError(f"the message was not read: {outcome}")
    if check is not None:
        check(outcome)
    answer = cast("Mapping[str, Sequence[Mapping[str, Any]]]", outcome.parsed_data)
    return [_entry(fields, index, now) for index, fields in enumerate(answer["entries"])]


def _entry(fields: Mapping[str, Any], index: int, now: datetime) -> ReadEntry:
    moment: str | None = fields.get("not_before")
    after = [number - 1 for number in fields.get("after", ())]
    if any(number >= index for number in after):
        raise UsageError("the message was not read: an entry is to follow one that comes later")
    return ReadEntry(
        checked_text(fields["text"]),
        checked_text(fields["goal"], "goal"),
        type=type_named(fields["type"]),
        priority=fields.get("priority", 0),
        not_before=None if moment is None else _time(moment, now),
        after=after,
    )


def _time(text: str, now: datetime) -> datetime:
    """The time in the text; without a zone it has that of the present."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(
            f"the message was not read: {shortened(text)} is not a time in ISO 8601"
        ) from None
    if moment.tzinfo is None:
        return moment.replace(tzinfo=now.tzinfo)
    return moment
