"""Model of a loader's waiting: when batches are requested, are there, and are taken by a trainer with a fixed step.

A door delays each request by its latency, and delivers the bytes of all of them one after another.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ais_loader.training.cold_reads import Fetch
from ais_loader.training.plan_sender import RENEWED_PARTS


class Door(NamedTuple):
    """Latency of a request in seconds, and rate of all requests together: of the store, or of remote storage."""

    latency_s: float
    bytes_per_s: float


class LoaderPace(NamedTuple):
    store: Door
    cloud: Door
    step_s: float
    in_flight: int
    threads: int
    """Batches that are read at a time; 0 for all that are in flight."""
    ahead: int
    """Steps that the nodes know ahead."""
    requests: int
    requests_ahead: int
    """Requests to remote storage at a time, and those of them for which no reader waits."""


def wait_s(rounds: Iterable[tuple[int, Sequence[Fetch]]], pace: LoaderPace) -> float:
    """Return how long the trainer waits for all batches. A round is its bytes, and what is fetched for it."""
    taken, ended = list[float](), list[float]()
    slots, slots_ahead = [0.0] * pace.requests, [0.0] * max(1, pace.requests_ahead)
    half_s, stride = pace.store.latency_s / 2, max(1, pace.ahead // RENEWED_PARTS)
    free_s = cloud_free_s = waited_s = 0.0
    unread, unread_bytes = deque[tuple[int, int]](), 0
    """Rounds and sizes of what was fetched ahead."""
    for number, (size_bytes, fetches) in enumerate(rounds):
        asked_s = taken[number - pace.in_flight] if number >= pace.in_flight else 0.0
        if 0 < pace.threads <= number:
            asked_s = max(asked_s, ended[number - pace.threads])
        told = -((pace.ahead - 1 - number) // stride) * stride  # so many are taken when the nodes are told of this one
        told_s = taken[told - 1] if told > 0 and pace.ahead else 0.0
        arrived_s = asked_s + 2 * half_s
        for fetch in fetches:
            while unread and unread_bytes + fetch.size_bytes > fetch.most_ahead_bytes:
                read_by, read_bytes = unread.popleft()
                told_s = max(told_s, taken[read_by] if read_by < number else math.inf)
                unread_bytes -= read_bytes
            begin_s, ahead_s = max(asked_s + half_s, slots[0]), max(told_s + half_s, slots[0], slots_ahead[0])
            is_ahead = bool(pace.ahead) and fetch.is_whole and ahead_s < begin_s
            end_s = (ahead_s if is_ahead else begin_s) + pace.cloud.latency_s * fetch.waves
            if fetch.size_bytes:
                end_s = cloud_free_s = max(end_s, cloud_free_s) + fetch.size_bytes / pace.cloud.bytes_per_s
            heapq.heapreplace(slots, end_s)
            if is_ahead:
                heapq.heapreplace(slots_ahead, end_s)
                unread.append((number, fetch.size_bytes))
                unread_bytes += fetch.size_bytes
            arrived_s = max(arrived_s, end_s + half_s)
        free_s = max(free_s, arrived_s) + size_bytes / pace.store.bytes_per_s
        ended.append(free_s)
        wanted_s = taken[-1] + pace.step_s if taken else 0.0
        waited_s += max(0.0, free_s - wanted_s)
        taken.append(max(free_s, wanted_s))
    return waited_s
