"""Random-access source for Grain whose reads at the same time become one storage request.

Source: grain 0.2.18, _src/python/dataset/base.py (`RandomAccessDataSource`,
`SupportsBatchedReadRandomAccessDataSource`), transformations/batch.py, data_loader.py.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Any

from ais_loader.training.number_batches import as_integers, checked_index, part_digests


class Source:
    """The samples of a map-style dataset, as a source for `grain.MapDataset.source` and `grain.DataLoader`.

    Grain's threads read one sample at a time. Those that read while a request is on its way wait, and are then served
    together by the next one. `source.__getitems__` reads a whole batch with one request:

        grain.MapDataset.range(len(source)).seed(1).shuffle().batch(32).map(source.__getitems__)

    `_getitems` does the same for releases of Grain that pass batches on to their sources; 0.2.18 does not.

    A source may be used by any number of threads, and can be pickled with its dataset for worker processes. An error
    belongs to the sample that raised it: others that were read together are read again. Grain skips samples that are
    None, such as those of failed entries with on_error="placeholder". Its `repr`, by which Grain's DataLoader compares
    the source with that of a checkpoint, has a digest of the dataset's entries.
    """

    def __init__(self, dataset: Any) -> None:
        """
        Args:
            dataset: A dataset with `__len__` and `__getitems__`, such as MapDataset, TokenWindows, Lines, and the
                result of `concat`.

        Raises TypeError.
        """
        if not hasattr(dataset, "__getitems__") or not hasattr(dataset, "__len__"):
            raise TypeError(f"Source: {type(dataset).__name__} is no map-style dataset that reads batches")
        self._dataset = dataset
        self._repr = ""
        self._begin()

    def _begin(self) -> None:
        self._turn = threading.Condition()
        self._is_reading = False
        self._waiting: list[_Read] = []
        self._opening: threading.Lock | None = threading.Lock()
        """Held by the first read, because only one thread may open the dataset's client."""

    def __getstate__(self) -> dict[str, Any]:
        return {"_dataset": self._dataset, "_repr": self._repr}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    def __repr__(self) -> str:
        if not self._repr:
            digests = part_digests(getattr(self._dataset, "datasets", [self._dataset]))
            self._repr = f"Source({len(self):,} samples, {', '.join(digest for _, digest in digests)})"
        return self._repr

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self._dataset)

    def __getitem__(self, index: int) -> Any:
        """Return a sample. What other threads request at the same time is read with the same storage request.

        Raises IndexError, TypeError, and the errors of reading and decoding this sample.
        """
        read = _Read(checked_index(index, len(self)))
        with self._turn:
            self._waiting.append(read)
            while self._is_reading and not read.is_done:
                self._turn.wait()
            if read.is_done:
                return read.result()
            self._is_reading = True
            together, self._waiting = self._waiting, []
        try:
            self._serve(together)
        finally:
            with self._turn:
                self._is_reading = False
                # After an interruption of this thread, others still wait for theirs.
                self._waiting[:0] = [one for one in together if not one.is_done and one is not read]
                self._turn.notify_all()
        return read.result()

    def __getitems__(self, indices: Iterable[int]) -> list[Any]:
        """Return the samples of these indices, in order, with one storage request.

        Raises IndexError, TypeError, and the errors of reading and decoding.
        """
        wanted = list(as_integers(indices))
        if (opening := self._opening) is not None:
            with opening:
                samples = list(self._dataset.__getitems__(wanted))
                self._opening = None
                return samples
        return list(self._dataset.__getitems__(wanted))

    def _getitems(self, indices: Sequence[int]) -> list[Any]:
        return self.__getitems__(indices)

    def _serve(self, together: Sequence[_Read]) -> None:
        try:
            samples = self.__getitems__([read.index for read in together])
        except Exception as error:  # noqa: BLE001 - raised again by the thread that reads this sample
            if len(together) == 1:
                together[0].fail(error)
                return
            for read in together:
                self._serve([read])
            return
        for read, sample in zip(together, samples, strict=True):
            read.succeed(sample)


class _Read:
    """A sample that a thread waits for."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.is_done = False
        self._sample: Any = None
        self._error: Exception | None = None

    def succeed(self, sample: Any) -> None:
        self._sample, self.is_done = sample, True

    def fail(self, error: Exception) -> None:
        self._error, self.is_done = error, True

    def result(self) -> Any:
        if self._error is not None:
            raise self._error
        return self._sample
