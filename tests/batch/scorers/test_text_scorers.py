"""Texts: exact, includes, regex, F1, ROUGE-L and similarity, at their edges."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator import UsageError
from evaluator.batch import Score
from evaluator.batch.scorers import make_scorer, run_scorer
from evaluator.batch.scorers.text_scorers import token_f1
from evaluator.patterns import MAX_EXPANDED, expanded_size
from tests.batch.scorers.scorer_inputs import score, seen
from tests.tables import each_case

EXACT = [
    ("exact", "Paris", "Paris", True),
    ("exact", " Paris\n", "Paris", True),
    ("exact", "paris", "Paris", False),
    ("exact", "Caf\u00e9", "Cafe\u0301", True),
    ("exact", "", "", True),
    ("exact", "", "x", False),
    ("exact", "B", ["A", "B"], True),
    ("exact", "C", ["A", "B"], False),
    ("exact", "42", 42, True),
    ("exact", "true", True, True),
    ("exact", "1", True, False),
    ("exact", "\ud800", "\ud800", True),
    ("exact", "x" * 1_000_000, "x" * 1_000_000, True),
    ("exact:ignore_case=true", "STRASSE", "Straße", True),
    ("exact:ignore_case=true", "İstanbul", "i\u0307stanbul", True),
    ("exact:ignore_punctuation=true", "«Paris», France!", "Paris France", True),
    ("exact:ignore_punctuation=true", "a $5 - bill", "a 5 bill", True),
    ("exact:ignore_whitespace=true", "New\u00a0York\tCity", "NewYorkCity", True),
    ("exact:ignore_punctuation=true", "?!", "", True),
]
INCLUDES = [
    ("includes", "It is Paris.", "Paris", True),
    ("includes", "It is Rome.", "Paris", False),
    ("includes", "It is Rome.", ["Paris", "Rome"], True),
    ("includes:match=all", "Paris and Rome", ["Paris", "Rome"], True),
    ("includes:match=all", "Rome", ["Paris", "Rome"], False),
    ("includes:ignore_case=true", "PARIS", "paris", True),
    ("includes", "18", "8", True),
    ("includes:whole_words=true", "18", "8", False),
    ("includes:whole_words=true", "an 8.", "8", True),
    ("includes:whole_words=true", "C++ it is", "C++", True),
    ("includes", "a.c", "a.c", True),
    ("includes:whole_words=true", "abc", "a.c", False),
    ("includes", "{{ target }}", "{{ target }}", True),
]
REGEX = [
    (r"regex", "193 km", r"\d+ km", True),
    (r"regex", "193 mi", [r"\d+ km", r"\d+ mi"], True),
    (r"regex:pattern=\d{1,3} km", "193 km", None, True),
    (r"regex:pattern=KM,ignore_case=true", "193 km", None, True),
    (r"regex:pattern=\d+,full=true", " 193 ", None, True),
    (r"regex:pattern=\d+,full=true", "193 km", None, False),
    (r"regex:pattern=answer: (\w+),group=1", "answer: Rome", "Rome", True),
    (r"regex:pattern=answer: (?P<a>\w+),group=a", "answer: Rome", ["Paris", "Rome"], True),
    (r"regex:pattern=answer: (\w+),group=1", "answer: Rome", "Paris", False),
    (r"regex:pattern=(a)|(b),group=2", "a", "b", False),
    (r"regex:pattern=\p{Lu}", "é", None, False),
]


@each_case(("spec", "text", "target", "passed"), EXACT + INCLUDES + REGEX)
def test_texts_pass_or_fail(spec: str, text: str, target: object, passed: bool) -> None:
    given = score(spec, text, target)
    assert given.error is None
    assert (given.value, given.passed) == (float(passed), passed)
    assert bool(given.explanation) is not passed


@pytest.mark.parametrize(
    ("spec", "text", "target", "said"),
    [
        ("exact", "x", {"a": 1}, "json_equal"),
        ("exact", "x", [["a"]], "expected text"),
        ("includes", "x", "", "is empty"),
        ("includes:ignore_punctuation=true", "x", "?!", "is empty"),
        ("regex", "x", "(", "is invalid"),
        ("regex", "x", "a" * 1_001, "the limit is 1000"),
        ("regex", "x", "((((a{100}){100}){100}){100}){100}", "written out"),
        ("regex", "x", r"(?:(?:[^]a]{0,200}|\)){200})", "written out"),
        ("regex", "a" * 60 + "b", "(?:a|a)*$", "took more than 1 s"),
        ("exact:of=parsed.answer", "x", "x", "parsed"),
    ],
)
def test_a_target_or_text_of_the_wrong_type_is_an_error(
    spec: str, text: str, target: object, said: str
) -> None:
    given = score(spec, text, target)
    assert (given.value, given.passed) == (None, None)
    assert given.error is not None and said in given.error


def test_the_event_loop_runs_while_a_slow_pattern_is_stopped() -> None:
    async def both() -> tuple[Score, int]:
        slow = asyncio.ensure_future(
            run_scorer(make_scorer("regex"), seen("a" * 60 + "b", "(?:a|a)*$"))
        )
        turns = 0
        while not slow.done():
            await asyncio.sleep(0)
            turns += 1
        return slow.result(), turns

    given, turns = asyncio.run(both())
    assert given.error and turns > 50


@pytest.mark.parametrize(
    ("pattern", "size"),
    [
        ("abc", 3),
        (r"\d{3}", 3),
        ("(ab){10}", 30),
        ("[{}]{5}", 5),
        (r"\{9999\}", 6),
        ("((a{10}){10}){10}", 1_110),
        ("a{,7}", 7),
    ],
)
def test_a_pattern_is_measured_with_its_repeats_expanded(pattern: str, size: int) -> None:
    assert size <= expanded_size(pattern) <= max(size + 1, size * 1.2)
    assert expanded_size("(" * 20 + "a" + "{10})" * 20) > MAX_EXPANDED


@pytest.mark.parametrize(
    ("spec", "parsed", "content", "target"),
    [
        ("exact", "Paris", '"Paris"', "Paris"),
        ("exact:of=parsed.answer", {"answer": "Paris"}, "{…}", "Paris"),
        ("exact:of=parsed.items[1]", {"items": [1, 2.5]}, "{…}", 2.5),
        ('exact:of="output | lower"', None, "PARIS", "paris"),
        ("includes:of=metadata.note", None, "", "Paris"),
        ("exact", {"a": 1}, "Paris", "Paris"),
    ],
)
def test_of_selects_what_is_scored(spec: str, parsed: object, content: str, target: object) -> None:
    assert (
        score(spec, content, target, parsed=parsed, metadata={"note": "it is Paris"}).passed is True
    )


@given(st.text(max_size=60))
def test_every_text_is_exactly_itself_and_includes_itself(text: str) -> None:
    for options in ("", ":ignore_case=true", ":ignore_punctuation=true,ignore_whitespace=true"):
        assert score(f"exact{options}", text, text).passed is True
    if text.strip():
        assert score("includes", f"«{text}»", text).passed is True


@pytest.mark.parametrize(
    ("expected", "found", "value"),
    [
        ("the cat sat on the mat", "a cat sat on a mat", 1.0),
        ("Paris", "The capital is Paris", 0.5),
        ("Paris", "Rome", 0.0),
        ("", "", 1.0),
        ("the", "a", 1.0),
        ("Paris", "", 0.0),
        ("a b c d", "b c", 0.8),  # "a" is an article: 2 of 3 and 2 of 2
        ("“Łódź”", "łódź", 1.0),
        ("x x y", "x y y", 2 / 3),
    ],
)
def test_f1_equals_squads(expected: str, found: str, value: float) -> None:
    assert token_f1(expected, found) == pytest.approx(value)
    given = score("f1", found, expected)
    assert given.value == pytest.approx(value) and given.passed is (given.value >= 0.5)


@given(
    st.lists(st.sampled_from(["cat", "dog", "sat", "mat"]), min_size=1),
    st.lists(st.sampled_from(["cat", "dog", "sat", "mat"]), min_size=1),
)
def test_f1_is_the_harmonic_mean_and_symmetric(a: list[str], b: list[str]) -> None:
    common = sum((Counter(a) & Counter(b)).values())
    precision, recall = common / len(b), common / len(a)
    expected = 2 * precision * recall / (precision + recall) if common else 0.0
    assert token_f1(" ".join(a), " ".join(b)) == pytest.approx(expected)
    assert token_f1(" ".join(b), " ".join(a)) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("spec", "found", "target", "value"),
    [
        # Lin 2004, section 3: of S2 three words in order, of S3 two.
        ("rouge_l", "police kill the gunman", "police killed the gunman", 0.75),
        ("rouge_l", "the gunman kill police", "police killed the gunman", 0.5),
        ("rouge_l", "", "police", 0.0),
        ("rouge_l", "x", ["y", "x"], 1.0),
        ("rouge_l:stem=true", "police killing the gunman", "police killed the gunman", 1.0),
        ("rouge_l:tokenizer=unicode", "いぬ ねこ", "いぬ ねこ", 1.0),
    ],
)
def test_rouge_l_equals_the_published_one(
    spec: str, found: str, target: object, value: float
) -> None:
    given = score(spec, found, target)
    assert given.error is None
    assert given.value == pytest.approx(value)


def test_rouge_l_of_an_unsupported_language_is_an_error() -> None:
    error = score("rouge_l", "いぬ", "いぬ").error
    assert error and "tokenizer='unicode'" in error


@pytest.mark.parametrize(
    "spec", ["rouge_l:stem=true,tokenizer=unicode", "rouge_l:tokenizer=unicode,stem=true"]
)
def test_rouge_l_refuses_stems_without_the_ascii_tokenizer(spec: str) -> None:
    assert score("rouge_l:stem=true", "cats running", "cat run").value == 1.0
    with pytest.raises(
        UsageError, match=r"stem needs the tokenizer ascii.*leave out stem or tokenizer"
    ):
        make_scorer(spec)
    assert score("rouge_l:stem=false,tokenizer=unicode", "cat run", "cat run").value == 1.0


def test_rouge_l_of_long_texts() -> None:
    text = "a quick brown fox " * 5_000
    assert score("rouge_l", text, text).value == 1.0


class Letters:
    """Counts letters: texts with the same letters are alike."""

    name = "letters"

    async def embed(self, texts: list[str]) -> list[list[float]]:
        return [[float(text.count(letter)) for letter in "abc"] for text in texts]


@pytest.mark.parametrize(
    ("text", "target", "value"),
    [("abc", "cab", 1.0), ("a", "b", 0.0), ("ab", ["c", "a"], 0.5**0.5), (" ", "a", 0.0)],
)
def test_similarity_is_the_cosine(text: str, target: object, value: float) -> None:
    given = score({"type": "similarity", "embedder": Letters(), "pass_at": 0.7}, text, target)
    assert given.value == pytest.approx(value, abs=1e-6)
    assert given.passed is (value > 0.7)


@pytest.mark.parametrize("vectors", [[], [[1.0]], [[1.0], [1.0, 2.0]], [[float("nan")], [1.0]]])
def test_an_embedder_with_inconsistent_vectors_is_an_error(vectors: list[list[float]]) -> None:
    class Broken:
        name = "broken"

        async def embed(self, texts: list[str]) -> list[list[float]]:
            return vectors

    given = score({"type": "similarity", "embedder": Broken(), "pass_at": 0.5}, "a", "b")
    assert given.error and "broken" in given.error


def test_similarity_needs_one_embedder_and_a_threshold() -> None:
    for arguments, said in (
        ({"model": "m"}, "pass_at"),
        ({"pass_at": 0.5}, "needs a model, as in model=openai/text-embedding-3-small$"),
        ({"pass_at": 0.5, "model": "m", "embedder": Letters()}, "not both"),
        ({"pass_at": 0.5, "embedder": "m"}, "expected one with name"),
    ):
        with pytest.raises(UsageError, match=said):
            make_scorer({"type": "similarity", **arguments})
    described = make_scorer(
        {"type": "similarity", "embedder": Letters(), "pass_at": 0.5}
    ).describe()
    assert described["embedder"] == "letters"
