"""Model of a loader's waiting: when each batch is requested, is there, and is taken by a trainer with a fixed step.

A door delays each request by its latency, and delivers the bytes of all of them one after another.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ais_loader.training.cold_reads import Fetch

_RENEWED_PARTS = 16
"""A plan's window advances by this part of its steps at a time: `PlanSender`."""


class Door(NamedTuple):
    """Latency of a request and rate of all of them together: those of the store, or of remote storage behind it."""

    latency_s: float
    bytes_per_s: float


class Pace(NamedTuple):
    store: Door
    cloud: Door
    step_s: float
    in_flight: int
    threads: int
    """Batches that are read at a time; 0 if all that are in flight are."""
    expect_steps: int
    """Steps that the nodes know ahead; 0 for none."""
    requests: int
    requests_ahead: int
    """Requests to remote storage at a time, and those of them for which no reader waits."""
    requests_per_s: float = 0.0


def waits_s(rounds: Iterable[tuple[int, Sequence[Fetch]]], pace: Pace) -> list[float]:
    """Return how long the trainer waits for each batch. A round is its bytes, and what is fetched for it."""
    waits, taken, ended = list[float](), list[float](), list[float]()
    slots, slots_ahead = [0.0] * pace.requests, [0.0] * max(1, pace.requests_ahead)
    half_s, stride = pace.store.latency_s / 2, max(1, pace.expect_steps // _RENEWED_PARTS)
    store_free_s = cloud_free_s = due_s = 0.0
    for number, (size_bytes, fetches) in enumerate(rounds):
        asked_s = taken[number - pace.in_flight] if number >= pace.in_flight else 0.0
        if 0 < pace.threads <= number:
            asked_s = max(asked_s, ended[number - pace.threads])
        told = -((pace.expect_steps - 1 - number) // stride) * stride
        """Steps that have been taken when the nodes are told of this one."""
        arrived_s = asked_s + 2 * half_s
        for fetch in fetches:
            begin_s, is_ahead = max(asked_s + half_s, slots[0]), False
            if pace.expect_steps and pace.requests_ahead and fetch.is_whole:
                told_s = taken[told - 1] if told > 0 else 0.0
                ahead_s = max(told_s + half_s, slots[0], slots_ahead[0])
                begin_s, is_ahead = (ahead_s, True) if ahead_s < begin_s else (begin_s, False)
            begin_s = max(begin_s, due_s)
            due_s = begin_s + (fetch.gets + fetch.heads) / pace.requests_per_s if pace.requests_per_s else 0.0
            body_s = fetch.size_bytes / pace.cloud.bytes_per_s
            end_s = max(begin_s + pace.cloud.latency_s * fetch.waves, cloud_free_s) + body_s
            cloud_free_s = max(cloud_free_s, end_s if body_s else 0.0)
            heapq.heapreplace(slots, end_s)
            if is_ahead:
                heapq.heapreplace(slots_ahead, end_s)
            arrived_s = max(arrived_s, end_s + half_s)
        store_free_s = max(store_free_s, arrived_s) + size_bytes / pace.store.bytes_per_s
        ended.append(store_free_s)
        wanted_s = taken[-1] + pace.step_s if taken else 0.0
        waits.append(max(0.0, store_free_s - wanted_s))
        taken.append(max(store_free_s, wanted_s))
    return waits
