"""Forecast: the requests, bytes, waiting and cost of the epochs of a plan, before they run."""

from __future__ import annotations

import itertools
import math
import os
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from ais_loader.errors import InvalidRequest
from ais_loader.objects.client import Client
from ais_loader.plans.groups import whole_number
from ais_loader.training.cold_reads import ColdObject, ColdReads, Fetch, PartRead, hit_rates
from ais_loader.training.ledger import begun, step_entries, store_of
from ais_loader.training.number_batches import fetches_entries
from ais_loader.training.plan import split_steps
from ais_loader.training.plan_position import PlanPosition
from ais_loader.training.waiting_model import Door, LoaderPace, wait_s
from ais_loader.values.entry import Entry, ObjectInfo
from ais_loader.values.requests import MAX_ENTRIES_PER_REQUEST
from ais_loader.wire.remote import Remote
from ais_loader.wire.reserved import ETAG_VERSION

_SHARES = (0.125, 0.25, 0.5, 0.75, 1.0)
_PROBES = 3
_LEAST_S = 1e-6
_FREE = Door(0.0, 1e15)
"""The door of what is not read."""
_METERED = ("gets", "heads", "cloud_bytes")


class _PlanStep(NamedTuple):
    epoch: int
    turn: int
    """Number of the batch for its rank."""
    parts: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochForecast:
    """Figures of one epoch: of all ranks together, but for the waiting of each."""

    epoch: int
    steps: int
    entries: int
    """Number of entries, of which one of several ranges counts as so many."""
    requests: int
    """Requests for batches to the store, by datasets of the same options."""
    payload_bytes: int
    """Bytes of all entries; of a transform's, before it."""
    gets: int
    heads: int
    cloud_bytes: int
    """Requests to remote storage, and bytes from there."""
    hit_rate: float
    """Share of the reads of remote buckets that find a stored copy; 1 without reads."""
    wait_s: float
    """Time that a trainer waits for batches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Expected figures of epochs, which `forecast` returns."""

    epochs: list[EpochForecast]
    distinct_bytes: int
    """Bytes of all entries, each counted once."""
    cache_bytes: int
    """Bytes of the objects of remote buckets: a cache of this size fetches each of them once."""
    hit_rates: list[tuple[int, float]]
    """Sizes of caches, and the share of reads that find a copy in one that begins empty and does not know the plan, by
    their reuse distance."""
    missing: int
    """Number of objects that do not exist."""
    unknown: int
    """Number of distinct members of cold archives whose sizes are not known, and count as 0."""
    store: Door
    cloud: Door
    meter: dict[str, dict[str, int]]
    """Requests and bytes that the store had counted for each remote bucket before."""

    def cost(self, per_1000_requests: float, per_gb: float) -> float:
        """Return the price of the requests to remote storage, and of the bytes from there (in 10**9)."""
        requests = sum(one.gets + one.heads for one in self.epochs)
        return requests / 1000 * per_1000_requests + sum(one.cloud_bytes for one in self.epochs) / 1e9 * per_gb


def compared(
    fields: Mapping[str, Any], client: Client, summary: Mapping[str, Any] | None = None
) -> dict[str, tuple[float, float]]:
    """Return what was expected of all epochs together, and what was measured since, by name.

    `fields` and `summary` are those of a Forecast and, of one rank, of `BatchLoader.summary()`, as `asdict` returns
    them. The store's counters begin anew when a node restarts. Raises InvalidRequest, NodeUnavailable.
    """
    try:
        before, now = fields["meter"], _meter(client, fields["meter"])
        measured = {name: sum(now[one][name] - before[one][name] for one in before) for name in _METERED}
        measured |= {name: summary[name] for name in ("entries", "payload_bytes", "wait_s") if summary is not None}
        return {name: (sum(one[name] for one in fields["epochs"]), found) for name, found in measured.items()}
    except (KeyError, TypeError) as error:
        raise InvalidRequest(f"no forecast as --json prints it, or no summary: {error!r}") from error


def forecast(
    loader: Any,
    state: Mapping[str, Any] | None = None,
    *,
    epochs: int = 1,
    step_s: float = 0.0,
    store: tuple[float, float] | None = None,
    cloud: tuple[float, float] | None = None,
    cache_bytes: int | None = None,
) -> Forecast:
    """Return what the next epochs of a loader request, and how long its trainer waits.

    Args:
        loader: A BatchLoader of a plan, or a DataLoader with a BatchSampler.
        state: The position to begin at, which also has the number of ranks; by default that of the loader.
        epochs: The number of epochs, of which the first may have begun.
        step_s: The time of a training step, in seconds.
        store, cloud: Latency in seconds, and bytes per second, of the store, and of remote storage behind it. Those
            that are not given are measured: the first batch is read, and is stored from then on.
        cache_bytes: The most bytes of copies of each remote bucket; by default the bucket's own, on all nodes.

    Sizes come from the store, those of cold objects from an inventory, a listing, or one HEAD each. Raises
    InvalidRequest, for instance for an epoch without an end, and the errors of reading.
    """
    for latency_s, bytes_per_s in (store or _FREE, cloud or _FREE):
        if not (0 <= latency_s < math.inf and 0 < bytes_per_s < math.inf and 0 <= step_s < math.inf):
            wrong = f"store={store}, cloud={cloud}, step_s={step_s}"
            raise InvalidRequest(f"forecast: {wrong}: need times of 0 or more, and rates above 0")
    if cache_bytes is not None:
        whole_number("forecast", "cache_bytes", cache_bytes, 0)
    own: Any = loader if hasattr(loader, "state_dict") else getattr(loader, "batch_sampler", None)
    state = own.state_dict() if state is None and hasattr(own, "state_dict") else state or {}
    position, dataset = begun(loader, state)
    of = store_of(dataset)
    steps, numbers = _drawn(position, dataset, state, whole_number("forecast", "epochs", epochs, 1))
    with of.opened() as client:
        limits, nodes = _limits(client)
        can_send = fetches_entries(dataset) and of.is_shared and limits["remote_prefetch_requests"]
        ahead = getattr(loader, "_expect_steps", 0) if can_send else 0
        described = partial(PlanContents, client, limits["remote_large_object_bytes"], is_ahead=ahead > 0)
        if steps and (store is None or cloud is None):
            first = [*numbers][: max(steps[0].parts, default=0) + 1]
            measured = _probed(client, described(first), first)
            store, cloud = store or measured[0], cloud or measured[1]
        contents = described(numbers)
        known = [(part.bucket, *contents.read(part)) for part in numbers]
        meter = _meter(client, contents.remotes)
    for number, step in enumerate(steps):
        for read in filter(None, (known[at][2] for at in step.parts)):
            read.of.uses.append(number)
    rates = [*hit_rates([*contents.cold.values()], _SHARES)]
    models: dict[str, ColdReads] = {}
    for bucket, remote in contents.remotes.items():
        budget = remote.cache_bytes * nodes if cache_bytes is None else cache_bytes
        models[bucket] = ColdReads(limits, budget, is_ahead=ahead > 0)
    for (bucket, _), cold in contents.cold.items():
        if cold.is_stored:
            models[bucket].keep(cold, -1)
    workers = getattr(loader, "_worker_count", 0)
    pace = LoaderPace(
        store=Door(*(store or _FREE)),
        cloud=Door(*(cloud or _FREE)),
        step_s=step_s,
        in_flight=min(getattr(loader, "_in_flight", 1), 2 * workers or sys.maxsize),
        threads=0 if of.is_remote else workers or getattr(loader, "_threads", 1),
        ahead=ahead,
        requests=limits["remote_max_requests"],
        requests_ahead=limits["remote_prefetch_requests"],
    )
    return Forecast(
        epochs=[
            _counted([*group], known, models, pace)
            for _, group in itertools.groupby(enumerate(steps), lambda one: one[1].epoch)
        ],
        distinct_bytes=sum(size_bytes or 0 for _, size_bytes, _ in known),
        cache_bytes=sum(one.size_bytes for one in contents.cold.values()),
        hit_rates=rates,
        missing=sum(info is None for info in contents.infos.values()),
        unknown=sum(size_bytes is None for _, size_bytes, _ in known),
        store=pace.store,
        cloud=pace.cloud,
        meter=meter,
    )


def _drawn(
    position: PlanPosition, dataset: Any, state: Mapping[str, Any], epochs: int
) -> tuple[list[_PlanStep], dict[PlanPart, int]]:
    """Return the steps of all ranks, which take turns, and the numbers of the distinct parts in them."""
    plan, world_size, numbers = position.bound(state["step"]), state["world_size"], dict[PlanPart, int]()
    steps: list[_PlanStep] = []
    for epoch in range(state["epoch"], state["epoch"] + epochs):
        count, start = plan.steps(epoch), state["step"] if epoch == state["epoch"] else 0
        if count is None:
            raise InvalidRequest(f"epoch {epoch} of the plan has no end; epoch_steps=N gives it one")
        for rank in range(world_size):
            mine = split_steps(count, start=start, rank=rank, world_size=world_size, tail=position._tail)
            for turn, step in enumerate(mine):
                entries = step_entries(dataset, plan.batch(epoch, step % count))
                parts = [numbers.setdefault(part, len(numbers)) for entry in entries for part in PlanPart.all_of(entry)]
                steps.append(_PlanStep(epoch, turn, parts))
    return sorted(steps, key=lambda one: one[:2]), numbers


def _counted(
    steps: Sequence[tuple[int, _PlanStep]],
    known: Sequence[tuple[str, int | None, PartRead | None]],
    models: Mapping[str, ColdReads],
    pace: LoaderPace,
) -> EpochForecast:
    """Return the figures of one epoch."""
    rounds: dict[int, tuple[int, list[Fetch]]] = {}
    before = _counts(models)
    for number, step in steps:
        size_bytes, fetches = rounds.get(step.turn, (0, []))
        parts = [known[at] for at in step.parts]
        for bucket in {bucket for bucket, _, read in parts if read is not None}:
            fetches += models[bucket].fetches(number, [read for of, _, read in parts if read and of == bucket])
        rounds[step.turn] = size_bytes + sum(one or 0 for _, one, _ in parts), fetches
    reads, hits = (now - earlier for now, earlier in zip(_counts(models), before, strict=True))
    all_fetches = [fetch for _, fetches in rounds.values() for fetch in fetches]
    return EpochForecast(
        epoch=steps[0][1].epoch,
        steps=len(steps),
        entries=sum(len(step.parts) for _, step in steps),
        requests=sum(-(-len(step.parts) // MAX_ENTRIES_PER_REQUEST) for _, step in steps),
        payload_bytes=sum(size_bytes for size_bytes, _ in rounds.values()),
        gets=sum(fetch.gets for fetch in all_fetches),
        heads=sum(fetch.heads for fetch in all_fetches),
        cloud_bytes=sum(fetch.size_bytes for fetch in all_fetches),
        hit_rate=hits / reads if reads else 1.0,
        wait_s=wait_s(rounds.values(), pace),
    )


def _counts(models: Mapping[str, ColdReads]) -> tuple[int, int]:
    return sum(one.reads for one in models.values()), sum(one.hits for one in models.values())


def _limits(client: Client) -> tuple[dict[str, int], int]:
    """Return the settings of the nodes that are whole numbers, and the number of nodes."""
    described: Any = client.describe()
    nodes = described.get("nodes") or [described]
    limits: dict[str, str] = next(node["limits"] for node in nodes if "limits" in node)
    return {name: int(text) for name, text in limits.items() if text.isdecimal()}, len(nodes)


def _probed(client: Client, contents: PlanContents, parts: Sequence[PlanPart]) -> tuple[Door, Door]:
    """Measure the store, and remote storage behind it: read the first batch while it is cold, and again."""

    def read(*wanted: PlanPart) -> float:
        return _took_s(lambda: list(client.get_batch([part.entry() for part in wanted], on_error="placeholder")))

    sizes = {part: contents.read(part)[0] or 0 for part in parts}
    cold = {part[:2] for part in parts if part[:2] in contents.cold and not contents.cold[part[:2]].is_stored}
    heads = [partial(client.bucket(bucket).head, name) for bucket, name in [*cold][:_PROBES]]
    head_s, cold_s = min(map(_took_s, heads), default=0.0), read(*parts)
    latency_s = min(read(min(parts, key=sizes.__getitem__)) for _ in range(_PROBES))
    took_s = min(read(*parts) for _ in range(_PROBES))
    store = Door(latency_s, sum(sizes.values()) / max(took_s - latency_s, _LEAST_S))
    cold_bytes = sum(contents.cold[at].size_bytes for at in cold)
    return store, Door(max(0.0, head_s - latency_s), cold_bytes / max(cold_s - head_s, _LEAST_S)) if cold else _FREE


def _took_s(call: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    call()
    return time.perf_counter() - began_s


def _meter(client: Client, buckets: Collection[str]) -> dict[str, dict[str, int]]:
    found = {bucket: dict.fromkeys(_METERED, 0) for bucket in buckets}
    for row in client.remote_usage() if buckets else ():
        counts = row.requests.get("get", 0), row.requests.get("head", 0), row.bytes_in
        for name, count in zip(_METERED, counts, strict=True) if row.bucket in found else ():
            found[row.bucket][name] += count
    return found


_LISTED = 100
"""Number of names of a remote bucket from which on they are listed, a thousand with each request."""
_BLOCK_BYTES = 512
"""Headers of a tar have as many bytes, and members are padded to a multiple."""


class PlanPart(NamedTuple):
    """One request of an entry: an object or a member, or a range of it. `length` -1: to its end."""

    bucket: str
    name: str
    member: str
    start: int
    length: int

    @classmethod
    def all_of(cls, entry: Entry) -> list[PlanPart]:
        """Return the parts of an entry. A transform reads the whole of what it names."""
        ranges = ((0, None),) if entry.etl is not None else entry.ranges or ((entry.start, entry.length),)
        place = entry.bucket, entry.name, entry.member or ""
        return [cls(*place, start, -1 if length is None else length) for start, length in ranges]

    def entry(self) -> Entry:
        return Entry(self.bucket, self.name, self.member or None, self.start, None if self.length < 0 else self.length)


class PlanContents:
    """
    Attributes:
        remotes: The buckets of which cold objects can be fetched.
        cold: Their objects, stored or not, by bucket and name.
        infos: All objects; None for those that do not exist.
    """

    def __init__(self, client: Client, large_bytes: int, parts: Iterable[PlanPart], *, is_ahead: bool) -> None:
        """`is_ahead`: archives are fetched as a whole, and it does not matter where their members are."""
        self._client, self._large, self._is_ahead = client, large_bytes, is_ahead
        self._members: dict[tuple[str, str], dict[str, tuple[int, int]]] = {}
        self.remotes: dict[str, Remote] = {}
        self.cold: dict[tuple[str, str], ColdObject] = {}
        self.infos: dict[tuple[str, str], ObjectInfo | None] = {part[:2]: None for part in parts}
        for bucket in dict.fromkeys(bucket for bucket, _ in self.infos):
            wanted, of = [name for of, name in self.infos if of == bucket], client.bucket(bucket)
            remote = of.info().remote if "@" not in bucket and client._transport.can_expect(bucket) else None
            if remote is not None and remote.can_list and (remote.inventory or len(wanted) > _LISTED):
                prefix = os.path.commonprefix(wanted)  # noqa: RUF071 - names are no paths
                self.infos |= {at: info for info in of.objects(prefix) if (at := (bucket, info.name)) in self.infos}
            left = [name for name in wanted if self.infos[bucket, name] is None]
            self.infos |= {(bucket, name): info for name, info in zip(left, of.head_many(left), strict=True)}
            if remote is not None:
                self.remotes[bucket] = remote
                for name in wanted:
                    if (info := self.infos[bucket, name]) is not None:
                        validated = remote.validate_after_s == 0
                        self.cold[bucket, name] = ColdObject(info.size_bytes, info.is_stored, validated)

    def read(self, part: PlanPart) -> tuple[int | None, PartRead | None]:
        """Return the bytes of a part, None if they are not known; and the read of a remote object, if it is one."""
        info, cold, at = self.infos[part[:2]], self.cold.get(part[:2]), 0
        size_bytes = 0 if info is None else info.size_bytes
        if part.member and info is not None:
            is_plain = part.name.lower().endswith((".tar", ".zip"))
            if not info.is_stored and not (is_plain and not self._is_ahead and size_bytes > self._large):
                return None, None if cold is None else PartRead(cold, 0, 0 if is_plain else -1)
            at, size_bytes = self._members_of(info).get(part.member, (0, 0))
        length = max(0, size_bytes - part.start)
        length = length if part.length < 0 else min(length, part.length)
        if cold is None or part[2:] == ("", 0, -1):
            return length, None if cold is None else PartRead(cold)
        return length, PartRead(cold, at + part.start, at + part.start + length, bool(part.member))

    def _members_of(self, info: ObjectInfo) -> dict[str, tuple[int, int]]:
        """Return the place and size of each member: of a tar without long names; those of others are about there."""
        key, at = (info.bucket, info.name), _BLOCK_BYTES
        if key not in self._members:
            found = self._members[key] = {}
            for one in self._client.bucket(info.bucket).members(info.name):
                found[one.name] = at, one.size_bytes
                at += _BLOCK_BYTES + one.size_bytes + -one.size_bytes % _BLOCK_BYTES
                if (cold := self.cold.get(key)) is not None:  # the nodes know it by now, or have stored it
                    cold.requested_bytes = 0
                    cold.is_stored |= not one.version.startswith(ETAG_VERSION)
        return self._members[key]
