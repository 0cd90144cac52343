"""One node with four times as many clients as it has places for batches: memory stays flat, everybody moves on.

Each client asks for the next thing as soon as it has the one before. What a client may be told is to come back later.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

import numpy as np

from ais_loader import ClusterOptions, connect
from ais_loader.testing import NodeProcess, rss_bytes
from benchmarks.soak.checker import Rules
from benchmarks.soak.clients import READS, WRITES, Sizes, SoakClient, run_all
from benchmarks.soak.history import FOREVER, Operation, read_history
from benchmarks.soak.outcome import Outcome, judge
from benchmarks.soak.processes import context, recording, start, stop
from benchmarks.soak.register import Violation

BUCKET = "soak"
PLACES = 4
"""Batches that the node serves at once."""
TIMES = 4
PROCESSES = 2
NAMES = 200
TURN_S = 20
"""Names are used for so long."""
DEADLINE_S = 120.0
STARVED_S = 60.0
GROWTH_BYTES_PER_MIN = 4 << 20
"""More than this, over the second half of a run of some minutes, is no flat memory."""
RULES = Rules("atomic", deadline_s=DEADLINE_S)
MIX: Mapping[str, float] = {**READS, "batch": 12, **WRITES, "snapshot": 0}


@dataclass(frozen=True, slots=True)
class Task:
    """Task of a process of clients."""

    url: str
    folder: str
    name: str
    seed: str
    clients: int
    start_s: float

    def keys(self) -> list[str]:
        turn = int(time.monotonic() - self.start_s) // TURN_S
        return [f"t{turn}/{at:03}" for at in range(NAMES)]


def use(task: Task) -> None:
    options = ClusterOptions(retry_s=60.0, tenant=task.name)
    with recording(Path(task.folder), task.name) as (recorder, stopping), connect(task.url, options=options) as client:
        clients = [
            SoakClient(
                f"{task.name}.{at}",
                client,
                BUCKET,
                recorder,
                task.keys,
                f"{task.seed} {at}",
                MIX,
                sizes=Sizes(large_share=0.002),
                timeout_s=60.0,
            )
            for at in range(task.clients)
        ]
        run_all(clients, stopping, Path(task.folder) / f"{task.name}.stacks", DEADLINE_S)


def overload(root: Path, seed: int, duration_s: float, say: Callable[[str], None]) -> Outcome:
    outcome, folder, forking = Outcome("node", seed), root / "round-000", context()
    folder.mkdir()
    arguments = ["--max-batches", str(PLACES), "--memory-mib", "32"]
    with NodeProcess([root / "store"], arguments=arguments) as node:
        with connect(node.url) as client:
            client.create_bucket(BUCKET)
        begin_s = time.monotonic()
        each = PLACES * TIMES // PROCESSES
        tasks = [Task(node.url, str(folder), f"p{at}", f"{seed} {at}", each, begin_s) for at in range(PROCESSES)]
        clients = [start(forking, use, task) for task in tasks]
        samples: list[tuple[float, list[int]]] = []
        try:
            while (now_s := time.monotonic() - begin_s) < duration_s and all(one.is_alive() for one in clients):
                samples.append((now_s, _memory([node.pid], clients)))
                time.sleep(0.5)
        finally:
            stop(*clients)
        (folder / "node.log").write_text(node.log())
        outcome.duration_s = time.monotonic() - begin_s
    outcome.figures["clients"] = PLACES * TIMES
    outcome.figures["batches served at once"] = PLACES
    outcome.take(judge(folder, RULES))
    _judge_memory(samples, outcome)
    judge_progress(read_history(sorted(folder.glob("*.jsonl"))), outcome)
    outcome.series = _resident(samples)
    say(f"{outcome.operations:,} operations, {len(outcome.violations)} violations")
    return outcome


def _memory(nodes: Sequence[int], clients: Sequence[BaseProcess]) -> list[int]:
    try:
        return [*(rss_bytes(pid) for pid in nodes), *(rss_bytes(one.pid) for one in clients)]
    except (OSError, ProcessLookupError):
        return [0] * (len(nodes) + len(clients))


def _resident(samples: Sequence[tuple[float, list[int]]]) -> dict[str, list[tuple[float, float]]]:
    """MiB of each process, once a minute."""
    found: dict[str, list[tuple[float, float]]] = {}
    due_s = 0.0
    for at_s, sizes in samples:
        if at_s >= due_s and all(sizes):
            due_s = at_s + 60
            for at, size in enumerate(sizes):
                found.setdefault(f"{_who(at)}: MiB resident", []).append((round(at_s / 60, 1), round(size / 2**20, 1)))
    return found


def _who(at: int) -> str:
    return "node" if at == 0 else f"client process {at}"


def _judge_memory(samples: Sequence[tuple[float, list[int]]], outcome: Outcome) -> None:
    """The second half of the time, when everything that is made once has been made."""
    later = [(at_s, sizes) for at_s, sizes in samples[len(samples) // 2 :] if all(sizes)]
    if len(later) < 10:
        return
    minutes = np.array([at_s / 60 for at_s, _ in later])
    for at in range(len(later[0][1])):
        sizes = np.array([float(found[at]) for _, found in later])
        slope = float(np.polyfit(minutes, sizes, 1)[0])
        who = _who(at)
        outcome.figures[f"{who}: most MiB resident"] = float(sizes.max()) / 2**20
        outcome.figures[f"{who}: growth, MiB a minute"] = slope / 2**20
        if minutes[-1] - minutes[0] > 2 and slope > GROWTH_BYTES_PER_MIN:
            said = f"{slope / 2**20:.1f} MiB a minute over {minutes[-1] - minutes[0]:.0f} minutes"
            outcome.violations.append(Violation("memory grows", who, said))


def judge_progress(operations: Sequence[Operation], outcome: Outcome, starved_s: float = STARVED_S) -> None:
    """Nobody waits for long, and nobody gets much less than others."""
    ends: dict[str, list[int]] = {}
    for one in operations:
        if one.outcome == "ok" and one.end_ns < FOREVER:
            ends.setdefault(one.client, []).append(one.end_ns)
    if not ends:
        return
    first = min(one.begin_ns for one in operations)
    last = max(found[-1] for found in map(sorted, ends.values()))
    longest = 0.0
    for client, moments in ends.items():
        times = [first, *sorted(moments), last]
        gap_s = max(later - sooner for sooner, later in itertools.pairwise(times)) / 1e9
        longest = max(longest, gap_s)
        if gap_s > starved_s:
            outcome.violations.append(Violation("starved", client, f"nothing done for {gap_s:.0f} s"))
    counts = sorted(len(moments) for moments in ends.values())
    outcome.figures["longest time without an answer, s"] = longest
    outcome.figures["operations of the slowest client, as a share of the median"] = counts[0] / counts[len(counts) // 2]
