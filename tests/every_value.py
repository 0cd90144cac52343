"""Products of cases: the quick set has every value once, and another set the other combinations."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import pytest


def every_value_once(*columns: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Return as many rows as the longest column has values; the others begin again."""
    values = [list(column) for column in columns]
    return [tuple(column[at % len(column)] for column in values) for at in range(max(map(len, values)))]


def product_of(
    *columns: Sequence[Any], quick: Iterable[tuple[Any, ...]], others: pytest.MarkDecorator = pytest.mark.slow
) -> list[Any]:
    """Return all combinations as parameters; those that are not among the rows `quick` have the mark `others`.

    Raises ValueError if one of the rows is no combination.
    """
    combinations, unmarked = list(itertools.product(*columns)), list(quick)
    if unknown := [row for row in unmarked if row not in combinations]:
        raise ValueError(f"no combinations of these columns: {unknown}")
    return [pytest.param(*row, marks=() if row in unmarked else others) for row in combinations]
