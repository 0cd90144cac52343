"""Steering: a trainer sets the weights of its running mixture, and all ranks agree on them and on the step.

Each rank computes the step from the position that all of them share, behind all that may be drawn. Ranks only compare,
in a store of keys: one that does not call is named. A collective operation would meet another one of it, and hang.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from datetime import timedelta
from functools import partial
from typing import Any

from ais_loader.errors import InvalidRequest
from ais_loader.extras import needs
from ais_loader.plans.mix_plan import MixPlan, Weights
from ais_loader.training.plan import Position
from ais_loader.training.plan_position import PlanPosition, compare_ranks, is_distributed

with needs("torch", "steer"):
    import torch.distributed

_calls: Counter[tuple[str, int]] = Counter()
"""Calls of this process by plan and rank: the keys of each call are others, also for a second loader of the plan."""


def steer(position: PlanPosition, weights: Weights, groups: int, store: Any, timeout_s: float) -> Position:
    """Set weights from `groups` groups of steps ahead on, as BatchLoader.steer says."""
    rank, world_size = position.peers()
    if store is None and is_distributed() and world_size == torch.distributed.get_world_size():
        store = torch.distributed.distributed_c10d._get_default_store()
    own: dict[str, Any] = {}
    error: Exception | None = None
    try:
        begin, plan = position.steered(weights, groups)
        own = {"epoch": begin.epoch, "step": begin.step, "weights": plan.steering[-1][1]}
    except Exception as found:  # noqa: BLE001 - raised by compare_ranks, after all ranks have met
        error = found
    if store is not None and world_size > 1:
        unsteered = position.plan.steered(()).fingerprint if isinstance(position.plan, MixPlan) else ""
        digest = hashlib.blake2b(unsteered.encode(), digest_size=8).hexdigest()
        _calls[digest, rank] += 1
        keys = {other: f"ais-loader steer {digest} {_calls[digest, rank]} {other}" for other in range(world_size)}
        gather = partial(gathered, store, keys, rank, timeout_s, "called steer")
        compare_ranks(own, error, "the weights", "steers otherwise than rank 0", gather)
    elif error is not None:
        raise error
    position.use(plan)
    return begin


def gathered(store: Any, keys: dict[int, str], rank: int, timeout_s: float, call: str, own: Any) -> list[Any]:
    """Return the value of each rank, under its key.

    Raises InvalidRequest with the ranks that have not done so: `call` says what.
    """
    store.set(keys[rank], json.dumps(own))
    try:
        store.wait([*keys.values()], timedelta(seconds=timeout_s))
    except RuntimeError as error:  # also of a store whose process has ended
        silent = [str(other) for other, key in keys.items() if not store.check([key])]
        if not silent:
            raise
        raise InvalidRequest(
            f"rank {', '.join(silent)} of {len(keys)} has not {call} within {timeout_s:g} s, as rank {rank} has, or "
            "not with equal arguments: all ranks have to, after the same step"
        ) from error
    return [json.loads(value) for value in store.multi_get([*keys.values()])]
