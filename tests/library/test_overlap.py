"""Templates that requests will mistake for each other are found, with the words and what to add."""

from __future__ import annotations

from evaluator import Span
from evaluator.library.matching import find_overlaps
from evaluator.nodes import Atomic, Task, Text


class Template:
    def __init__(self, name: str, description: str, criteria: str | None = None) -> None:
        self.name = name
        given = None if criteria is None else Text(criteria, Span())
        self.node: Task = Atomic(name=name, description=Text(description, Span()), criteria=given)


BAKE = Template("bake", "Bake a loaf of bread")


def test_twins_are_mistaken_and_hold_each_others_words() -> None:
    found = find_overlaps([BAKE, Template("knead", "Bake a loaf of bread")])
    assert {(each.template, each.other) for each in found} == {("bake", "knead"), ("knead", "bake")}
    assert all({"loaf", "bread"} <= set(each.shared) for each in found)


def test_the_words_that_only_one_holds_are_named_in_the_advice() -> None:
    found = find_overlaps([BAKE, Template("toast", "Loaf bread toaster", "bread loaf slices")])
    overlap = next(each for each in found if each.template == "bake")
    assert overlap.own == ("bake",)
    assert "bake" in overlap.advice
    assert "<criteria>" in overlap.advice


def test_a_phrase_of_the_criteria_that_finds_another_template_is_reported() -> None:
    other = Template("paint_fence", "Paint a garden fence")
    found = find_overlaps([Template("bake", "Bake a loaf of bread", "rolls, garden fence"), other])
    worst = found[0]
    assert (worst.template, worst.other, worst.asked) == ("bake", "paint_fence", "garden fence")
    assert worst.other_score >= worst.score


def test_different_templates_do_not_overlap() -> None:
    assert find_overlaps([BAKE, Template("paint", "Paint a garden fence")]) == []
