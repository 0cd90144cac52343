"""Loaders that would lose, repeat or regroup the batches of a plan: found on the stack, and refused."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType

from ais_loader.errors import InvalidRequest
from ais_loader.extras import needs

with needs("torch", "datasets"):
    from torch.utils.data._utils.fetch import _BaseDatasetFetcher


def refuse_batches_of_batches(caller: FrameType) -> None:
    """Raises InvalidRequest if the caller is a DataLoader's fetcher that forms batches of its own."""
    loader = caller.f_locals.get("self")
    if isinstance(loader, _BaseDatasetFetcher) and loader.auto_collation:
        raise InvalidRequest(
            "BatchIterableDataset yields whole batches, and this DataLoader would make batches of them: give the plan "
            "the batch_size, and use BatchLoader(dataset), or DataLoader(dataset, batch_size=None)"
        )


def refuse_accelerate(caller: FrameType | None, place: Callable[[], tuple[int, int]]) -> None:
    """Raises InvalidRequest if a loader of accelerate that would lose or repeat batches asks, maybe indirectly.

    A forked worker has the frames of the loader that forked it. `place` returns (rank, world_size).
    """
    loaders = sys.modules.get("accelerate.data_loader")
    while loaders is not None and caller is not None:
        loader = caller.f_locals.get("self")
        if isinstance(loader, loaders.SkipDataLoader):
            raise InvalidRequest(
                "accelerate's skip_first_batches does not know the epoch to skip batches of: resume at the exact "
                "batch with BatchLoader.load_state_dict; Trainer also needs ignore_data_skip=True"
            )
        if isinstance(loader, loaders.DataLoaderDispatcher) and place()[1] > 1:
            raise InvalidRequest(
                "accelerate would read the batches of rank 0 only, and divide them among all ranks: pass "
                "BatchLoader(dataset) to prepare(), which leaves it as it is"
            )
        caller = caller.f_back


def refuse_shards(caller: FrameType, place: Callable[[], tuple[int, int]]) -> None:
    """Raises InvalidRequest if the caller is accelerate's sampler that divides steps, and these are of one rank."""
    loaders = sys.modules.get("accelerate.data_loader")
    if loaders is None or not isinstance(shard := caller.f_locals.get("self"), loaders.BatchSamplerShard):
        return
    if shard.num_processes > 1 and place()[1] > 1:
        raise InvalidRequest(
            "accelerate would divide the steps of each rank among all ranks once more: do not pass a DataLoader with a "
            "BatchSampler to prepare(). It already reads the steps of its own rank"
        )
