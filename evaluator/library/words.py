"""The words of a text as matching compares them: split, folded, stemmed, related, similar.

Deterministic. The stemmer serves comparison, not display: it maps the forms of one word
(`summarise`, `Summarizing`, `summary`) to one stem, which need not be a word. The Snowball stemmer
for English maps these three to two stems, and `compare` and `comparison` too; and it is slower.

Related words are those of everyday English with a related meaning: a hint where request and
template share no word. The groups in `related_words.txt`, one a line, were written for this project
from general knowledge, not from the requests of any collection. Similar words differ by one typing
error.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Collection, Iterable, Iterator
from functools import cache, lru_cache
from itertools import pairwise
from pathlib import Path

from evaluator.lazy_dataclass import frozen
from evaluator.patterns import Pattern

_FILE = Path(__file__).with_name("related_words.txt")


@cache
def _by_stem() -> dict[str, frozenset[str]]:
    found: dict[str, frozenset[str]] = {}
    for line in _FILE.read_text(encoding="utf-8").splitlines():
        group = frozenset(map(stem, line.split()))
        for each in group:
            if each in found:
                found[each] = found[each] | group
            else:
                found[each] = group
    return found


def related_stems(stemmed: str) -> frozenset[str]:
    """The stems of the words that are in a group with the word of this stem, which is one of
    them.
    """
    return _by_stem().get(stemmed, frozenset())


# A run of letters, or of digits; underscores and punctuation separate.
_WORD = Pattern(r"[^\W\d_]+|\d+")
# The plural of an acronym (`PDFs`) is one word.
_CAMEL = Pattern(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z](?:[a-rt-z]|s[a-z]))")
_APOSTROPHE = Pattern(r"(?<=[A-Za-z])(?:n['’]t|['’](?:s|re|ve|ll|d|m))\b")
# Scripts written without spaces: compared by pairs of characters.
_UNSPACED = Pattern(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7a3]")

_IRREGULAR_FORMS = {
    "write": "written wrote",
    "rewrite": "rewritten rewrote",
    "judgement": "judgment",
    "find": "found",
    "choose": "chose chosen",
    "speak": "spoken",
    "tell": "told",
    "say": "said",
    "make": "made",
    "give": "given gave",
    "child": "children",
    "person": "people",
    "criterion": "criteria",
    "index": "indices indexes",
    "analysis": "analyses analyse analyze analyzed analysing analyzing analysed",
}
_IRREGULAR = {form: word for word, forms in _IRREGULAR_FORMS.items() for form in forms.split()}

# Words whose ending is not a suffix.
_WHOLE = frozenset(
    {"question", "section", "station", "nation", "million", "version", "opinion", "region"}
)

# Function words in a request. They have a small weight instead of none, because a short question
# may contain no other words.
_FUNCTION_WORDS = """
    a an the this that these those it its i me my mine we us our you your he him his she her they
    them their is are was were be been being am do does did done have has had having will would can
    could should shall may might must and or but if so then than as at by for from in into of off on
    onto out over to up with without about please kindly need want like let lets help just some any
    all each both either neither other another such same own one more most less few only even too
    again ever never always still yet already else because since while until although though whether
    very really also there here not no get give make take use using thanks thank hi hello hey
"""
FUNCTION_WORDS = frozenset(_FUNCTION_WORDS.split())


_FUNCTION_WORD_FACTOR = 0.12
# A word so far from the beginning counts half.
_HALF_LIFE = 24
# Only both ends of a request are read: 100 kB take the time of 5 kB.
_HEAD_CHARS = 4000
_TAIL_CHARS = 800
_MAX_TERMS = 200


@frozen
class QueryTerm:
    """A word of a request: as written, its stem, and its weight before rarity counts."""

    shown: str
    stem: str
    weight: float


def query_terms(request: str) -> list[QueryTerm]:
    """Returns the terms of a request, a bounded number however long it is."""
    if len(request) > _HEAD_CHARS + _TAIL_CHARS:
        request = f"{request[:_HEAD_CHARS]} {request[-_TAIL_CHARS:]}"
    return merge_terms(with_positions(request))


def with_positions(text: str, share: float = 1.0) -> Iterator[tuple[str, float]]:
    """Yields the words of `text` with their weights: `share` at the beginning, less the further
    behind.
    """
    for position, word in enumerate(words(text[: _HEAD_CHARS + _TAIL_CHARS + 1])):
        yield word, share / (1.0 + position / _HALF_LIFE)


def merge_terms(pairs: Iterable[tuple[str, float]]) -> list[QueryTerm]:
    """Returns one term for each stem, with the largest of its weights; a repeated word adds
    nothing.

    A word with a colon is a tag and is not stemmed.
    """
    terms: dict[str, QueryTerm] = {}
    for word, weight in pairs:
        key = word if ":" in word else stem(word)
        if word in FUNCTION_WORDS:
            weight *= _FUNCTION_WORD_FACTOR
        seen = terms.get(key)
        if seen is None and len(terms) >= _MAX_TERMS:
            break
        if seen is None or weight > seen.weight:
            terms[key] = QueryTerm(word if seen is None else seen.shown, key, weight=weight)
    return list(terms.values())


def idf(documents: int, size: int) -> float:
    """The weight of a word that so many of `size` documents hold (BM25)."""
    return math.log(1 + (size - documents + 0.5) / (documents + 0.5))


def words(text: str) -> list[str]:
    """Returns the words of `text` in order: identifiers split at underscores and capitals, lower
    case, no accents.
    """
    found: list[str] = []
    for run in _WORD.findall(fold(text)):
        found += (run,) if run.islower() else split_run(run)
    return found


def fold(text: str) -> str:
    """Returns `text` without accents and without the endings that follow an apostrophe."""
    if not text.isascii():
        folded = unicodedata.normalize("NFKD", text)
        text = "".join(c for c in folded if not unicodedata.combining(c))
        text = unicodedata.normalize("NFKC", text)
    if "'" in text or "’" in text:
        return _APOSTROPHE.sub("", text)
    return text


@lru_cache(maxsize=50_000)
def split_run(run: str) -> tuple[str, ...]:
    """Returns the words of a run of letters or digits."""
    if not run.isascii() and _UNSPACED.search(run):
        run = run.lower()
        if len(run) > 1:
            return tuple(a + b for a, b in pairwise(run))
        return (run,)
    return tuple(part.lower() for part in _CAMEL.split(run))


def stems(text: str) -> list[str]:
    """Returns the stems of the words of `text`, in order."""
    return [stem(word) for word in words(text)]


@lru_cache(maxsize=50_000)
def stem(word: str) -> str:
    """Returns the stem of a lower-case English word; other words change little or not at all."""
    word = _IRREGULAR.get(word, word)
    if len(word) <= 3 or not word.isascii() or word in FUNCTION_WORDS:
        return word
    word = _strip_plural(word)
    if word in _WHOLE:
        return word
    word = _strip_derived(_strip_inflection(word))
    if word.endswith(("e", "y")) and len(word) > 3:
        word = word[:-1]
    if word.endswith("iz") and len(word) >= 6:
        word = word[:-2]
    if word.endswith("at") and len(word) >= 6:
        word = word[:-2]
    return word


def _strip_plural(word: str) -> str:
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    if word.endswith(("sses", "ches", "shes", "xes", "zes")):
        return word[:-2]
    if word.endswith("s") and not word.endswith(("ss", "us", "is")):
        return word[:-1]
    return word


def _strip_inflection(word: str) -> str:
    if word.endswith(("ied", "ier")) and len(word) > 4:
        return word[:-3] + "y"
    for ending in ("ing", "ed"):
        base = word[: -len(ending)]
        if word.endswith(ending) and len(base) >= 3 and any(v in base for v in "aeiouy"):
            if base[-1] == base[-2] and base[-1] not in "lsz":
                return base[:-1]
            return base
    return word


# Longest first, each with what takes its place. What is left must keep four letters, five before
# `ment`.
_DERIVED = """
    ization>iz isation>iz ification>if izer>iz iser>iz ition> ation>at ison> ness> able> ible> ion>
    ive> ise>iz ize>iz ity> al> ly> er> or> is>iz
"""
_ENDINGS = [pair.split(">") for pair in _DERIVED.split()]


def _strip_derived(word: str) -> str:
    for ending, replacement in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= 4:
            return word[: -len(ending)] + replacement
    if word.endswith("ment") and len(word) >= 9:
        return word[:-4]
    return word


def deletions(word: str) -> set[str]:
    """Returns `word` itself and each word with one of its letters left out."""
    return {word, *(word[:i] + word[i + 1 :] for i in range(len(word)))}


def is_one_slip(a: str, b: str) -> bool:
    """Returns whether one letter added, left out or changed, or two neighbours swapped, turns `a`
    into `b`.
    """
    start = 0
    while start < min(len(a), len(b)) and a[start] == b[start]:
        start += 1
    end = 0
    while end < min(len(a), len(b)) - start and a[-1 - end] == b[-1 - end]:
        end += 1
    rest_a = a[start : len(a) - end]
    rest_b = b[start : len(b) - end]
    if len(rest_a) == len(rest_b) == 2:
        return rest_a == rest_b[::-1]
    return max(len(rest_a), len(rest_b)) == 1


# Shorter words are one typing error away from too many others.
_MIN_CHARS = 6
_MAX_CHARS = 40


class SimilarWords:
    """Similar words among `vocabulary`. The table is built at the first unknown word."""

    def __init__(self, vocabulary: Collection[str]) -> None:
        self._vocabulary = sorted(word for word in vocabulary if _is_long(word))
        self._slips: dict[str, list[str]] | None = None

    def find(self, word: str) -> str | None:
        """The word of the vocabulary that was probably meant."""
        if not _is_long(word):
            return None
        if self._slips is None:
            slips: dict[str, list[str]] = {}
            for known in self._vocabulary:
                for key in deletions(known):
                    slips.setdefault(key, []).append(known)
            self._slips = slips  # whole at once: other threads may be reading
        near = {known for key in deletions(word) for known in self._slips.get(key, ())}
        return min(
            (known for known in near if known[0] == word[0] and is_one_slip(word, known)),
            default=None,
        )


def _is_long(word: str) -> bool:
    return _MIN_CHARS <= len(word) <= _MAX_CHARS and word.isalpha()
