"""What matching reads from a request: words that carry content, its parts, kinds of values.

Function words and question words carry no content. They are kept apart, because they distinguish
examples that share all other words. A request that asks for several things has several parts. A
long request is mostly data: there each sentence is read as a request of its own, so that the
instruction is found wherever it stands.

Kinds of values are dates, places, amounts of money, numbers and others: a request that holds a date
fits a template with an input for a date, whatever words it is made in.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from itertools import pairwise
from typing import NamedTuple

from evaluator.lazy_dataclass import frozen
from evaluator.library.words import FUNCTION_WORDS, fold, split_run, stem, words
from evaluator.nodes import Input, Task
from evaluator.patterns import Pattern


class _Kind(NamedTuple):
    """A kind: the words in the names of inputs that take it, and how a text shows it, by a word or
    a pattern.
    """

    inputs: str
    words: str
    pattern: str


_CURRENCIES = "dollars?|euros?|usd|eur|gbp|pounds?|yen|bucks|rupees"
_ENDINGS = "txt|csv|json|pdf|py|xml|docx?|xlsx?|png|jpe?g|mp[34]|zip"
# No pattern reads the rest of a text again for each beginning of a value.
_KINDS = {
    "date": _Kind(
        "date day weekday week month year time hour when start end since until deadline due "
        "checkin checkout",
        "today tomorrow tonight yesterday weekend noon midnight monday tuesday wednesday thursday "
        "friday saturday "
        "sunday january february april june july august september october november december",
        pattern=r"(?=[\dm])\b(?:(?:19|20)\d\d\b|\d{1,2}(?:st|nd|rd|th|:\d\d| ?[ap]\.?m| (?:march"
        r"|may))\b|(?:march|may) \d"
        r"|\d{4}[-./]\d{1,2}\b|\d{1,2}[-/.]\d{1,2}[-/.]\d{2})",
    ),
    "place": _Kind(
        "location city town place address country state province county region area zip venue "
        "where near from to origin destination departure arrival coordinates latitude",
        "",
        pattern=r"\b(?-i:(?:[Ii]n|[Nn]ear|[Aa]t|[Ff]rom|[Tt]o|[Aa]round|of"
        r"|for) (?:the )?[A-Z][a-z])",
    ),
    "amount": _Kind(
        "amount price cost budget salary income principal value payment fee fare balance "
        "investment cash currency",
        "",
        pattern=rf"[$€£¥] ?\d|\d ?(?:{_CURRENCIES})\b",
    ),
    "number": _Kind(
        "number numbers num n count amount value limit x y radius length width height size side "
        "age distance mass quantity",
        "",
        pattern=r"(?=\d)(?<![\w$€£¥/.:-])\d+(?:\.\d+)?(?![\w/:-])",
    ),
    "quotation": _Kind(
        "text query title name message content keyword string input phrase sentence word",
        "",
        pattern=r"[\"“'‘](?<!\w')[^\"“”'‘’]{3,}[\"”'’]",
    ),
    "e-mail address": _Kind(
        "email mail recipient recipients to", "", pattern=r"@(?<=\w@)\w[\w-]*\.\w"
    ),
    "link": _Kind(
        "url link website webpage domain uri site",
        "",
        pattern=r"://|\.(?<=\w\.)(?:com|org|net|io|edu)\b",
    ),
    "file": _Kind(
        "file filename filepath path directory folder document",
        "",
        pattern=rf"[/~](?<![^\s'\"][/~])\w|\.(?<=\w\.)(?:{_ENDINGS})\b",
    ),
}
_PATTERNS = {kind: Pattern(each.pattern, "i") for kind, each in _KINDS.items()}
_WORDS = {kind: frozenset(each.words.split()) for kind, each in _KINDS.items()}
_BY_INPUT = {
    word: [kind for kind, each in _KINDS.items() if word in each.inputs.split()]
    for each in _KINDS.values()
    for word in each.inputs.split()
}


def kinds_in(text: str, words_in: Sequence[str]) -> list[str]:
    """The kinds of values in a text with these words in lower case."""
    return [
        kind
        for kind, pattern in _PATTERNS.items()
        if not _WORDS[kind].isdisjoint(words_in) or pattern.search(text) is not None
    ]


def kinds_taken(declared: Input) -> Iterator[str]:
    """The kinds of values that an input probably takes, by its name and type."""
    if declared.type in ("number", "integer"):
        yield "number"
    for word in words(declared.name):
        yield from _BY_INPUT.get(word, ())


def kind_term(kind: str) -> str:
    """The term of a kind in an index."""
    return f"kind:{kind}"


_QUESTION_WORDS = "what which who whom whose when where why how many much often"
QUESTION_WORDS = frozenset(_QUESTION_WORDS.split())
# Words that requests are put in, whatever they ask for.
_REQUEST_WORDS = """
    tell show know provide suggest able wish hope try going above below following attached given
    something someone anything now today tomorrow right good great sure ok okay
"""
# Words that qualify what is asked for, whatever it is: they distinguish templates less than their
# rarity suggests.
_SLIGHT_WORDS = """
    access additional around available based best better comprehensive complete curious current
    currently detail detailed different discover discovering during easily easy effective efficient
    enhance ensure example examples experience explore extra fast full go helpful high ideal
    important include including information info insight insights interested interesting latest look
    looking main many multiple new newest nice offer online option options overall own particular
    perfect popular possible potential provided providing quick quickly range recent recently
    recommendation recommendations related relevant reliable several similar specific specifically
    stay suggestion suggestions suitable thing things think thinking through together top under
    updated useful various way ways wide within wonder wondering working assist assistance between
    above per good
"""
# How much such a word counts, and a number or a letter, which is a value rather than a word.
_SLIGHT_WEIGHT = 0.65
_VALUE_WEIGHT = 0.5
_CONJUNCTIONS = frozenset({"and", "then", "also", "but", "plus", "or"})
NO_CONTENT = FUNCTION_WORDS | QUESTION_WORDS | _CONJUNCTIONS | frozenset(_REQUEST_WORDS.split())

# Words that refer to the speaker, the hearer, attached data or the present: such a question is not
# one of general knowledge.
_REFERRING_WORDS = """
    i it its me my mine we us our you your he him his she her they them their this that these those
    here now today tonight tomorrow yesterday current currently next nearby nearest
    weather forecast traffic news headlines
"""
_REFERRING = frozenset(_REFERRING_WORDS.split())
# A request begins with such words, whatever it asks for: "could you please", "I would like to".
_OPENERS = """
    please kindly hey hi hello ok okay so and then now can could would will you i we d m ve am
    want need like have to help me us let lets s just go ahead try able also really should may
    might possible
"""
_OPENING_WORDS = frozenset(_OPENERS.split())
# A word after one of these, or before one of those, is a verb in the imperative.
_BEFORE_VERBS = frozenset({"to", "please", "you", "lets", "us", "me"})
_FOLLOWERS = """
    the a an my this that these those all every each our your his her its their me us him it
    them some any both another no up off out down back in on at from
"""
_AFTER_VERBS = frozenset(_FOLLOWERS.split())
# Verbs that say little about what is made.
_SLIGHT_VERBS = """
    write create generate produce draft find list check compute prepare put turn look come go see
    work add build compose show describe suggest recommend provide search determine identify
    calculate analyze make do explain tell think decide choose pick
"""
# Verbs that change something outside of a text: no template does this that does not name it.
_EFFECT_VERBS = """
    delete remove erase wipe discard move copy rename open close save print scan send email mail
    post publish upload download share forward sync backup encrypt compress zip unzip install
    uninstall update upgrade run start stop pause resume restart reboot launch execute deploy
    compile push pull commit merge revert kill mount format monitor connect disconnect pair charge
    lock unlock log block unblock ban grant revoke buy purchase order sell pay refund ship deliver
    return exchange cancel book reserve rent hire apply register enrol enroll subscribe unsubscribe
    schedule reschedule remind call phone text message invite accept decline join leave sign approve
    vote play skip mute record watch sing dance listen photograph draw paint switch set dial
    increase decrease lower raise dim clean wash cook bake pour repair feed water plant walk drive
    fly navigate carry bring pack fetch transfer withdraw deposit borrow lend marry wake empty fill
    flip roll follow unfollow
"""
# How much it counts that a template does not hold the verb of a request: such a verb, another one.
_EFFECT_MISSED = 3.0
_ACTION_MISSED = 1.0
# In a request with more words of content the first verb says less.
_SHORT = 6
# Frequent words of other languages of Latin script that are not English words.
_FOREIGN = """
    der das und ist ein eine einen diesen dieses diese wie ich mir mich nicht mit auf zu für wer wo
    le la les un une des est ce cet cette en et du pour dans je moi que qui avec
    el los las una este esta por para mi del il lo gli che di per questo questa
    os uma eu não meu minha het een dit deze van voor ik mij jag och att det som
"""
_FOREIGN_WORDS = frozenset(_FOREIGN.split())
# The parts of a request end at punctuation and at conjunctions.
_ENDS = ".!?;:,()\n"
_END = rf"[{_ENDS}]+(?=\s|$)"
_TOKEN = Pattern(rf"[^\W\d_]+|\d+|{_END}")
_END_OF_PIECE = Pattern(rf"{_END}|\b(?:{'|'.join(sorted(_CONJUNCTIONS))})\b", "i")
_END_OF_SENTENCE = Pattern(r"[.!?;:]+(?=\s|$)|\n+")
# Only both ends of a request are read: 100 kB take the time of 6 kB.
_HEAD_CHARS = 4000
_TAIL_CHARS = 2000
_MAX_PARTS = 40
_MAX_SENTENCES = 80
_MAX_WORDS = 60
_MAX_NO_CONTENT = 200
_BARE_WORDS = 4
# A question has a question word among so many words at its beginning.
_OPENING = 3
LONG = 25
"""Of a request with more words of content each sentence is read too."""
# How much the words of a node count, by field. The description counts as the text of a request
# does.
_NODE_WEIGHTS = {"name": 0.7, "criteria": 0.6}
_ADDED_WEIGHTS = {"inputs": 0.6, "output": 0.3}


class Word(NamedTuple):
    """A word of content: as written, its stem, and its weight."""

    shown: str
    stem: str
    weight: float = 1.0

    @property
    def form(self) -> str:
        """The term of the written form."""
        return f"={self.shown}"


@frozen
class Reading:
    """A request: its text, its words, and those that carry content, by part of the request.

    `extra` are words that add to a score and are not missed where a template does not hold them.
    `added` are those of a node's inputs and output, which add no more than a share of what the
    others say. `inputs` are the names of a node's inputs, None for a text. `action` is the stem of
    the verb that a request begins with, and how much it counts where a template does not hold it. A
    bare text has several words and all of them carry content: then it may be in another language.
    """

    text: str
    words: tuple[str, ...]
    parts: tuple[tuple[Word, ...], ...]
    is_question: bool = False
    is_general_question: bool = False
    is_bare: bool = False
    action: tuple[str, float] | None = None
    extra: tuple[Word, ...] = ()
    added: tuple[Word, ...] = ()
    inputs: frozenset[str] | None = None

    @property
    def no_content(self) -> set[str]:
        """The terms without content."""
        return set(without_content(self.words[:_MAX_NO_CONTENT]))

    @property
    def kinds(self) -> list[str]:
        """The kinds of values in the text."""
        return kinds_in(self.text, self.words)

    @property
    def pieces(self) -> list[str]:
        """The text, split where a part ends."""
        return [piece for piece in _END_OF_PIECE.split(self.text) if piece.strip()][:_MAX_PARTS]


def read_text(text: str) -> list[Reading]:
    """Returns the reading of a request; if it is long, also a reading of each sentence.

    Their number and length are bounded, however long the request is.
    """
    if len(text) > _HEAD_CHARS + _TAIL_CHARS:
        text = f"{text[:_HEAD_CHARS]}\n{text[-_TAIL_CHARS:]}"
    whole = _read(text)
    if sum(map(len, whole.parts)) <= LONG:
        return [whole]
    sentences = [_read(sentence) for sentence in _END_OF_SENTENCE.split(text)]
    return [whole, *[sentence for sentence in sentences if sentence.parts][:_MAX_SENTENCES]]


def read_node(node: Task, texts: Sequence[tuple[str, str]]) -> Reading:
    """Returns the reading of a node from its texts by field."""
    read = _read(node.description.value[:_HEAD_CHARS])
    extra = _weighted(texts, _NODE_WEIGHTS)
    extra += [
        Word(subtype_term(text), subtype_term(text)) for field, text in texts if field == "subtype"
    ]
    return replace(
        read,
        extra=tuple(extra),
        added=tuple(_weighted(texts, _ADDED_WEIGHTS)),
        inputs=frozenset(input_name(each.name) for each in node.inputs),
    )


def _weighted(texts: Sequence[tuple[str, str]], weights: Mapping[str, float]) -> list[Word]:
    return [
        Word(word.shown, word.stem, weight=weight)
        for field, text in texts
        if (weight := weights.get(field)) is not None
        for word in content(text[:_HEAD_CHARS])
    ]


def _read(text: str) -> Reading:
    every: list[str] = []
    parts: list[tuple[Word, ...]] = []
    part: list[Word] = []
    for token in _TOKEN.findall(fold(text)):
        if token[0] in _ENDS:
            parts.append(tuple(part))
            part = []
            continue
        for word in (token,) if token.islower() else split_run(token):
            every.append(word)
            found = content_word(word)
            if found is not None:
                part.append(found)
            elif word in _CONJUNCTIONS:
                parts.append(tuple(part))
                part = []
    parts.append(tuple(part))
    is_question = not QUESTION_WORDS.isdisjoint(every[:_OPENING])
    return Reading(
        text,
        tuple(every),
        parts=tuple([part[:_MAX_WORDS] for part in parts if part][:_MAX_PARTS]),
        is_question=is_question,
        is_general_question=is_question and _REFERRING.isdisjoint(every),
        is_bare=len(every) >= _BARE_WORDS and NO_CONTENT.isdisjoint(every),
        action=_action(every, sum(map(len, parts))),
    )


def effects() -> frozenset[str]:
    """The stems of verbs that change something outside of a text."""
    return _stems(_EFFECT_VERBS)


@cache
def _stems(text: str) -> frozenset[str]:
    return frozenset(map(stem, text.split()))


def _action(every: Sequence[str], count: int) -> tuple[str, float] | None:
    """The stem of the verb that a request with these words begins with, `count` of them of content,
    and how much it counts where it is missed; None if it begins with no verb.
    """
    begin = next((n for n, word in enumerate(every) if word not in _OPENING_WORDS), len(every))
    if begin == len(every):
        return None
    verb = every[begin]
    stemmed = stem(verb)
    if stemmed in effects():
        weight = _EFFECT_MISSED
    elif verb in NO_CONTENT or stemmed in _stems(_SLIGHT_VERBS):
        return None
    elif not (
        _BEFORE_VERBS.isdisjoint(every[begin - 1 : begin])
        and _AFTER_VERBS.isdisjoint(every[begin + 1 : begin + 2])
    ):
        weight = _ACTION_MISSED
    else:
        return None
    return (stemmed, weight * min(1.0, _SHORT / max(1, count)))


def seems_foreign(text: str) -> bool:
    """Whether a request is probably in another language than English: it has words of one, or
    letters of another script.
    """
    every = words(text[:_HEAD_CHARS])
    letters = [letter for letter in text[:_HEAD_CHARS] if letter.isalpha()]
    if 2 * sum(letter > "\u024f" for letter in letters) > len(letters):
        return True
    foreign = sum(word in _FOREIGN_WORDS for word in every)
    return foreign > sum(word in FUNCTION_WORDS - _FOREIGN_WORDS for word in every)


def content(text: str) -> Iterator[Word]:
    """Yields the words of content of a text, in order."""
    for word in words(text):
        if (found := content_word(word)) is not None:
            yield found


@lru_cache(maxsize=50_000)
def content_word(word: str) -> Word | None:
    """Returns a word with its stem; None if it carries no content."""
    if word in NO_CONTENT:
        return None
    stemmed = stem(word)
    if stemmed in _stems(_SLIGHT_WORDS):
        return Word(word, stemmed, weight=_SLIGHT_WEIGHT)
    return Word(word, stemmed, weight=_VALUE_WEIGHT if len(word) == 1 or word.isdecimal() else 1.0)


def without_content(every: Sequence[str]) -> Iterator[str]:
    """Yields the terms of a text that carry no content: words, and bigrams that hold such a
    word.
    """
    for word in every:
        if word in NO_CONTENT:
            yield word
    for a, b in pairwise(every):
        if a in NO_CONTENT or b in NO_CONTENT:
            yield bigram(stem(a), stem(b))


bigram = "{} {}".format
"""The term of two stems that follow each other."""


def subtype_term(subtype: str) -> str:
    """The term of a subtype, which is compared as a whole."""
    return f"subtype:{subtype.lower()}"


def input_name(name: str) -> str:
    """The name of an input as it is compared: `maxWords` and `max_words` are the same."""
    return " ".join(words(name))
