"""Loaders of accelerate that would lose or repeat the batches of a plan: found on the stack, and refused."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType

from ais_loader.errors import InvalidRequest


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
