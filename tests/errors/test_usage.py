"""A usage as a dict, and the sum of two."""

from __future__ import annotations

from dataclasses import fields

from evaluator.errors.results import Usage

NAMES = [field.name for field in fields(Usage)]


def test_a_usage_is_a_dict_of_all_its_fields() -> None:
    usage = Usage(*range(1, len(NAMES) + 1))
    assert usage.to_dict() == dict(zip(NAMES, range(1, len(NAMES) + 1), strict=True))
    assert list(usage.to_dict()) == NAMES
    assert list(usage.non_zero()) == NAMES
    assert Usage.from_dict(usage.non_zero()) == usage


def test_figures_that_are_zero_are_left_out_and_unknown_ones_are_not() -> None:
    for name in NAMES:
        assert Usage.from_dict({name: 1}).non_zero() == {name: 1}
        assert Usage.from_dict({name: None}).non_zero() == {name: None}
    assert Usage().non_zero() == {}


def test_the_sum_of_two_usages_has_every_figure() -> None:
    one = Usage(*range(1, len(NAMES) + 1))
    other = Usage(*range(10, 10 + len(NAMES)))
    expected = {name: 11 + 2 * place for place, name in enumerate(NAMES)}
    assert (one + other).to_dict() == expected
    for name in NAMES:
        for total in (one + Usage.from_dict({name: None}), Usage.from_dict({name: None}) + one):
            assert total.to_dict() == {**one.to_dict(), name: None}
