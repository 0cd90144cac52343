"""Cut batches: threads of the trainer's process fetch and decode what a Lhotse sampler draws, several batches ahead.

Without worker processes, nothing is copied between processes, one connection serves all batches, and the sampler is in
the trainer's process. Its state is therefore exact: a batch counts when it is delivered, not when it is drawn.

    sampler  ->  begin (one GetBatch, in flight)  ->  finish, dataset[cuts] (threads)  ->  trainer, in order

One thread draws and requests batches, and `threads` threads receive and decode them. At most `in_flight` batches are
drawn and not yet delivered. A failure in any thread is raised in its place among the batches.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from lhotse import CutSet

from ais_loader.errors import InvalidRequest

from .batch_loader import AISBatchLoader
from .sampler_state import Place, Places, beginning, draw_again, epoch_of, own_state, restore

if TYPE_CHECKING:
    import os

    from .batch_loader import PendingCuts

_IDS_NAMED = 3
"""How many cut ids the error of a failed batch names."""


class CutBatches:
    """An iterable of batches. Each iteration is one epoch of the sampler. Use `set_epoch` as for the sampler.

    It yields `dataset[cuts]`, where the cuts have their data in memory. Without a dataset, it yields these cuts: a
    CutSet, or a tuple of them if the sampler draws several.

    An iteration ends, with its threads, when it is exhausted, abandoned or closed, or raises. A new iteration ends the
    previous one. Use this object in one thread at a time.
    """

    def __init__(
        self,
        sampler: Any,
        dataset: Any = None,
        *,
        in_flight: int = 4,
        threads: int = 2,
        store: str | os.PathLike[str] | None = None,
        strict: bool = False,
        windows: bool = True,
        timeout_s: float = 30.0,
    ) -> None:
        """
        Args:
            sampler: Any sampler of Lhotse. A background thread uses it during an iteration.
            dataset: One of Lhotse's map-style datasets, or any object with `__getitem__(CutSet)`. Several threads call
                it at the same time. Its random choices are the same in each run only with `threads=1`.
            in_flight: The maximum number of batches that are drawn and not delivered: requested, being decoded, or
                ready.
            threads: The number of decoding threads.
            store, strict, windows, timeout_s: See AISBatchLoader. Without `strict`, a cut that could not be fetched
                raises when it is loaded, or a fault-tolerant dataset leaves it out.

        Raises InvalidRequest.
        """
        for name, value in (("in_flight", in_flight), ("threads", threads)):
            if value < 1:
                raise InvalidRequest(f"{name}={value}: need at least 1")
        self.sampler = sampler
        self.dataset = dataset
        self._loader = AISBatchLoader(store=store, strict=strict, windows=windows, timeout_s=timeout_s)
        self._in_flight = in_flight
        self._threads = threads
        self._run: _Run | None = None
        self._place: Place | None = None
        """The place after the batch delivered last. None if the sampler is at the same place."""
        self._restored: tuple[dict[str, Any], int | None] | None = None
        """A state from which no iteration has started yet, and the epoch that it set."""

    def __iter__(self) -> Iterator[Any]:
        return self._hand_out()

    def _hand_out(self) -> Iterator[Any]:
        self.close()
        restored = self._not_yet_resumed()
        self._restored = None
        drawn = iter(self.sampler)
        places = Places(self.sampler, restored)
        self._place = places.now()
        run = self._run = _Run(self, drawn, places, restored or {})
        try:
            while (handed := run.take()) is not None:
                batch, self._place = handed
                yield batch
            if run.exhausted and own_state(self.sampler) is not None:
                self._place = None
        finally:
            run.close()

    def _not_yet_resumed(self) -> dict[str, Any] | None:
        if self._restored is None:
            return None
        state, epoch = self._restored
        return state if epoch == epoch_of(self.sampler) else None  # set_epoch has been called since

    @property
    def epoch(self) -> int | None:
        """The sampler's epoch."""
        return epoch_of(self.sampler)

    def set_epoch(self, epoch: int) -> None:
        """Set the sampler's epoch. If it is not the epoch of a loaded state, it starts at its beginning."""
        self.sampler.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the sampler's state after the batch delivered last, regardless of what has been drawn since.

        If the sampler cannot provide its state, or it would take too long after each batch, this is an earlier state or
        the beginning of the epoch, with the number of batches delivered since.
        """
        restored = self._not_yet_resumed()
        if restored is not None:
            return dict(restored)
        if self._place is not None and self._place.epoch == epoch_of(self.sampler):
            return self._place.state()
        state = own_state(self.sampler)
        return beginning(self.sampler) if state is None else state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next iteration continue after the batch that was delivered last before `state` was saved.

        This fetches nothing: batches that must be drawn again, now or then, are drawn from metadata alone. You can also
        load a state that the sampler itself saved. For a state of another sampler, this raises InvalidRequest, and the
        errors of the sampler's own `load_state_dict`.
        """
        self.close()
        restore(self.sampler, state)
        self._place = None
        self._restored = dict(state), epoch_of(self.sampler)

    def close(self) -> None:
        """End the running iteration, if any, with its threads. It yields no more batches. May be called again.

        This waits for what the threads are doing: one draw, one decode each, or at most `timeout_s` for a silent store.
        """
        if self._run is not None:
            self._run.close()
            self._run = None

    def __enter__(self) -> CutBatches:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Run:
    """One iteration: the drawing thread, the decoding threads, and the queue between them."""

    def __init__(self, batches: CutBatches, drawn: Iterator[Any], places: Places, restored: Mapping[str, Any]) -> None:
        self._loader, self._dataset = batches._loader, batches.dataset
        self._drawn, self._places, self._restored = drawn, places, restored
        self._free = threading.Semaphore(batches._in_flight)
        self._results: SimpleQueue[tuple[_Batch, Future[Any]] | BaseException | None] = SimpleQueue()
        """The batches, in order. An error or None is the last element."""
        self._closed = False
        self.exhausted = False
        self._decoders = ThreadPoolExecutor(batches._threads, "ais-loader-decode")
        self._drawer = threading.Thread(target=self._draw, name="ais-loader-draw", daemon=True)
        self._drawer.start()

    def take(self) -> tuple[Any, Place] | None:
        """Return the next batch and the place after it, or None at the end. Raises an error in its place."""
        if self._closed:
            return None
        queued = self._results.get()
        if isinstance(queued, BaseException):
            raise queued
        if queued is None:
            self.exhausted = True
            return None
        batch, decoded = queued
        result = decoded.result()
        self._free.release()
        return result, batch.place

    def _draw(self) -> None:
        end: BaseException | None = None
        try:
            draw_again(self._drawn, self._restored)
            number = 0
            while self._free.acquire() and not self._closed:
                cuts = next(self._drawn, None)  # not `for`: a sampler starts again at each iter()
                if cuts is None:
                    break
                batch = _Batch(number, cuts, self._places.drawn())
                batch.begin(self._loader)
                self._results.put((batch, self._decoders.submit(batch.finish, self._dataset)))
                number += 1
        except BaseException as error:  # noqa: BLE001 - raised where the batch is consumed
            end = error
        self._results.put(end)

    def close(self) -> None:
        """Stop, and wait until all threads have ended. May be called again."""
        self._closed = True
        self._free.release()
        self._drawer.join()
        self._decoders.shutdown(cancel_futures=True)
        while not self._results.empty():
            queued = self._results.get()
            if isinstance(queued, tuple):
                queued[0].close()


class _Batch:
    """One batch in flight."""

    def __init__(self, number: int, cuts: Any, place: Place) -> None:
        """`number`: The batch's number in its iteration."""
        self.place = place
        self._number = number
        self._cuts = cuts
        self._pending: PendingCuts | None = None

    def begin(self, loader: AISBatchLoader) -> None:
        """Request the data."""
        sets = self._cuts if isinstance(self._cuts, tuple) else (self._cuts,)
        with self._named():
            self._pending = loader.begin([cut for one in sets for cut in one])

    def finish(self, dataset: Any) -> Any:
        """Receive the data, and decode it."""
        assert self._pending is not None
        with self._named():
            cuts = self._like_drawn(self._pending.finish())
            self._pending = None
            return cuts if dataset is None else dataset[cuts]

    def _like_drawn(self, filled: list[Any]) -> Any:
        if not isinstance(self._cuts, tuple):
            return _set_of(filled, self._cuts)
        left = iter(filled)
        return tuple(_set_of([next(left) for _ in one], one) for one in self._cuts)

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Add the batch's number and cuts to any error in this block."""
        try:
            yield
        except Exception as error:
            first = self._cuts[0] if isinstance(self._cuts, tuple) else self._cuts
            ids = [str(getattr(cut, "id", "?")) for cut in islice(first, _IDS_NAMED)]
            more = ", …" if len(first) > len(ids) else ""
            error.add_note(f"raised for batch {self._number} of this iteration, of cuts {', '.join(ids)}{more}")
            raise

    def close(self) -> None:
        """Abandon data that is in flight."""
        if self._pending is not None:
            self._pending.close()


def _set_of(cuts: list[Any], like: Any) -> Any:
    return CutSet.from_cuts(cuts) if isinstance(like, CutSet) else cuts
