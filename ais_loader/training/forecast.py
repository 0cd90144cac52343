"""Forecast: the requests, bytes, waiting and cost of the epochs of a plan, before they run."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from ais_loader.errors import InvalidRequest
from ais_loader.objects.client import Client
from ais_loader.plans.groups import whole_number
from ais_loader.training.cold_reads import ColdReads, Fetch, PartRead, hit_rates
from ais_loader.training.ledger import begun, step_entries, store_of
from ais_loader.training.number_batches import fetches_entries
from ais_loader.training.plan import split_steps
from ais_loader.training.plan_contents import Part, PlanContents, entry_of_part, parts_of_entry
from ais_loader.training.waiting_model import Door, Pace, waits_s
from ais_loader.values.requests import MAX_ENTRIES_PER_REQUEST

_SHARES = (0.125, 0.25, 0.5, 0.75, 1.0)
_PROBES = 3
_LEAST_S = 1e-6
_FREE = Door(0.0, 1e15)
"""The door of what is not read: it takes no time."""
_LIMITS = (
    "remote_large_object_bytes",
    "remote_range_bytes",
    "remote_ranges_per_object",
    "remote_max_requests",
    "remote_prefetch_requests",
)


class _Step(NamedTuple):
    epoch: int
    turn: int
    """Number of the batch for its rank."""
    entries: int
    parts: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochForecast:
    """Figures of one epoch, for all ranks together."""

    epoch: int
    steps: int
    """Number of batches that are left of it."""
    entries: int
    requests: int
    """Requests for batches to the store."""
    payload_bytes: int
    """Bytes of all entries. Those of a transform are counted as it reads them."""
    gets: int
    heads: int
    """Requests to remote storage."""
    cloud_bytes: int
    """Bytes that leave remote storage."""
    hit_rate: float
    """Share of the reads of remote buckets that find a stored copy; 1 if there are none."""
    wait_s: float
    """Time that the trainer of a rank waits for batches, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Expected figures of epochs, which `forecast` returns."""

    epochs: tuple[EpochForecast, ...]
    distinct_bytes: int
    """Bytes of all entries, each counted once."""
    cache_bytes: int
    """Bytes of all objects of remote buckets: a cache of this size fetches each of them once."""
    hit_rates: tuple[tuple[int, float], ...]
    """Sizes of a cache in bytes, and the share of the reads of remote buckets that find a copy there by their reuse
    distance: in a cache that begins empty, and does not know the plan."""
    missing: int
    """Number of objects that do not exist."""
    unknown: int
    """Number of distinct entries whose sizes are not known, and count as 0: members of archives that are cold."""
    store: Door
    cloud: Door
    """Latency and rate, as given or measured."""
    buckets: tuple[str, ...]
    """The remote buckets."""
    meter: dict[str, int]
    """Requests and bytes that the store had counted for them when the forecast was made."""

    def compared(self, client: Client, summary: Mapping[str, Any] | None = None) -> dict[str, tuple[float, float]]:
        """Return what was expected of all epochs together, and what was measured since the forecast, by name.

        Args:
            client: The store. Its counters begin anew when a node restarts.
            summary: The fields of `BatchLoader.summary()`, of one rank.

        Raises NodeUnavailable.
        """
        now, summary = _meter(client, self.buckets), summary or {}
        measured = {name: now[name] - before for name, before in self.meter.items()}
        measured |= {name: summary[name] for name in ("entries", "payload_bytes", "wait_s") if name in summary}
        return {name: (sum(getattr(one, name) for one in self.epochs), found) for name, found in measured.items()}

    @classmethod
    def of_json(cls, fields: Mapping[str, Any]) -> Forecast:
        """Return the forecast that `dataclasses.asdict` has turned into a JSON object. Raises InvalidRequest."""
        try:
            epochs = tuple(EpochForecast(**one) for one in fields["epochs"])
            doors = {name: Door(*fields[name]) for name in ("store", "cloud")}
            return cls(**{**fields, **doors, "epochs": epochs})
        except (KeyError, TypeError) as error:
            raise InvalidRequest(f"not a forecast, as `ais-loader forecast --json` writes it: {error}") from error


def forecast(
    loader: Any,
    state: Mapping[str, Any] | None = None,
    *,
    epochs: int = 1,
    step_s: float = 0.0,
    store: Door | None = None,
    cloud: Door | None = None,
    cache_bytes: int | None = None,
) -> Forecast:
    """Return what the next epochs of a loader request, and how long its trainer waits. No data is read but by a probe.

    Args:
        loader: A BatchLoader of a plan, or a DataLoader with a BatchSampler.
        state: The position to begin at, which also has the number of ranks; by default that of the loader.
        epochs: The number of epochs, of which the first may have begun.
        step_s: The time of a training step, in seconds.
        store, cloud: Latency and rate of the store, and of the remote storage behind it. Those that are not given are
            measured: the first batch is read, and what was cold of it is stored from then on.
        cache_bytes: The most bytes of copies of each remote bucket; by default the bucket's own, on all nodes.

    Sizes come from the store, and those of cold objects from the inventory, a listing, or one HEAD each. Raises
    InvalidRequest, for instance for an epoch without an end, and the errors of reading.
    """
    steps, numbers = _drawn(loader, state, epochs)
    of = store_of(loader.dataset)
    expect_steps = getattr(loader, "_expect_steps", 0) if fetches_entries(loader.dataset) and of.is_shared else 0
    with of.opened() as client:
        limits, nodes = _limits(client)
        expect_steps = expect_steps if limits["remote_prefetch_requests"] else 0
        first = [*numbers][: max(steps[0].parts, default=-1) + 1] if steps else []
        described = partial(PlanContents, client, limits["remote_large_object_bytes"], is_ahead=expect_steps > 0)
        if store is None or cloud is None:
            probed = _probed(client, described(first), first)
            store, cloud = store or probed[0], cloud or probed[1]
        contents = described(numbers)
        known = [contents.read(part) for part in numbers]
        meter = _meter(client, contents.remotes)
    for number, one in enumerate(steps):
        for read in filter(None, (known[at][1] for at in one.parts)):
            read.of.uses.append(number)
    models, rates = dict[str, ColdReads](), list[float]()
    for bucket, remote in contents.remotes.items():
        budget = remote.cache_bytes * nodes if cache_bytes is None else cache_bytes
        models[bucket] = ColdReads(limits, budget, is_ahead=expect_steps > 0)
        rates += [remote.max_requests_per_s * nodes] if remote.max_requests_per_s else []
    for (bucket, _), cold in contents.cold.items():
        if cold.is_cached:
            models[bucket].keep(cold)
    workers = getattr(loader, "_worker_count", 0)
    pace = Pace(
        store=store,
        cloud=cloud,
        step_s=step_s,
        in_flight=min(getattr(loader, "_in_flight", 1), 2 * workers or sys.maxsize),
        threads=0 if of.is_remote else workers or getattr(loader, "_threads", 1),
        expect_steps=expect_steps,
        requests=limits["remote_max_requests"],
        requests_ahead=limits["remote_prefetch_requests"],
        requests_per_s=min(rates, default=0.0),
    )
    buckets = [part.bucket for part in numbers]
    return Forecast(
        epochs=tuple(
            _counted([*group], buckets, known, models, pace)
            for _, group in itertools.groupby(enumerate(steps), lambda one: one[1].epoch)
        ),
        distinct_bytes=sum(size_bytes or 0 for size_bytes, _ in known),
        cache_bytes=sum(one.size_bytes for one in contents.cold.values()),
        hit_rates=tuple(hit_rates([*contents.cold.values()], _SHARES)),
        missing=contents.missing,
        unknown=sum(size_bytes is None for size_bytes, _ in known),
        store=store,
        cloud=cloud,
        buckets=tuple(contents.remotes),
        meter=meter,
    )


def _drawn(loader: Any, state: Mapping[str, Any] | None, epochs: int) -> tuple[list[_Step], dict[Part, int]]:
    """Return the steps of all ranks, as they take turns, and the number of each distinct part in them."""
    sampler: Any = loader if hasattr(loader, "state_dict") else getattr(loader, "batch_sampler", None)
    if state is None:
        state = sampler.state_dict() if hasattr(sampler, "state_dict") else {}
    position, dataset = begun(loader, state)
    plan, world_size, numbers = position.bound(state["step"]), int(state["world_size"]), dict[Part, int]()
    steps: list[_Step] = []
    for epoch in range(state["epoch"], state["epoch"] + whole_number("forecast", "epochs", epochs, 1)):
        count, start = plan.steps(epoch), state["step"] if epoch == state["epoch"] else 0
        if count is None:
            raise InvalidRequest(f"epoch {epoch} of the plan has no end; epoch_steps=N gives it one")
        ranks = (
            split_steps(count, start=start, rank=rank, world_size=world_size, tail=position._tail)
            for rank in range(world_size)
        )
        for turn, row in enumerate(itertools.zip_longest(*ranks)):
            for step in row:
                if step is not None:
                    entries = step_entries(dataset, plan.batch(epoch, step % count))
                    parts = [
                        numbers.setdefault(part, len(numbers)) for entry in entries for part in parts_of_entry(entry)
                    ]
                    steps.append(_Step(epoch, turn, len(entries), parts))
    return steps, numbers


def _counted(
    steps: Sequence[tuple[int, _Step]],
    buckets: Sequence[str],
    known: Sequence[tuple[int | None, PartRead | None]],
    models: Mapping[str, ColdReads],
    pace: Pace,
) -> EpochForecast:
    """Return the figures of one epoch, whose steps are numbered over all epochs."""
    rounds: dict[int, tuple[int, list[Fetch]]] = {}
    reads_before = [sum(getattr(model, name) for model in models.values()) for name in ("reads", "hits")]
    for number, step in steps:
        size_bytes, fetches = rounds.get(step.turn, (0, []))
        wanted: dict[str, list[PartRead]] = {}
        for at in step.parts:
            size_bytes += known[at][0] or 0
            if (read := known[at][1]) is not None:
                wanted.setdefault(buckets[at], []).append(read)
        for bucket, parts in wanted.items():
            fetches += models[bucket].fetches(number, parts)
        rounds[step.turn] = size_bytes, fetches
    all_fetches = [fetch for _, fetches in rounds.values() for fetch in fetches]
    reads, hits = (
        sum(getattr(model, name) for model in models.values()) - before
        for name, before in zip(("reads", "hits"), reads_before, strict=True)
    )
    return EpochForecast(
        epoch=steps[0][1].epoch,
        steps=len(steps),
        entries=sum(step.entries for _, step in steps),
        requests=sum(-(-len(step.parts) // MAX_ENTRIES_PER_REQUEST) for _, step in steps),
        payload_bytes=sum(size_bytes for size_bytes, _ in rounds.values()),
        gets=sum(fetch.gets for fetch in all_fetches),
        heads=sum(fetch.heads for fetch in all_fetches),
        cloud_bytes=sum(fetch.size_bytes for fetch in all_fetches),
        hit_rate=hits / reads if reads else 1.0,
        wait_s=sum(waits_s(rounds.values(), pace)),
    )


def _limits(client: Client) -> tuple[dict[str, int], int]:
    """Return the settings of the nodes for remote storage, and the number of nodes."""
    described: Any = client.describe()
    nodes = described.get("nodes") or [described]
    limits: Any = next((node["limits"] for node in nodes if "limits" in node), {})
    return {name: int(limits[name]) for name in _LIMITS}, len(nodes)


def _probed(client: Client, contents: PlanContents, parts: Sequence[Part]) -> tuple[Door, Door]:
    """Measure the store and the remote storage behind it: read the first batch while it is cold, and again."""
    if not parts:
        return _FREE, _FREE
    size_of = {part: contents.read(part)[0] or 0 for part in parts}
    cold = {part[:2] for part in parts if part[:2] in contents.cold and not contents.cold[part[:2]].is_cached}
    head_s = min(
        (_took_s(partial(client.bucket(bucket).head, name)) for bucket, name in [*cold][:_PROBES]), default=0.0
    )

    def read(wanted: Sequence[Part]) -> float:
        return _took_s(lambda: list(client.get_batch([*map(entry_of_part, wanted)], on_error="placeholder")))

    cold_s, one = read(parts), min(parts, key=size_of.__getitem__)
    latency_s, all_s = min(read([one]) for _ in range(_PROBES)), min(read(parts) for _ in range(_PROBES))
    store = Door(latency_s, sum(size_of.values()) / max(all_s - latency_s, _LEAST_S))
    if not cold:
        return store, _FREE
    cold_bytes = sum(contents.cold[at].size_bytes for at in cold)
    return store, Door(max(0.0, head_s - latency_s), cold_bytes / max(cold_s - head_s, _LEAST_S))


def _took_s(call: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    call()
    return time.perf_counter() - began_s


def _meter(client: Client, buckets: Collection[str]) -> dict[str, int]:
    rows = [row for row in client.remote_usage() if row.bucket in buckets] if buckets else []
    counts = {f"{kind}s": sum(row.requests.get(kind, 0) for row in rows) for kind in ("get", "head")}
    return counts | {"cloud_bytes": sum(row.bytes_in for row in rows)}
