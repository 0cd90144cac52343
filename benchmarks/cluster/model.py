"""Model of GetBatch on 4 to 1,000 hosts: a discrete-event simulation, for both ways to assemble a batch.

    python -m benchmarks.cluster.model  # writes model.md and its picture
    python -m benchmarks.cluster.model --quick --folder /tmp/x  # small clusters only

None of our machines can hold such a cluster. The model takes the CPU cost of a request, an entry and a byte from real
nodes and clients, as `benchmarks.cluster.costs` measured them, and the hardware from the paper. Everything that serves
one thing at a time is a first-come-first-served queue: the CPU of a node process and of a worker process (one core
each, because of the GIL), each direction of a host's NIC, a node's share of the drives. Such a queue is one number, the
time at which it is free again, so that a step of the model is one event on a heap.

    target   worker -> designated target -> owners: drive, CPU, NIC -> its NIC, its CPU, re-order -> NIC -> worker
    direct   worker -> owners: drive, CPU, NIC -> the worker's NIC and CPU, which merges

Closed loop: each worker keeps `in_flight` batches in progress and requests the next when one is complete. The model
omits credits (queues grow without bound), lost packets, copies, faults, garbage collection, and the operating system's
other work. The file is long because model, experiments and page are useful only together.
"""

from __future__ import annotations

import gc
import heapq
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import click

from benchmarks.kit.harness import label
from benchmarks.kit.plots import new_figure, save

KIB, MIB = 1 << 10, 1 << 20
FRAME_BYTES = MIB
SOON_S = 5e-6
"""A shorter wait does not get an event of its own."""
SIZES = (10 * KIB, 100 * KIB, MIB)
Mode = Literal["target", "direct"]
MODES: tuple[Mode, ...] = ("target", "direct")


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds of one core. A node process and a client process can use one core each, because of the GIL."""

    node_request_s: float
    """A sub-request of several entries: parsing, planning, reading, and sending the first frame."""
    node_single_s: float
    """A request of one entry, except its bytes."""
    node_entry_s: float
    node_byte_s: float
    """A byte that is read, verified, framed and sent, including later frames of a response."""
    client_request_s: float
    client_single_s: float
    client_entry_s: float
    client_byte_s: float
    read_byte_s: float
    """The part of `node_byte_s` for reading and verifying; the rest is for sending."""
    placement_s: float
    """Scoring one entry for one host, when a batch is placed."""


COSTS: dict[str, Any] = json.loads(Path(__file__).with_name("costs.json").read_text())
"""Figures of `benchmarks.cluster.costs`."""
MEASURED = Costs(**COSTS["costs"], read_byte_s=0.13e-9, placement_s=6.3e-9)


@dataclass(frozen=True, slots=True)
class Hardware:
    """A storage host, and equally a client host. Assumed, not measured: the paper's test, and data sheets."""

    nic_bytes_s: float = 100e9 / 8
    """Bandwidth in each direction."""
    latency_s: float = 50e-6
    """One way through the network and both kernels, for an empty message."""
    drives: int = 12
    drive_bytes_s: float = 5e9
    drive_latency_s: float = 100e-6
    queue_depth: int = 64
    """Concurrent reads per drive."""


LOOPBACK = Hardware(nic_bytes_s=1e15, latency_s=20e-6, drive_bytes_s=1e15, drive_latency_s=0.0)
"""For the comparison with one machine, page cache warm."""


@dataclass(frozen=True, slots=True)
class Setup:
    """One experiment. Each owner contributes `per_owner` entries of a batch; 0: each entry comes from any node."""

    hosts: int
    mode: Literal["target", "direct"]
    size_bytes: int
    entries: int = 128
    per_owner: int = 0
    size_sigma: float = 0.0
    """Sigma of a log-normal distribution with mean `size_bytes`; 0: all entries have that size."""
    workers: int = 0
    """Number of workers; 0: two per host."""
    in_flight: int = 2
    batches: int = 1_000
    """Batches to complete; the first third is warm-up."""
    target_of: Literal["session", "request"] = "session"
    """Whether a worker keeps one target for its session, or draws one for each batch."""
    seed: int = 0
    costs: Costs = MEASURED
    hardware: Hardware = field(default_factory=Hardware)
    record: bool = False
    """Keep the positions that each batch delivered."""

    @property
    def worker_count(self) -> int:
        return self.workers or 2 * self.hosts


@dataclass(slots=True)
class Result:
    elapsed_s: float = 0.0
    bytes_s: float = 0.0
    batches_s: float = 0.0
    latencies_s: list[float] = field(default_factory=list)
    first_s: list[float] = field(default_factory=list)
    """Time until the first frame in request order has arrived."""
    read_bytes: int = 0
    node_to_node_bytes: int = 0
    to_client_bytes: int = 0
    delivered_bytes: int = 0
    node_cpu: tuple[float, float] = (0.0, 0.0)
    """Utilization of the nodes' CPU: mean, and that of the busiest node."""
    worker_cpu: float = 0.0
    nic_out: tuple[float, float] = (0.0, 0.0)
    reorder_bytes: int = 0
    """Most bytes that any target buffered at once."""
    delivered: dict[int, list[int]] = field(default_factory=dict)
    """Positions in the order of delivery, by batch, if recorded."""

    def latency_s(self, percent: float) -> float:
        ordered = sorted(self.latencies_s)
        return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


class _Frame:
    __slots__ = ("asking_s", "count", "feeds", "first", "node", "size")

    def __init__(self, node: int, first: bool) -> None:
        self.node, self.first, self.count, self.size = node, first, 0, 0
        self.asking_s = 0.0
        """Cost of its arrival as the first frame of a response."""
        self.feeds: list[int] = []
        """Frames in request order that wait for it."""


class _Batch:
    __slots__ = ("begun", "lanes", "number", "out", "pending", "sent", "start", "target", "undelivered", "worker")

    def __init__(self, number: int, worker: int, target: int, start: float) -> None:
        self.number, self.worker, self.target, self.start = number, worker, target, start
        self.lanes: list[list[_Frame]] = []
        self.out: list[tuple[int, int, int]] = []
        """Frames in request order: (first position, entries, bytes)."""
        self.pending: list[int] = []
        self.sent = 0
        self.undelivered = 0
        self.begun = False


class Simulation:
    """Runs one setup; deterministic for a seed."""

    def __init__(self, setup: Setup) -> None:
        self.setup, self.costs, self.hardware = setup, setup.costs, setup.hardware
        self.random = random.Random(setup.seed)
        self.result = Result()
        hosts, workers = setup.hosts, setup.worker_count
        self._direct = setup.mode == "direct"
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._serial = 0
        self._cpu = [0.0] * hosts
        self._busy = [0.0] * hosts
        self._drive = [0.0] * hosts
        self._nic_out, self._nic_in = [0.0] * hosts, [0.0] * hosts
        self._nic_bytes = [0] * hosts
        self._worker = [0.0] * workers
        self._worker_busy = 0.0
        self._client_in = [0.0] * hosts
        self._held = [0] * hosts
        self._targets = [self.random.randrange(hosts) for _ in range(workers)]
        self._begun = self._completed = self._warm_bytes = self._warm_batches = 0
        self._warm_at = 0.0
        share = 1 / self.hardware.drives
        self._drive_byte_s = share / self.hardware.drive_bytes_s
        self._drive_read_s = share * self.hardware.drive_latency_s / self.hardware.queue_depth
        self._wire_byte_s = 1.0 / self.hardware.nic_bytes_s
        self._place_s = self.costs.placement_s * hosts if hosts > 1 else 0.0

    def run(self) -> Result:
        setup = self.setup
        for worker in range(setup.worker_count):
            for _ in range(setup.in_flight):
                self._at(self.random.random() * 1e-3, self._start, worker)
        now = 0.0
        while self._completed < setup.batches and self._events:
            now, _, step, arguments = heapq.heappop(self._events)
            step(now, *arguments)
        result = self.result
        result.elapsed_s = now
        result.bytes_s = self._warm_bytes / (now - self._warm_at)
        result.batches_s = self._warm_batches / (now - self._warm_at)
        # Work that is booked but not done when the last batch completes is cut off.
        busy = [max(0.0, used - max(0.0, free - now)) / now for used, free in zip(self._busy, self._cpu, strict=True)]
        result.node_cpu = (sum(busy) / len(busy), max(busy))
        result.worker_cpu = self._worker_busy / now / setup.worker_count
        wire = [min(1.0, sent * self._wire_byte_s / now) for sent in self._nic_bytes]
        result.nic_out = (sum(wire) / len(wire), max(wire))
        return result

    def _at(self, when: float, step: Callable[..., None], *arguments: Any) -> None:
        self._serial += 1
        heapq.heappush(self._events, (when, self._serial, step, arguments))

    def _use_cpu(self, now: float, node: int, cost_s: float) -> float:
        free = self._cpu[node]
        self._busy[node] += cost_s
        self._cpu[node] = done = (free if free > now else now) + cost_s
        return done

    def _use_worker(self, now: float, worker: int, cost_s: float) -> float:
        free = self._worker[worker]
        self._worker_busy += cost_s
        self._worker[worker] = done = (free if free > now else now) + cost_s
        return done

    def _send(self, now: float, node: int, size: int, step: Callable[..., None], *arguments: Any) -> None:
        """Send from a node's host; `step` runs when the last byte reaches an idle receiver."""
        free = self._nic_out[node]
        self._nic_bytes[node] += size
        self._nic_out[node] = done = (free if free > now else now) + size * self._wire_byte_s
        self._at(done + self.hardware.latency_s, step, *arguments)

    def _received(self, now: float, free: list[float], at: int, size: int) -> float:
        free[at] = done = max(now, free[at] + size * self._wire_byte_s)
        return done

    # --- a batch begins -------------------------------------------------------------------------------------------

    def _start(self, now: float, worker: int) -> None:
        setup = self.setup
        target = self._targets[worker] if setup.target_of == "session" else self.random.randrange(setup.hosts)
        batch = _Batch(self._begun, worker, target, now)
        self._begun += 1
        self._draw(batch)
        if setup.record:
            self.result.delivered[batch.number] = []
        costs = self.costs
        if self._direct:
            sent = self._use_worker(now, worker, self._place_s * sum(count for _, count, _ in batch.out))
            for lane in batch.lanes:
                sent = self._use_worker(sent, worker, lane[0].asking_s)
                self._at(sent + self.hardware.latency_s, self._read, batch, lane)
        else:
            sent = self._use_worker(now, worker, costs.client_request_s / 2)
            self._at(sent + self.hardware.latency_s, self._plan, batch)

    def _draw(self, batch: _Batch) -> None:
        """Draw the owner of each entry, and derive the frames and their dependencies."""
        setup, draw = self.setup, self.random
        if setup.per_owner:
            owners = draw.sample(range(setup.hosts), max(1, min(setup.hosts, setup.entries // setup.per_owner)))
            owner_of = owners * setup.per_owner
            draw.shuffle(owner_of)
        else:
            owner_of = [draw.randrange(setup.hosts) for _ in range(setup.entries)]
        lanes: dict[int, list[_Frame]] = {}
        size, first, count, filled = setup.size_bytes, 0, 0, 0
        for at, owner in enumerate(owner_of):
            if setup.size_sigma:
                size = max(1, int(draw.lognormvariate(0.0, setup.size_sigma) * self._mean_factor * setup.size_bytes))
            frames = lanes.get(owner)
            if frames is None:
                frames = lanes[owner] = [_Frame(owner, True)]
            elif frames[-1].size >= FRAME_BYTES:
                frames.append(_Frame(owner, False))
            frame = frames[-1]
            frame.count += 1
            frame.size += size
            if not frame.feeds or frame.feeds[-1] != len(batch.out):
                frame.feeds.append(len(batch.out))
            count, filled = count + 1, filled + size
            if filled >= FRAME_BYTES or at == len(owner_of) - 1:
                batch.out.append((first, count, filled))
                first, count, filled = at + 1, 0, 0
        batch.lanes = list(lanes.values())
        batch.undelivered = len(batch.out)
        batch.pending = [0] * len(batch.out)
        for frames in batch.lanes:
            frames[0].asking_s = self._asking_s(frames)
            for frame in frames:
                for fed in frame.feeds:
                    batch.pending[fed] += 1

    @property
    def _mean_factor(self) -> float:
        return float(2.718281828459045 ** (-(self.setup.size_sigma**2) / 2))

    def _asking_s(self, lane: list[_Frame]) -> float:
        """Return half of a request's cost for its sender; the other half is due when the response arrives."""
        single = len(lane) == 1 and lane[0].count == 1
        return (self.costs.client_single_s if single else self.costs.client_request_s) / 2

    def _plan(self, now: float, batch: _Batch) -> None:
        """Look up the owners at the target, and send them sub-requests."""
        entries = sum(count for _, count, _ in batch.out)
        sent = self._use_cpu(now, batch.target, self.costs.node_request_s + entries * self._place_s)
        for lane in batch.lanes:
            if lane[0].node == batch.target:
                self._at(sent, self._read, batch, lane)
            else:
                sent = self._use_cpu(sent, batch.target, lane[0].asking_s)
                self._at(sent + self.hardware.latency_s, self._read, batch, lane)

    # --- at an owner ----------------------------------------------------------------------------------------------

    def _read(self, now: float, batch: _Batch, lane: list[_Frame]) -> None:
        node = lane[0].node
        size, count = sum(frame.size for frame in lane), sum(frame.count for frame in lane)
        self.result.read_bytes += size
        taken = max(size * self._drive_byte_s, count * self._drive_read_s)
        self._drive[node] = done = max(now, self._drive[node]) + taken
        ready = done + self.hardware.drive_latency_s
        if ready - now > SOON_S:
            self._at(ready, self._serve, batch, lane, 0)
        else:
            self._serve(now, batch, lane, 0)

    def _serve(self, now: float, batch: _Batch, lane: list[_Frame], which: int) -> None:
        """Use the owner's CPU frame by frame, so that other requests run in between."""
        costs, frame = self.costs, lane[which]
        local = not self._direct and frame.node == batch.target
        cost_s = frame.count * costs.node_entry_s + frame.size * (costs.read_byte_s if local else costs.node_byte_s)
        if frame.first and not local:  # a local read is part of the target's request
            single = len(lane) == 1 and frame.count == 1
            cost_s += costs.node_single_s if single else costs.node_request_s
        done = self._use_cpu(now, frame.node, cost_s)
        if local:
            self._held[frame.node] += frame.size
            self._at(done, self._take, batch, frame)
        elif self._direct:
            self._send(done, frame.node, frame.size, self._reach_worker, batch, frame)
        else:
            self.result.node_to_node_bytes += frame.size
            self._send(done, frame.node, frame.size, self._reach_target, batch, frame)
        if which + 1 < len(lane):
            self._at(done, self._serve, batch, lane, which + 1)

    # --- at the target --------------------------------------------------------------------------------------------

    def _reach_target(self, now: float, batch: _Batch, frame: _Frame) -> None:
        done = self._received(now, self._nic_in, batch.target, frame.size)
        if done - now > SOON_S:
            self._at(done, self._accept, batch, frame)
        else:
            self._accept(now, batch, frame)

    def _accept(self, now: float, batch: _Batch, frame: _Frame) -> None:
        costs = self.costs
        cost_s = frame.asking_s + frame.count * costs.client_entry_s + frame.size * costs.client_byte_s
        self._held[batch.target] += frame.size
        self.result.reorder_bytes = max(self.result.reorder_bytes, self._held[batch.target])
        done = self._use_cpu(now, batch.target, cost_s)
        self._at(done, self._take, batch, frame)

    def _take(self, now: float, batch: _Batch, frame: _Frame) -> None:
        """Send the frames in request order that are complete now."""
        for fed in frame.feeds:
            batch.pending[fed] -= 1
        while batch.sent < len(batch.out) and batch.pending[batch.sent] == 0:
            size = batch.out[batch.sent][2]
            done = self._use_cpu(now, batch.target, size * (self.costs.node_byte_s - self.costs.read_byte_s))
            self._held[batch.target] -= size
            self._send(done, batch.target, size, self._reach_worker, batch, batch.sent)
            batch.sent += 1

    # --- at the worker --------------------------------------------------------------------------------------------

    def _reach_worker(self, now: float, batch: _Batch, what: _Frame | int) -> None:
        self.result.to_client_bytes += (size := batch.out[what][2] if isinstance(what, int) else what.size)
        done = self._received(now, self._client_in, batch.worker % self.setup.hosts, size)
        if done - now > SOON_S:
            self._at(done, self._merge, batch, what)
        else:
            self._merge(now, batch, what)

    def _merge(self, now: float, batch: _Batch, what: _Frame | int) -> None:
        costs = self.costs
        if isinstance(what, int):
            _, count, size = batch.out[what]
            asked_s = costs.client_request_s / 2 if what == 0 else 0.0
        else:
            count, size = what.count, what.size
            asked_s = what.asking_s
        done = self._use_worker(now, batch.worker, asked_s + count * costs.client_entry_s + size * costs.client_byte_s)
        self._at(done, self._deliver, batch, what)

    def _deliver(self, now: float, batch: _Batch, what: _Frame | int) -> None:
        if isinstance(what, int):
            self._hand_over(now, batch, what)
            return
        for fed in what.feeds:
            batch.pending[fed] -= 1
        while batch.sent < len(batch.out) and batch.pending[batch.sent] == 0:
            self._hand_over(now, batch, batch.sent)
            batch.sent += 1

    def _hand_over(self, now: float, batch: _Batch, which: int) -> None:
        first, count, size = batch.out[which]
        result = self.result
        result.delivered_bytes += size
        if self.setup.record:
            result.delivered[batch.number].extend(range(first, first + count))
        warm = self._completed >= self.setup.batches // 3
        if not batch.begun:
            batch.begun = True
            if warm:
                result.first_s.append(now - batch.start)
        batch.undelivered -= 1
        if batch.undelivered:
            return
        self._completed += 1
        if warm:
            result.latencies_s.append(now - batch.start)
            self._warm_bytes += sum(size for _, _, size in batch.out)
            self._warm_batches += 1
        elif self._completed == self.setup.batches // 3:
            self._warm_at = now
        self._start(now, batch.worker)


def simulate(setup: Setup) -> Result:
    """Run a setup without the cyclic garbage collector: there are millions of small objects and no cycles."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        return Simulation(setup).run()
    finally:
        if collecting:
            gc.enable()


# --- experiments --------------------------------------------------------------------------------------------------

MEASURED_RATES: tuple[tuple[str, Setup, float], ...] = tuple(
    (
        f"GetBatch ×128, {label(size)}, {clients} client{'s' if clients > 1 else ''}",
        Setup(1, "direct", size, workers=clients, in_flight=3),
        rate,
    )
    for size, clients, rate in COSTS["rates"]
)
"""Objects per second of one node and its clients, page cache warm."""

KINDS: dict[str, tuple[Mode, Literal["session", "request"]]] = {
    "target, one per session": ("target", "session"),
    "target, one per request": ("target", "request"),
    "direct": ("direct", "session"),
}


def validate() -> list[tuple[str, float, float]]:
    """Return (what, measured, predicted) in objects per second."""
    found: list[tuple[str, float, float]] = []
    for name, setup, measured in MEASURED_RATES:
        predicted = simulate(replace(setup, hardware=LOOPBACK, batches=200))
        found.append((name, measured, predicted.batches_s * setup.entries))
    return found


def validate_clusters() -> list[tuple[int, float, float, float, float]]:
    """Return (nodes, their processor seconds for a batch, as predicted, the client's, as predicted)."""
    found: list[tuple[int, float, float, float, float]] = []
    for nodes, nodes_s, client_s in COSTS["clusters"]:
        result = simulate(Setup(nodes, "direct", 10 * KIB, workers=1, in_flight=1, hardware=LOOPBACK, batches=200))
        for_a_batch = result.elapsed_s / 200
        predicted = result.node_cpu[0] * nodes * for_a_batch, result.worker_cpu * for_a_batch
        found.append((nodes, nodes_s, predicted[0], client_s, predicted[1]))
    return found


def grid(hosts_of: Sequence[int]) -> dict[tuple[int, int, int, Mode], Result]:
    """Simulate busy nodes, by (hosts, size, entries per owner, mode): two workers per host with one batch each."""
    found: dict[tuple[int, int, int, Mode], Result] = {}
    for hosts in hosts_of:
        batches = {4: 400, 16: 500, 64: 600, 256: 1_500}.get(hosts, max(80, 4 * hosts))
        for size in SIZES:
            for per_owner in (1, 4, 16, 64) if hosts <= 256 else (16,):
                for mode in MODES:
                    setup = Setup(hosts, mode, size, per_owner=per_owner, in_flight=1, batches=batches)
                    found[hosts, size, per_owner, mode] = simulate(setup)
    return found


def few_workers(per_owners: Sequence[int], batches: int) -> dict[tuple[int, int, str], Result]:
    """Simulate busy workers, by (size, entries per owner, kind): 4 workers with 8 batches in flight, 64 idle hosts."""
    busy = Setup(64, "target", MIB, entries=64, workers=4, in_flight=8, batches=batches)
    return {
        (size, per_owner, kind): simulate(
            replace(busy, mode=mode, size_bytes=size, per_owner=per_owner, target_of=target_of)
        )
        for size in SIZES
        for per_owner in per_owners
        for kind, (mode, target_of) in KINDS.items()
    }


# --- page ---------------------------------------------------------------------------------------------------------

PAGE = """# GetBatch on 4 to 1,000 hosts, by a model

None of our machines can hold such a cluster. This page is generated by `python -m benchmarks.cluster.model`, a
discrete-event simulation whose CPU costs were measured on one machine and whose network and drives are those of the
paper. Read it for ratios, and for what saturates first.

## How well it predicts

One node and its clients on 2 cores:

{validation}

Processor time of a batch of 128 entries of 10 KiB, which a client assembles from real nodes:

{clusters}

Real networks, cold drives, and more than nine nodes were not compared with anything real. Memory bandwidth, which all
processes of a machine share, is not modeled.

## Two workers per host, each with one batch of 128 in flight: nodes are busy

{grid}

- **A target saturates its CPU.** It receives what the others send and sends it again, so each byte costs a core two
  more times, and each sub-request is handled at the owner and at the target.
- **Sessions that are distributed by hash are uneven.** Some nodes are the target of several busy sessions and others of
  none. The busiest node is at 100 % while the mean is well below, and P99 reflects that node.
- **More than 64 hosts change little**, except that placing an entry means scoring every host: about 6 µs per entry at
  1,000 hosts.
- **Other operations** (PUT, GET, listings, new buckets, renewals) are not in this model. `sizes.md` extends what they
  cost in 3, 5 and 9 nodes.
- The bytes that a target buffers are unbounded in this model. The last column is the memory that back-pressure must
  deny.

## Few workers and many nodes: workers are busy

4 workers, each with 8 batches of up to 64 entries in flight, and 64 hosts; MiB/s per worker.

{few}

![Throughput of a worker by entries per owner](model.png)

A worker that asks the owners itself pays for every sub-request with its own core. A target relieves it of that, but one
target per session is again a single core that does more work, so it is never the faster way. A target per request
spreads the work, and beats direct assembly where owners contribute few entries.

`assembly="auto"` does the part of this that real nodes confirm (`several_nodes.md`): direct in clusters of up to 64
nodes, and beyond that from 8 entries per owner on.
"""


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" + "---:|" * (len(heads) - 1)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def validation_table() -> str:
    rows = [
        (name, f"{measured:,.0f}", f"{predicted:,.0f}", f"{predicted / measured - 1:+.0%}")
        for name, measured, predicted in validate()
    ]
    return table(("what", "measured objects/s", "predicted", "error"), rows)


def clusters_table() -> str:
    rows = [
        (
            f"{nodes}",
            *(
                text
                for one, by_model in (of[:2], of[2:])
                for text in (f"{1e6 * one:,.0f}", f"{1e6 * by_model:,.0f}", f"{by_model / one - 1:+.0%}")
            ),
        )
        for nodes, *of in validate_clusters()
    ]
    return table(("nodes", "all nodes, µs", "predicted", "error", "client, µs", "predicted", "error"), rows)


def grid_table(found: dict[tuple[int, int, int, Mode], Result]) -> str:
    rows = []
    for hosts, size, per_owner, mode in found:
        if mode == "direct":
            continue
        target, direct = found[hosts, size, per_owner, "target"], found[hosts, size, per_owner, "direct"]
        rows.append(
            (
                f"{hosts:,}, {label(size)}",
                f"{per_owner} × {max(1, min(hosts, 128 // per_owner))}",
                f"{target.bytes_s / hosts / MIB:,.0f}",
                f"{direct.bytes_s / hosts / MIB:,.0f}",
                f"{direct.bytes_s / target.bytes_s:.1f}×",
                f"{target.latency_s(50) * 1e3:.1f} / {target.latency_s(99) * 1e3:.1f}",
                f"{direct.latency_s(50) * 1e3:.1f} / {direct.latency_s(99) * 1e3:.1f}",
                f"{target.node_cpu[0]:.0%} / {target.node_cpu[1]:.0%}",
                f"{direct.node_cpu[0]:.0%}",
                f"{target.reorder_bytes / MIB:,.0f}",
            )
        )
    heads = (
        "hosts, entry",
        "entries × owners",
        "target MiB/s per host",
        "direct",
        "direct ÷ target",
        "target P50 / P99 ms",
        "direct P50 / P99 ms",
        "target: nodes' CPU mean / busiest",
        "direct: mean",
        "target: most buffered, MiB",
    )
    return table(heads, rows)


def few_workers_table(found: dict[tuple[int, int, str], Result]) -> str:
    rows = []
    for size, per_owner in dict.fromkeys(key[:2] for key in found):
        session, request, direct = (found[size, per_owner, kind] for kind in KINDS)
        rows.append(
            (
                f"{label(size)}, {per_owner}",
                *(f"{result.bytes_s / 4 / MIB:,.0f}" for result in (session, request, direct)),
                f"{direct.bytes_s / session.bytes_s:.2f}",
                f"{direct.bytes_s / request.bytes_s:.2f}",
            )
        )
    return table(("entry, entries per owner", *KINDS, "direct ÷ per session", "direct ÷ per request"), rows)


def draw(found: dict[tuple[int, int, str], Result], path: Path) -> None:
    figure, axes = new_figure(len(SIZES))
    for panel, size in zip(axes[0], SIZES, strict=True):
        for kind, color in zip(KINDS, ("#c0392b", "#e59866", "#2166ac"), strict=True):
            points = [(key[1], result) for key, result in found.items() if key[0] == size and key[2] == kind]
            across = [per_owner for per_owner, _ in points]
            rates = [result.bytes_s / 4 / MIB for _, result in points]
            panel.plot(across, rates, "o-", ms=4, color=color, label=kind)
        panel.set_xscale("log", base=2)
        panel.set_xticks(across, [f"{value:,}" for value in across])
        panel.minorticks_off()
        panel.set(title=f"{label(size)} entries", xlabel="entries per owner", ylim=(0, None))
    axes[0][0].set_ylabel("MiB/s per worker")
    figure.legend(*axes[0][0].get_legend_handles_labels(), fontsize=8, loc="outside lower center", ncols=3)
    save(figure, path)


@click.command(help=__doc__)
@click.option("--quick", is_flag=True, help="Small clusters: seconds instead of minutes.")
@click.option("--folder", type=click.Path(path_type=Path), default=Path(__file__).parent, help="Where to write.")
def main(quick: bool, folder: Path) -> None:
    few = few_workers((4, 32), 60) if quick else few_workers((1, 2, 4, 8, 16, 32, 64), 300)
    found = grid((2, 8) if quick else (4, 16, 64, 256, 1_000))
    draw(few, folder / "model.png")
    page = PAGE.format(
        validation=validation_table(), clusters=clusters_table(), grid=grid_table(found), few=few_workers_table(few)
    )
    (folder / "model.md").write_text(page)


if __name__ == "__main__":
    main()
