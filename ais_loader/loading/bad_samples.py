"""Bad samples: entries that fail and samples that cannot be decoded, what happens to them, and how many there were."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from ais_loader import errors

BadPolicy: TypeAlias = Literal["raise", "skip", "substitute"]
OnBad: TypeAlias = BadPolicy | Callable[[Exception], BadPolicy]
POLICIES = ("raise", "skip", "substitute")
_NAMES_KEPT = 10


@dataclass(frozen=True, slots=True)
class BadSample:
    """A sample that was skipped or substituted."""

    name: str
    reason: str
    """Type of the error."""


class BadSamples:
    """The bad samples that a loader has had. `counts` has their number by reason, and `names` the first of each."""

    def __init__(self, most: int | None = None) -> None:
        self.counts: Counter[str] = Counter()
        self.names: dict[str, list[str]] = {}
        self._most = most

    def __repr__(self) -> str:
        return f"BadSamples({dict(self.counts)}, first: {self.names})"

    def add(self, found: list[BadSample]) -> None:
        """Count these. Raises EntryFailed if there have been too many."""
        for one in found:
            self.counts[one.reason] += 1
            names = self.names.setdefault(one.reason, [])
            if len(names) < _NAMES_KEPT:
                names.append(one.name)
        if found and self._most is not None and self.counts.total() > self._most:
            raise errors.EntryFailed(f"{self.counts.total()} samples are bad, more than max_bad={self._most}: {self!r}")
