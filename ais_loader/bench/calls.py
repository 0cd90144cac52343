"""Calls of each workload: the requests that one thread of a measurement repeats.

A call is the unit of latency: one GET, one batch, one listing, one session. A workload is a generator that makes one
call after another and yields their results. An exception counts as an error; the generator is then started again.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from itertools import count, islice
from typing import NamedTuple

import numpy as np

import ais_loader
from ais_loader.bench.filling import WRITTEN, content, equal
from ais_loader.bench.plan import BenchPlan, Sizes
from ais_loader.objects.client import Client, WithOpaque
from ais_loader.values.entry import Entry, Item
from ais_loader.values.options import ClusterOptions

WRONG_BYTES = "wrong-bytes"
"""Kind of error of data that arrived completely but is not what was put."""


class Done(NamedTuple):
    """Result of one call: its duration, the objects and bytes received, and kinds of errors of single objects."""

    elapsed_ns: int
    objects: int
    size_bytes: int
    errors: tuple[str, ...] = ()


def connected(plan: BenchPlan) -> Client:
    """Connect a client for the plan."""
    if plan.embedded:
        return ais_loader.connect(plan.url, mode="a" if plan.writes else "r")
    return ais_loader.connect(plan.url, options=ClusterOptions(retry_s=plan.retry_s, lane=plan.lane))


def numbers(plan: BenchPlan, worker: int, epochs: int, salt: int = 0) -> Iterator[int]:
    """Yield object numbers in an order specific to this worker: all, repeatedly; or its share of each of `epochs`."""
    for epoch in range(epochs) if epochs else count():
        seed = [epoch, salt, 0 if epochs else worker + 1]
        order = np.random.default_rng(seed).permutation(plan.objects)
        yield from (order[worker :: plan.workers] if epochs else order).tolist()


class Calls:
    """Calls of one thread, number `worker` of all of the plan's workers, on a client shared by its process."""

    def __init__(self, plan: BenchPlan, client: Client, worker: int) -> None:
        self.plan = plan
        self._client = client
        self._bucket = client.bucket(plan.bucket)
        self._name = f"{plan.prefix}{{:09d}}".format
        self._sizes: Sizes = plan.sizes
        self._drawn = random.Random(worker)
        self._written = f"{WRITTEN}{worker:05d}/"

    def run(self, wanted: Iterator[int]) -> Iterator[Done]:
        """Make calls until `wanted` ends. Listings and sessions make one call for each number or group."""
        runs: dict[str, Callable[[Iterator[int]], Iterator[Done]]] = {
            "get": lambda wanted: map(self._get, wanted),
            "get-batch": self._batches,
            "members": self._batches,
            "ranges": self._batches,
            "list": lambda wanted: map(self._list, wanted),
            "sessions": lambda wanted: map(self._session, self._groups(wanted)),
            "put": lambda wanted: map(self._put, wanted),
            "put-many": lambda wanted: map(self._put_many, self._groups(wanted)),
            "mixed": lambda wanted: map(self._mixed, wanted),
        }
        return runs[self.plan.workload](wanted)

    def _groups(self, wanted: Iterator[int]) -> Iterator[list[int]]:
        while group := list(islice(wanted, self.plan.batch)):
            yield group

    def _get(self, number: int) -> Done:
        start = time.perf_counter_ns()
        data = self._bucket.get(self._name(number))
        elapsed = time.perf_counter_ns() - start
        return Done(elapsed, 1, len(data), self._byte_errors(data, number))

    def _put(self, number: int) -> Done:
        data = content(number, self._sizes.of(number))
        start = time.perf_counter_ns()
        info = self._bucket.put(f"{self._written}{number:09d}", data)
        elapsed = time.perf_counter_ns() - start
        return Done(elapsed, 1, info.size_bytes, self._differs(info.size_bytes, len(data)))

    def _put_many(self, group: list[int]) -> Done:
        objects = [(f"{self._written}{number:09d}", content(number, self._sizes.of(number))) for number in group]
        start = time.perf_counter_ns()
        self._bucket.put_many(objects)
        elapsed = time.perf_counter_ns() - start
        size = sum(len(data) for _, data in objects)
        return Done(elapsed, len(objects), size)

    def _mixed(self, number: int) -> Done:
        return self._put(number) if self._drawn.random() * 100 < self.plan.puts_percent else self._get(number)

    def _list(self, _: int) -> Done:
        start = time.perf_counter_ns()
        objects = sum(1 for _ in self._bucket.objects(self.plan.prefix))
        elapsed = time.perf_counter_ns() - start
        return Done(elapsed, objects, 0, self._differs(objects, self.plan.objects))

    def _session(self, group: list[int]) -> Done:
        start = time.perf_counter_ns()
        with connected(self.plan) as client:
            entries = [self._entry(number) for number in group]
            objects, size, errors = self._consume(client.get_batch(entries, on_error="placeholder"))
        return Done(time.perf_counter_ns() - start, objects, size, errors)

    def _batches(self, wanted: Iterator[int]) -> Iterator[Done]:
        """Fetch batches with the next ones in flight. The latency of a batch begins when it is requested."""
        requests = (
            WithOpaque([self._entry(number) for number in group], time.perf_counter_ns())
            for group in self._groups(wanted)
        )
        for batch in self._client.get_batches(requests, in_flight=self.plan.in_flight, on_error="placeholder"):
            objects, size, errors = self._consume(batch)
            yield Done(time.perf_counter_ns() - batch.opaque, objects, size, errors)

    def _entry(self, number: int) -> Entry:
        plan = self.plan
        if plan.workload == "members":
            archive, member = plan.archive(number)
            return Entry(plan.bucket, archive, member, opaque=number)
        if plan.workload == "ranges":
            length = min(plan.range_bytes, self._sizes.of(number))
            start = self._drawn.randint(0, self._sizes.of(number) - length)
            return Entry(plan.bucket, self._name(number), start=start, length=length, opaque=number)
        return Entry(plan.bucket, self._name(number), opaque=number)

    def _consume(self, batch: ais_loader.Batch) -> tuple[int, int, tuple[str, ...]]:
        objects = size = 0
        errors: list[str] = []
        for item in batch:
            if item.error is not None:
                errors.append(item.error.kind)
                continue
            objects += 1
            size += len(item.data)
            if self.plan.verify:
                errors += self._item_errors(item)
        return objects, size, tuple(errors)

    def _item_errors(self, item: Item) -> tuple[str, ...]:
        entry = item.entry
        return self._byte_errors(item.data, entry.opaque, entry.start, entry.length)

    def _byte_errors(
        self, data: bytes | memoryview, number: int, start: int = 0, length: int | None = None
    ) -> tuple[str, ...]:
        if not self.plan.verify:
            return ()
        size = self._sizes.of(number)
        whole = len(data) == (size - start if length is None else length)
        return () if whole and equal(data, number, size, start) else (WRONG_BYTES,)

    @staticmethod
    def _differs(found: int, wanted: int) -> tuple[str, ...]:
        return () if found == wanted else (WRONG_BYTES,)
