"""Steering: a trainer sets the weights of its running mixture, and all ranks agree on them and on the step.

No rank tells another one what to do. Each computes the step from the position, which all of them share, and from how
far loaders draw ahead. What may have been drawn therefore keeps its weights. Ranks only compare, through a store of
keys, so that one that does not call is named. A collective operation would meet another one of that rank, and hang.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from datetime import timedelta
from typing import Any

import torch.distributed

from ais_loader.errors import InvalidRequest
from ais_loader.plans.mix_plan import MixPlan, Weights
from ais_loader.training.plan import Position
from ais_loader.training.plan_position import PlanPosition, compare_ranks, is_distributed

_calls: Counter[tuple[str, int]] = Counter()
"""Calls of this process by plan and rank: the keys of each call are others, also for a second loader of the plan."""


def steer(position: PlanPosition, weights: Weights, groups: int, store: Any, timeout_s: float) -> Position:
    """Let weights hold from a position on that is `groups` groups of steps ahead, and return it.

    `store`, `timeout_s` and errors: See BatchLoader.steer.
    """
    rank, world_size = position.place()
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
        gather = _Meeting(position.plan, rank, world_size, store, timeout_s).gathered
        compare_ranks(own, error, "the weights", "steers otherwise than rank 0", gather)
    elif error is not None:
        raise error
    position.use(plan)
    return begin


class _Meeting:
    """One call of all ranks, which put their values into a store."""

    def __init__(self, plan: Any, rank: int, world_size: int, store: Any, timeout_s: float) -> None:
        unsteered = plan.steered(()).fingerprint if isinstance(plan, MixPlan) else ""
        digest = hashlib.blake2b(unsteered.encode(), digest_size=8).hexdigest()
        _calls[digest, rank] += 1
        self._number, self._rank, self._world_size = _calls[digest, rank], rank, world_size
        self._prefix, self._store, self._timeout_s = f"ais-loader steer {digest}", store, timeout_s

    def _key(self, number: int, rank: int) -> str:
        return f"{self._prefix} {number} {rank}"

    def gathered(self, own: Any) -> list[Any]:
        """Return the value of each rank. Raises InvalidRequest with the ranks that have put none."""
        store = self._store
        store.set(self._key(self._number, self._rank), json.dumps(own))
        keys = [self._key(self._number, rank) for rank in range(self._world_size)]
        try:
            store.wait(keys, timedelta(seconds=self._timeout_s))
        except RuntimeError as error:  # also of a store whose process has ended
            silent = [str(rank) for rank, key in enumerate(keys) if not store.check([key])]
            if not silent:
                raise
            raise InvalidRequest(
                f"rank {', '.join(silent)} of {self._world_size} has not called steer within {self._timeout_s:g} s, as "
                f"rank {self._rank} has, or has another plan: call it on all ranks, with the same weights, after the "
                "same step"
            ) from error
        if self._number > 2:  # what no rank can still be reading
            store.delete_key(self._key(self._number - 2, self._rank))
        return [json.loads(value) for value in store.multi_get(keys)]
