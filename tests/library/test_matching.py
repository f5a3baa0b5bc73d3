"""Requests find the templates that fit them, and say so when none does."""

from __future__ import annotations

import json
import random
import string
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluator import Match, Span, TemplateLibrary
from evaluator.library import search
from evaluator.library.matching import LOW_SCORE, LexicalRanker
from evaluator.nodes import (
    Atomic,
    Example,
    Function,
    Input,
    OutputFormat,
    Script,
    Sequential,
    Task,
    Text,
)


@dataclass(frozen=True)
class Template:
    name: str
    node: Task | Function


def text(value: str) -> Text:
    return Text(value, Span())


def declared(name: str, description: str = "") -> Input:
    return Input(name, "string", True, None, None, None, description, Span())


def atomic(name: str, description: str, **fields: object) -> Template:
    return Template(name, Atomic(name=name, description=text(description), **fields))  # type: ignore[arg-type]


LIBRARY = (
    atomic(
        "summarise",
        "Summarise a document in a few sentences",
        inputs=(declared("document", "The text"),),
    ),
    atomic(
        "translate",
        "Translate a text into another language",
        inputs=(declared("text", "What to translate"),),
    ),
    atomic("getInvoiceTotal", "Read an amount"),
    atomic("classify", "Assign a category", criteria=text("spam, ham, label")),
    atomic("judge_play", "Judge a draft", subtype="evaluator"),
    atomic("improve_play", "Judge a draft", subtype="director"),
)


def names(matches: list[Match]) -> list[str]:
    return [match.template.name for match in matches]


def best(request: str | Task, *extra: Template) -> str | None:
    found = LexicalRanker([*LIBRARY, *extra]).rank(request)
    return found[0].template.name if found else None


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        ("summarise this document", "summarise"),
        ("SUMMARIZING documents", "summarise"),
        ("a summary, please", "summarise"),
        ("translation of a letter", "translate"),
        ("tranlsate my letter", "translate"),
        ("invoice total", "getInvoiceTotal"),
        ("get_invoice_total", "getInvoiceTotal"),
        ("is it spam?", "classify"),
    ],
)
def test_a_request_finds_its_template_by_other_forms_of_its_words(
    request_: str, expected: str
) -> None:
    assert best(request_) == expected


@pytest.mark.parametrize(
    ("extra", "request_"),
    [
        (atomic("a1", "Does something", inputs=(declared("blood_pressure"),)), "blood pressure"),
        (atomic("a2", "Does something", inputs=(declared("x", "the tide at noon"),)), "tide"),
        (atomic("a3", "Does something", criteria=text("haiku, sonnet")), "sonnets"),
        (
            atomic("a4", "Does something", examples=(Example({"x": "gravel"}, "pebble", Span()),)),
            "gravel or pebbles",
        ),
        (
            atomic(
                "a5",
                "Does something",
                output=OutputFormat(
                    "json", json.dumps({"properties": {"latitude": {"type": "number"}}}), Span()
                ),
            ),
            "latitude",
        ),
    ],
)
def test_inputs_criteria_examples_and_output_count(extra: Template, request_: str) -> None:
    assert best(request_, extra) == extra.name


def test_only_atomic_tasks_take_part() -> None:
    step = Atomic(description=text("Bake bread"))
    others = [
        Template("sequence", Sequential(description=text("Bake bread"), steps=(step,))),
        Template("script", Script(description=text("Bake bread"), command=(text("true"),))),
        Template("function", Function("function", (), None, step, "Bake bread", Span())),
    ]
    assert LexicalRanker(others).rank("bake bread") == []
    assert names(LexicalRanker([*others, Template("one", step)]).rank("bake bread")) == ["one"]


def test_a_request_that_fits_nothing_scores_low_everywhere() -> None:
    ranker = LexicalRanker(LIBRARY)
    for request in (
        "order two pizzas with mushrooms",
        "zzz qqq",
        "turn the lights off in the kitchen",
        "",
        "the",
    ):
        assert all(match.score < LOW_SCORE for match in ranker.rank(request)), request
    assert ranker.rank("summarise this document")[0].score > 2 * LOW_SCORE


def test_a_fit_stays_a_fit_when_the_request_carries_its_data() -> None:
    data = " ".join(
        "".join(random.Random(n).choices(string.ascii_lowercase, k=7)) for n in range(15_000)
    )
    request = f"Summarise this document: {data}"
    assert len(request) > 100_000
    found = LexicalRanker(LIBRARY).rank(request)
    assert found[0].template.name == "summarise"
    assert found[0].score > LOW_SCORE


def test_equal_scores_are_ordered_by_name_whatever_the_order_of_loading() -> None:
    twins = [atomic(name, "Paint a fence") for name in ("b", "c", "a")]
    for order in (twins, twins[::-1]):
        assert names(LexicalRanker(order).rank("paint a fence")) == ["a", "b", "c"]


def test_the_reasons_name_the_words_and_fields_that_counted() -> None:
    match = LexicalRanker(LIBRARY).rank("label this as spam, thanks")[0]
    assert {(reason.term, reason.field) for reason in match.why} >= {
        ("label", "criteria"),
        ("spam", "criteria"),
    }
    assert sum(reason.weight for reason in match.why) == pytest.approx(match.score, abs=0.01)
    assert list(match.why) == sorted(match.why, key=lambda reason: -reason.weight)


def test_a_variable_in_a_description_is_not_matched_by_its_name() -> None:
    assert best("zebra", atomic("z", "Write about {{ zebra }}")) is None


def test_a_node_is_matched_by_what_it_declares() -> None:
    """The words decide, and between templates that they fit equally the inputs."""
    extra = [
        atomic(f"bake_{what}", "Bake a loaf", inputs=(declared(what), declared(f"{what} weight")))
        for what in ("rye", "spelt", "wheat")
    ]
    for wanted in extra:
        assert isinstance(wanted.node, Task)
        node = Atomic(description=text("bake me a loaf please"), inputs=wanted.node.inputs)
        assert best(node, *extra) == wanted.name


@pytest.mark.parametrize(
    ("description", "inputs"),
    [
        ("Order a pizza with these toppings", ["text"]),
        ("Frobnicate the zork", ["text"]),
        ("Frobnicate the zork", ["mortgage", "collateral", "amortisation"]),
    ],
)
def test_inputs_never_carry_a_match_alone(description: str, inputs: list[str]) -> None:
    loan = atomic(
        "assess_loan",
        "Assess a loan",
        inputs=tuple(map(declared, ["mortgage", "collateral", "amortisation"])),
    )
    ranker = LexicalRanker([*LIBRARY, loan])
    declared_inputs = tuple(map(declared, inputs))
    found = ranker.rank(Atomic(description=text(description), inputs=declared_inputs))
    assert all(match.score < LOW_SCORE for match in found)
    fitting = ranker.rank(Atomic(description=text("Assess this loan"), inputs=loan.node.inputs))
    assert fitting[0].template.name == "assess_loan"
    assert fitting[0].score > ranker.rank("Assess this loan")[0].score >= LOW_SCORE


def test_a_usual_input_name_does_not_change_the_best_template() -> None:
    ranker = LexicalRanker(LIBRARY)
    for words, expected in (("summarise this report", "summarise"), ("judge my draft", None)):
        plain = ranker.rank(words)[0]
        node = ranker.rank(Atomic(description=text(words), inputs=(declared("text"),)))[0]
        assert node.template.name == plain.template.name
        assert expected in (None, node.template.name)


def test_the_verb_of_a_command_counts_where_no_field_knows_it() -> None:
    files = atomic("answer_from_files", "Answer a question from the files of a directory")
    cleaning = atomic("remove_rows", "Remove the duplicate rows of a table")
    ranker = LexicalRanker([*LIBRARY, files, cleaning])
    asked, told = (
        ranker.rank(words)[0].score
        for words in ("what do the files in my directory say", "delete the files in my directory")
    )
    assert told < LOW_SCORE <= asked
    # A related verb of the same kind is enough, and so is the verb of the template.
    for words in ("delete the duplicate rows", "remove the duplicate rows"):
        assert ranker.rank(words)[0].template.name == "remove_rows"
        assert ranker.rank(words)[0].score >= LOW_SCORE


def test_a_node_with_a_subtype_prefers_templates_of_that_subtype() -> None:
    for subtype, expected in (("evaluator", "judge_play"), ("director", "improve_play")):
        assert best(Atomic(description=text("Judge a draft"), subtype=subtype)) == expected


def test_a_node_that_is_not_atomic_matches_nothing() -> None:
    step = Atomic(description=text("Summarise a document"))
    assert best(step) == "summarise"
    assert best(Sequential(description=text("Summarise a document"), steps=(step,))) is None


def test_there_are_five_candidates_at_most() -> None:
    same = [atomic(f"brew{number}", "Brew a cup of tea") for number in range(8)]
    assert len(LexicalRanker(same).rank("brew a cup of tea")) == 5
    assert len(LexicalRanker(same[:3]).rank("brew a cup of tea")) == 3


def test_limit_bounds_the_matches_and_an_empty_library_has_none() -> None:
    ranker = LexicalRanker(LIBRARY)
    assert len(ranker.rank("judge a draft", 1)) == 1
    assert ranker.rank("judge a draft", 0) == []
    assert LexicalRanker([]).rank("anything") == []


def test_a_broken_or_endless_inline_schema_does_no_harm() -> None:
    schemas = ('{"properties": ', '{"a":' * 5000, '{"properties": []}', "{}")
    for number, schema in enumerate(schemas):
        odd = atomic(f"odd{number}", "Brew a tea", output=OutputFormat("json", schema, Span()))
        assert best("brew tea", odd) == odd.name


@settings(max_examples=60, deadline=None)
@given(
    st.text(max_size=200)
    | st.lists(st.sampled_from(["summarise", "translate", "text", "a", "what", "7", "é"])).map(
        " ".join
    )
)
def test_any_text_gives_ordered_scores_between_0_and_1_and_the_same_again(request_: str) -> None:
    ranker = LexicalRanker(LIBRARY)
    found = ranker.rank(request_)
    scores = [match.score for match in found]
    assert scores == sorted(scores, reverse=True)
    assert all(0 < score <= 1 for score in scores)
    assert found == LexicalRanker(reversed(LIBRARY)).rank(request_)


def test_a_better_covered_request_scores_higher_across_requests() -> None:
    ranker = LexicalRanker(LIBRARY)
    whole = ranker.rank("translate a text into another language")[0].score
    half = ranker.rank("translate the opera")[0].score
    quarter = ranker.rank("hang the translated opera poster backstage")[0].score
    assert whole > half > LOW_SCORE > quarter > 0


def test_a_request_for_several_things_finds_a_template_for_each() -> None:
    assert set(names(LexicalRanker(LIBRARY).rank("translate the letter, then classify it", 2))) == {
        "translate",
        "classify",
    }


def test_a_match_names_the_words_that_the_template_does_not_hold() -> None:
    match = LexicalRanker(LIBRARY).rank("please translate the libretto of an opera")[0]
    assert match.missed == ("libretto", "opera")


def test_unknown_words_count_in_full() -> None:
    scores = [
        LexicalRanker(LIBRARY).rank("translate" + more)[0].score
        for more in ("", " zebras", " zebras gallop northwards")
    ]
    assert scores == sorted(scores, reverse=True)
    assert scores[0] > 2 * scores[2]


def test_a_long_text_is_no_stronger_evidence_than_a_short_one_with_the_same_share() -> None:
    held = [f"held{chr(97 + i // 26)}{chr(97 + i % 26)}" for i in range(60)]
    templates = [*LIBRARY, atomic("wide", " ".join(held))]

    def score(count: int) -> float:
        unheld = [f"unheld{chr(97 + i // 26)}{chr(97 + i % 26)}" for i in range(5 * count)]
        return LexicalRanker(templates).rank(" ".join(["the", *held[:count], *unheld]))[0].score

    assert score(9) - score(5) < 0.05


def test_skipping_the_postings_of_common_words_changes_no_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = random.Random(7)
    vocabulary = [f"word{chr(97 + i // 26)}{chr(97 + i % 26)}" for i in range(50)]
    many = [atomic(f"t{i}", " ".join(rng.sample(vocabulary, 8))) for i in range(700)]
    requests = [" ".join(rng.sample(vocabulary, 8)) for _ in range(30)]
    fast = LexicalRanker(many)
    found = [fast.rank(request) for request in requests]
    monkeypatch.setattr(search, "_LOOKED_UP", 10**9)
    assert found == [fast.rank(request) for request in requests]


def test_common_words_only_reorder_what_rare_words_found_in_a_large_library() -> None:
    rng = random.Random(7)
    common = [f"common{chr(97 + i)}" for i in range(8)]

    def described(number: int) -> str:
        held = (
            common
            if number in (5, 31)
            else [*rng.sample(common, 3), *(f"other{n}" for n in range(5))]
        )
        return " ".join([f"rare{chr(97 + number % 26)}", *held])

    ranker = LexicalRanker([atomic(f"t{number:04}", described(number)) for number in range(3000)])
    assert names(ranker.rank(" ".join(["raref", *common]), 2)) == ["t0005", "t0031"]


@pytest.mark.parametrize("request_", ["which film has the best actors", "a cinema for tonight"])
def test_a_related_word_finds_a_template_weakly(request_: str) -> None:
    movies = atomic("movies", "Look up a movie")
    found = LexicalRanker([*LIBRARY, movies]).rank(request_)[0]
    assert found.template.name == "movies"
    assert {reason.term[0] for reason in found.why} == {"~"}
    assert (
        found.score
        < LexicalRanker([*LIBRARY, movies])
        .rank(request_.replace("film", "movie") + " movie")[0]
        .score
    )


def test_the_same_form_of_a_word_counts_more_than_another_form() -> None:
    ranker = LexicalRanker([atomic("a", "A player status"), atomic("b", "A play status")])
    assert names(ranker.rank("play")) == ["b", "a"]
    assert names(ranker.rank("player")) == ["a", "b"]


def test_a_question_of_general_knowledge_needs_more_evidence() -> None:
    ranker = LexicalRanker([*LIBRARY, atomic("stock", "Price of a share")])
    assert (
        ranker.rank("what is the price of gold")[0].score
        < ranker.rank("the price of gold")[0].score
    )


def test_a_question_that_no_template_takes_needs_more_evidence() -> None:
    def scores(*extra: Template) -> list[float]:
        ranker = LexicalRanker([*LIBRARY, *extra])
        return [
            ranker.rank(request)[0].score
            for request in ("how do i mend my kettle", "mend my kettle")
        ]

    asked, told = scores(atomic("mend", "Mend a kettle"))
    assert asked < told
    asked, told = scores(atomic("mend", "Mend a kettle", criteria=text("how")))
    assert asked >= told


def test_a_tiny_library_gives_no_confidence() -> None:
    tiny, small = (
        LexicalRanker(
            [atomic("mend", "Mend a kettle"), *(atomic(f"t{n}", f"Word{n}") for n in range(count))]
        )
        for count in (5, 98)
    )
    request = "mend the old blue chair"
    assert abs(tiny.rank(request)[0].score - small.rank(request)[0].score) < 0.05


def test_one_word_of_a_phrase_is_not_the_phrase() -> None:
    phrase = [
        match.score
        for match in LexicalRanker([atomic("p", "Plan", criteria=text("next steps"))]).rank(
            "next day"
        )
    ]
    word = [
        match.score
        for match in LexicalRanker([atomic("p", "Plan", criteria=text("next, steps"))]).rank(
            "next day"
        )
    ]
    assert phrase < word


def test_few_examples_count_less_than_many() -> None:
    def score(count: int) -> float:
        shown = tuple(
            Example({"request": "the kettle is broken"}, "", Span()) for _ in range(count)
        )
        templates = [
            atomic("a", "Repair", examples=shown),
            atomic("b", "Paint", examples=shown[:1]),
        ]
        return LexicalRanker(templates).rank("kettle")[0].score

    assert score(1) < score(10)


def test_words_that_another_language_shares_are_accidents() -> None:
    quiz = atomic("quiz", "Answer a question from a document")
    french = LexicalRanker([quiz]).rank("quelle est question posée dans document")[0].score
    english = (
        LexicalRanker([quiz]).rank("what is the strangest question posed in our document")[0].score
    )
    assert french < english / 2


def test_the_plural_of_an_acronym_is_one_word() -> None:
    assert (
        best(
            "merge PDFs", atomic("pdf", "Merge files of type PDF"), atomic("fs", "Merge disks, fs")
        )
        == "pdf"
    )


def test_bigrams_without_content_tell_examples_apart() -> None:
    def example(request: str) -> Example:
        return Example({"request": request}, "", Span())

    made = atomic("made", "Ask", examples=(example("who are you"),))
    asked = atomic("asked", "Ask", examples=(example("are who you"),))
    assert best("who are you", asked, made) == "made"


def test_words_without_content_tell_equal_examples_apart() -> None:
    def example(request: str) -> Example:
        return Example({"request": request}, "", Span())

    when = atomic("when", "Ask", examples=(example("when does the train leave"),))
    where = atomic("where", "Ask", examples=(example("where does the train leave"),))
    assert best("when does the train leave", where, when) == "when"
    assert best("where does the train leave", where, when) == "where"


def test_a_node_finds_the_template_with_its_inputs() -> None:
    left = atomic("left", "Compute a value", inputs=(declared("rate"), declared("years")))
    right = atomic("right", "Compute a value", inputs=(declared("rate"), declared("months")))
    node = Atomic(
        description=text("Compute a value"), inputs=(declared("months"), declared("rate"))
    )
    assert best(node, left, right) == "right"


def test_general_questions_go_to_templates_that_name_question_words() -> None:
    quiz = atomic("quiz", "Reply briefly", criteria=text("trivia, what, who"))
    assert best("what is the boiling point of radon?", quiz) == "quiz"
    assert best("what is my boiling point?", quiz) is None
    assert best("what is the boiling point of radon?") is None


def test_other_scripts_are_matched_too() -> None:
    assert best("東京の天気", atomic("jp", "東京の天気を調べる")) == "jp"
    assert best("RÉSUMÉ naïf", atomic("fr", "resume naif")) == "fr"


def test_a_name_outweighs_an_example() -> None:
    named = atomic("harvest", "Does something")
    shown = replace(
        named,
        name="other",
        node=Atomic(description=text("x"), examples=(Example({}, "harvest", Span()),)),
    )
    assert names(LexicalRanker([shown, named]).rank("harvest")) == ["harvest", "other"]


def test_a_misspelt_word_counts_for_less_than_the_word_itself() -> None:
    ranker = LexicalRanker(LIBRARY)
    right = next(
        m.score for m in ranker.rank("translate this text") if m.template.name == "translate"
    )
    slip = next(
        m.score for m in ranker.rank("trenslate this text") if m.template.name == "translate"
    )
    none = next(
        (m.score for m in ranker.rank("zzzzz this text") if m.template.name == "translate"), 0.0
    )
    assert none < slip < right


def test_a_match_is_shown_on_one_line() -> None:
    found = TemplateLibrary.load().match("is this review positive or negative?")[0]
    assert repr(found).startswith(f"<Match 'sentiment': {found.score:.2f}, by ")
    assert repr(found.template).startswith("<Template 'sentiment', atomic, in '")
    assert max(len(repr(found)), len(repr(found.template))) < 300
