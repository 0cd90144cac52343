"""Bad samples: entries that fail and samples that cannot be decoded, what happens to them, and how many there were."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

from ais_loader import errors
from ais_loader.training.number_batches import checked_index, sample_numbers

if TYPE_CHECKING:
    from ais_loader.loading.workers import Fetcher

BadPolicy: TypeAlias = Literal["raise", "skip", "substitute"]
OnBad: TypeAlias = BadPolicy | Callable[[Exception], BadPolicy]
POLICIES = ("raise", "skip", "substitute")
_NAMES_KEPT = 10
_OF_THE_STORE = (
    errors.AccessDenied,
    errors.Closed,
    errors.NodeUnavailable,
    errors.Overloaded,
    errors.RemoteUnavailable,
    errors.SilenceTimeout,
    errors.StaleMap,
    errors.StoreError,
)
"""Errors that say nothing about a sample: they are always raised."""


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


def good_samples(fetcher: Fetcher, work: Any, pending: Any) -> tuple[Any, list[BadSample]]:
    """Return the samples of a batch without the bad ones, or with others in their place, and the bad ones.

    If the batch fails, its halves are fetched again, and theirs, until the samples that fail are found.
    """
    try:
        return fetcher.samples(work, pending), []
    except Exception as error:
        if fetcher.on_bad == "raise" or isinstance(error, _OF_THE_STORE):
            raise
        _refuse_bad_numbers(fetcher, work)
        found = list(_each(fetcher, work, error))
    good = [at for at, one in enumerate(found) if not isinstance(one, Exception)]
    bad, samples = [], []
    for at, one in enumerate(found):
        if not isinstance(one, Exception):
            samples.append(one)
            continue
        policy = cast(Any, fetcher.on_bad)(one) if callable(fetcher.on_bad) else fetcher.on_bad
        if policy not in ("skip", "substitute"):
            raise one
        if not good:
            raise errors.EntryFailed(f"none of the {len(found)} samples of a batch is good: {one}") from one
        bad.append(BadSample(fetcher.name_of(_part(work, at, at + 1)), type(one).__name__))
        if policy == "substitute":
            samples.append(found[next((other for other in good if other > at), good[0])])
    return samples, bad


def _each(fetcher: Fetcher, work: Any, error: Exception) -> Iterator[Any]:
    """Yield each sample of a batch that failed, or the error of the sample."""
    if len(work) == 1:
        yield error
        return
    middle = len(work) // 2
    for part in (_part(work, 0, middle), _part(work, middle, len(work))):
        try:
            yield from fetcher.samples(part)
        except _OF_THE_STORE:
            raise
        except Exception as part_error:  # noqa: BLE001 - of any decoder
            yield from _each(fetcher, part, part_error)


def _part(work: Any, first: int, stop: int) -> Any:
    part = work[first:stop]
    if (size := getattr(work, "item_bytes", None)) is not None:
        part = type(work)(part)
        part.item_bytes = size
    return part


def _refuse_bad_numbers(fetcher: Fetcher, work: Any) -> None:
    """Raise IndexError or TypeError for numbers that the dataset does not have: the sampler is at fault."""
    numbers = sample_numbers(work)
    if hasattr(fetcher.dataset, "__len__") and not any(isinstance(number, (str, tuple, dict)) for number in numbers):
        for number in numbers:
            if hasattr(number, "__index__"):
                checked_index(number, len(fetcher.dataset))
