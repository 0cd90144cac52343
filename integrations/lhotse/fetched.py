"""Dataset of cuts whose data is fetched with one GetBatch for each minibatch, before the dataset reads it."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

from lhotse import CutSet

from ais_loader.training.take_samples import note_cause

from .batch_loader import AISBatchLoader
from .failures import AISBatchLoaderError

if TYPE_CHECKING:
    from .batch_loader import PendingCuts

_IDS_NAMED = 3
"""How many cut ids the error of a failed batch names."""


class Fetched:
    """A map-style dataset of Lhotse, such as K2SpeechRecognitionDataset, whose cuts arrive with their data in memory.

    `Fetched(dataset)[cuts]` is `dataset[cuts]`, with one request for all recordings, features and arrays that the cuts
    have in the store. This is for datasets and input strategies that read cut by cut, such as OnTheFlyFeatures. It
    replaces the dataset in torch's DataLoader, in workers of every kind, and in BatchLoader, which requests the data
    ahead. Cuts that a transform of the dataset mixes in are read by Lhotse, one by one; an AISBatchLoader as the last
    of `cut_transforms` fetches these as well.
    """

    def __init__(self, dataset: Any, **options: Any) -> None:
        """
        Args:
            dataset: One of Lhotse's map-style datasets, or any object with `__getitem__(CutSet)`. None returns the
                cuts themselves.
            options: Options of AISBatchLoader: `store`, `strict`, `skip_failed_fetches`, `windows`, `timeout_s`. The
                store is, by default, the one that was passed to `install`, or else AIS_LOADER_URL.
        """
        self._dataset = dataset
        self._loader = AISBatchLoader(**options)

    def __getitem__(self, cuts: Any) -> Any:
        """Return `dataset[cuts]`, for a CutSet or a tuple of them. Raises the errors of AISBatchLoader and of the
        dataset."""
        return self.begin(cuts).finish()

    def begin(self, cuts: Any) -> PendingSample:
        """Request the data, and return while it is still arriving. Raises the errors of AISBatchLoader."""
        sets = cuts if isinstance(cuts, tuple) else (cuts,)
        return PendingSample(self._loader.begin([cut for one in sets for cut in one]), cuts, self._dataset)

    def name_of(self, cuts: Any) -> str:
        """Return a name for these cuts in an error."""
        first = cuts[0] if isinstance(cuts, tuple) else cuts
        ids = [str(getattr(cut, "id", "?")) for cut in islice(first, _IDS_NAMED)]
        return f"cuts {', '.join(ids)}" + (", …" if len(first) > len(ids) else "")


class PendingSample:
    """Cuts in flight to a dataset."""

    def __init__(self, pending: PendingCuts, drawn: Any, dataset: Any) -> None:
        self._pending, self._drawn, self._dataset = pending, drawn, dataset
        self.close = pending.close

    def finish(self) -> Any:
        """Receive the data, and decode it."""
        note_cause("wire")
        filled = self._pending.finish()
        note_cause("decode")
        if isinstance(self._drawn, tuple):
            if len(filled) < (count := sum(map(len, self._drawn))):  # skip_failed_fetches: cuts may belong in pairs
                raise AISBatchLoaderError(
                    f"only {len(filled)} of {count} cuts are whole, and none of several sets is left out alone"
                )
            left = iter(filled)
            cuts: Any = tuple(_set_of([next(left) for _ in one], one) for one in self._drawn)
        else:
            cuts = _set_of(filled, self._drawn)
        return cuts if self._dataset is None else self._dataset[cuts]


def _set_of(cuts: list[Any], like: Any) -> Any:
    return CutSet.from_cuts(cuts) if isinstance(like, CutSet) else cuts
