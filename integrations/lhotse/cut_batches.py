"""Cut batches: threads of the trainer's process fetch and decode what a Lhotse sampler draws, several batches ahead.

It is a BatchLoader whose dataset fetches cuts. Nothing is copied between processes, one connection serves all batches,
and the sampler is in the trainer's process. Its state is therefore exact: a batch counts when it is delivered, not when
it is drawn.

    sampler  ->  begin (one GetBatch, in flight)  ->  finish, dataset[cuts] (threads)  ->  trainer, in order
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ais_loader.loading.batch_loader import BatchLoader

from .fetched import Fetched

if TYPE_CHECKING:
    import os


class CutBatches(BatchLoader):
    """A BatchLoader of cuts. Each iteration is one epoch of the sampler. Use `set_epoch` as for the sampler.

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
        **options: Any,
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
            options: Further options of BatchLoader: `on_batch`, `stall_s`, `on_stall`.

        Raises InvalidRequest.
        """
        fetched = Fetched(dataset, store=store, strict=strict, windows=windows, timeout_s=timeout_s)
        super().__init__(fetched, sampler, in_flight=in_flight, threads=threads, **options)
