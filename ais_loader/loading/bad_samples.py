"""Bad samples: entries that fail and samples that cannot be decoded, what happens to them, and how many there were."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from ais_loader import errors
from ais_loader.errors import InvalidRequest
from ais_loader.plans.groups import whole_number
from ais_loader.plans.mix_plan import MixPlan
from ais_loader.plans.number_plan import NumberPlan
from ais_loader.plans.pack_plan import PackPlan

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


def reserve_of(dataset: Any, reserve: int | Sequence[Any], plan: Any) -> list[Any]:
    """Return the samples that a loader keeps as substitutes, as a batch has them; see `BatchLoader`. Raises
    InvalidRequest, TypeError."""
    if isinstance(reserve, (str, bytes)) or (isinstance(plan, PackPlan) and reserve):
        raise InvalidRequest(f"reserve={reserve!r}: need a number or several samples, and a plan without packs")
    if not isinstance(reserve, int):
        return list(reserve)
    count = whole_number("BatchLoader", "reserve", reserve, 0, len(dataset) if reserve else 0)
    if count and (isinstance(plan, MixPlan) or not isinstance(plan, NumberPlan)):
        raise InvalidRequest(f"reserve={count}: the last samples are held back from a plan of one dataset; name them")
    return list(range(len(dataset) - count, len(dataset))) if count else []


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
