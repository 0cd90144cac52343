"""Discrete-event simulation of GetBatch on hosts that we do not have, for both ways to assemble a batch.

Everything that serves one thing at a time is a queue, first come first served: the CPU of a node process and of a
worker process (one core each: the GIL), each direction of a host's NIC, a node's share of the drives. Such a queue is
one number, the time at which it is free again, so that a step of the model is one event on a heap.

    target   worker ─► designated target ─► owners: drive, CPU, NIC ─► its NIC, its CPU, re-order ─► NIC ─► worker
    direct   worker ─► owners: drive, CPU, NIC ─► the worker's NIC and CPU, which merges

Closed loop: each worker keeps `in_flight` batches under way and asks for the next when one is complete. What the model
leaves out: credits (queues are as long as they get), lost packets, copies, faults, garbage collection, what the
operating system does beside.
"""

from __future__ import annotations

import gc
import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from benchmarks.cluster_costs import MEASURED, MIB, Costs, Hardware

FRAME_BYTES = MIB
SOON_S = 5e-6
"""A wait shorter than this is not worth an event of its own."""


@dataclass(frozen=True, slots=True)
class Setup:
    """One experiment. `per_owner` entries come from each of as many nodes as the batch needs; 0: each from any node."""

    hosts: int
    mode: Literal["target", "direct"]
    size_bytes: int
    entries: int = 128
    per_owner: int = 0
    size_sigma: float = 0.0
    """Of a log-normal distribution around `size_bytes`, which stays the mean; 0: all alike."""
    nodes_per_host: int = 1
    workers: int = 0
    """0: two for each host."""
    in_flight: int = 2
    batches: int = 1_000
    """How many complete before it ends; the first third is warm-up."""
    target_of: Literal["session", "request"] = "session"
    """Which node is the target: one for a worker's whole session, or another for each batch."""
    seed: int = 0
    costs: Costs = MEASURED
    hardware: Hardware = field(default_factory=Hardware)
    record: bool = False
    """Keep what each batch delivered."""

    @property
    def nodes(self) -> int:
        return self.hosts * self.nodes_per_host

    @property
    def worker_count(self) -> int:
        return self.workers or 2 * self.hosts


@dataclass(slots=True)
class Result:
    bytes_s: float = 0.0
    batches_s: float = 0.0
    latencies_s: list[float] = field(default_factory=list)
    first_s: list[float] = field(default_factory=list)
    """Until the first frame in request order is there."""
    read_bytes: int = 0
    node_to_node_bytes: int = 0
    to_client_bytes: int = 0
    delivered_bytes: int = 0
    node_cpu: tuple[float, float] = (0.0, 0.0)
    """Use of the nodes' CPU: mean, and the busiest node's."""
    worker_cpu: float = 0.0
    nic_out: tuple[float, float] = (0.0, 0.0)
    reorder_bytes: int = 0
    """The most that any target held back at once."""
    delivered: dict[int, list[int]] = field(default_factory=dict)
    """Positions in the order in which each batch delivered them, when recorded."""

    def latency_s(self, percent: float) -> float:
        ordered = sorted(self.latencies_s)
        return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


class _Frame:
    __slots__ = ("asking_s", "count", "feeds", "first", "node", "size")

    def __init__(self, node: int, first: bool) -> None:
        self.node, self.first, self.count, self.size = node, first, 0, 0
        self.asking_s = 0.0
        """What its arrival costs, as the first frame of an answer."""
        self.feeds: list[int] = []
        """Which frames in request order wait for it."""


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
    """Runs one setup. Deterministic for a seed."""

    def __init__(self, setup: Setup) -> None:
        self.setup, self.costs, self.hardware = setup, setup.costs, setup.hardware
        self.random = random.Random(setup.seed)
        self.result = Result()
        nodes, hosts, workers = setup.nodes, setup.hosts, setup.worker_count
        self._direct = setup.mode == "direct"
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._serial = 0
        self._cpu = [0.0] * nodes
        self._busy = [0.0] * nodes
        self._drive = [0.0] * nodes
        self._nic_out, self._nic_in = [0.0] * hosts, [0.0] * hosts
        self._nic_bytes = [0] * hosts
        self._worker = [0.0] * workers
        self._worker_busy = 0.0
        self._client_in = [0.0] * hosts
        self._held = [0] * nodes
        self._targets = [self.random.randrange(nodes) for _ in range(workers)]
        self._begun = self._completed = self._warm_bytes = self._warm_batches = 0
        self._warm_at = 0.0
        share = setup.nodes_per_host / self.hardware.drives
        self._drive_byte_s = share / self.hardware.drive_bytes_s
        self._drive_read_s = share * self.hardware.drive_latency_s / self.hardware.queue_depth
        self._wire_byte_s = 1.0 / self.hardware.nic_bytes_s
        self._place_s = self.costs.placement_s * hosts if nodes > 1 else 0.0

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
        result.bytes_s = self._warm_bytes / (now - self._warm_at)
        result.batches_s = self._warm_batches / (now - self._warm_at)
        # What is booked but not yet done when the last batch completes is cut off.
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
        """Out of the NIC of a node's host; `step` happens when the last byte reaches an idle receiver."""
        if self.setup.nodes_per_host > 1:  # its CPU is done later: others may come first
            self._at(now, self._wire, node, size, step, arguments)
        else:
            self._wire(now, node, size, step, arguments)

    def _wire(self, now: float, node: int, size: int, step: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        host = node // self.setup.nodes_per_host
        free = self._nic_out[host]
        self._nic_bytes[host] += size
        self._nic_out[host] = done = (free if free > now else now) + size * self._wire_byte_s
        self._at(done + self.hardware.latency_s, step, *arguments)

    def _received(self, now: float, free: list[float], at: int, size: int) -> float:
        free[at] = done = max(now, free[at] + size * self._wire_byte_s)
        return done

    # --- a batch begins -------------------------------------------------------------------------------------------

    def _start(self, now: float, worker: int) -> None:
        setup = self.setup
        target = self._targets[worker] if setup.target_of == "session" else self.random.randrange(setup.nodes)
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
        """Who owns which entry, and so which frames there are and which of them each frame in request order needs."""
        setup, draw = self.setup, self.random
        if setup.per_owner:
            owners = draw.sample(range(setup.nodes), max(1, min(setup.nodes, setup.entries // setup.per_owner)))
            owner_of = owners * setup.per_owner
            draw.shuffle(owner_of)
        else:
            owner_of = [draw.randrange(setup.nodes) for _ in range(setup.entries)]
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
        """Half of what a request costs its sender; the other half is due when its answer comes."""
        single = len(lane) == 1 and lane[0].count == 1
        return (self.costs.client_single_s if single else self.costs.client_request_s) / 2

    def _plan(self, now: float, batch: _Batch) -> None:
        """At the target: it finds the owners and asks them."""
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
        """The CPU of the owner, frame by frame: between two frames others have their turn."""
        costs, frame = self.costs, lane[which]
        local = not self._direct and frame.node == batch.target
        cost_s = frame.count * costs.node_entry_s + frame.size * (costs.read_byte_s if local else costs.node_byte_s)
        if frame.first and not local:  # a local read is part of the target's own request
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
        done = self._received(now, self._nic_in, batch.target // self.setup.nodes_per_host, frame.size)
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
        """What has arrived may complete frames in request order: those are sent, in that order."""
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
    """Without the cyclic garbage collector: millions of small objects and no cycle among them."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        return Simulation(setup).run()
    finally:
        if collecting:
            gc.enable()
