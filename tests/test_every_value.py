"""Products of which the quick set has every value once."""

from __future__ import annotations

import pytest

from tests.every_value import every_value_once, product_of


def test_rows_have_every_value_and_are_as_many_as_the_longest_column() -> None:
    assert every_value_once("abc", [1, 2], (None,)) == [("a", 1, None), ("b", 2, None), ("c", 1, None)]


def test_of_a_product_all_but_the_quick_rows_are_marked() -> None:
    cases = product_of("abc", [1, 2], quick=every_value_once("abc", [1, 2]))
    assert [case.values for case in cases] == [("a", 1), ("a", 2), ("b", 1), ("b", 2), ("c", 1), ("c", 2)]
    assert [not case.marks for case in cases] == [True, False, False, True, True, False]
    assert {mark.name for case in cases for mark in case.marks} == {"slow"}
    exhaustive = product_of("ab", quick=[("a",)], others=pytest.mark.exhaustive)
    assert [[mark.name for mark in case.marks] for case in exhaustive] == [[], ["exhaustive"]]
    with pytest.raises(ValueError, match="no combinations of these columns"):
        product_of("ab", quick=[("z",)])
