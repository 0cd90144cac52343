"""Lazy iterator: work that is done as its results are taken, and says so when nobody takes them."""

from __future__ import annotations

import warnings
from collections.abc import Generator, Iterator
from typing import Generic, TypeVar

_T = TypeVar("_T")


class Lazily(Generic[_T]):
    """An iterator whose first step begins the work. Dropped before that it warns, as a coroutine does that nobody has
    awaited: a call that stands alone on its line looks as if it had done something.
    """

    def __init__(self, results: Generator[_T, None, None], call: str) -> None:
        self._results = results
        self._call = call
        self._begun = False

    def __iter__(self) -> Iterator[_T]:
        self._begun = True
        return self._results  # no step through here for each result

    def __next__(self) -> _T:
        self._begun = True
        return next(self._results)

    def close(self) -> None:
        """Leave the rest undone; what has not begun does not, and that was meant."""
        self._begun = True
        self._results.close()

    def __repr__(self) -> str:
        return f"<{self._call}, lazy: iterate it>"

    def __del__(self) -> None:
        if not self._begun:
            warnings.warn(
                f"{self._call} was never iterated, so nothing was done: iterate it, or call list()",
                RuntimeWarning,
                stacklevel=2,
                source=self,
            )
