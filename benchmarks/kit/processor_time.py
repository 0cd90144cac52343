"""Processor time of contestants: what one piece of work costs client and node, also where others use the cores too.

On a busy machine a wall clock measures the neighbours; processor time grows under them too, by cold caches, but much
less. With a core for each side and the next batches asked for ahead, the slower side's time is what a piece takes; with
one request at a time, or where all cores are taken, it is the sum.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable

import psutil


class ProcessorTime:
    """CPU time of rounds. `node_pid`: the storage node that some of the contestants use."""

    def __init__(self, node_pid: int) -> None:
        self._node = psutil.Process(node_pid)
        self._spent_s: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)

    def of(self, name: str, contestant: Callable[[], float], pieces: int) -> Callable[[], float]:
        """The contestant, with what each of its rounds costs kept under its name."""

        def measured() -> float:
            node, client_s = self._node.cpu_times(), time.process_time()
            rate = contestant()
            client_s, after = time.process_time() - client_s, self._node.cpu_times()
            node_s = after.user + after.system - node.user - node.system
            self._spent_s[name].append((client_s / pieces, node_s / pieces))
            return rate

        return measured

    def table(self, piece: str) -> str:
        """Medians of the rounds, as Markdown."""
        lines = [f"| processor time, µs for {piece} | client | node | both |", "|---|---:|---:|---:|"]
        for name, rounds in self._spent_s.items():
            client, node = (1e6 * statistics.median(side) for side in zip(*rounds, strict=True))
            lines.append(f"| {name} | {client:,.0f} | {node:,.0f} | {client + node:,.0f} |")
        return "\n".join(lines)

    def forget(self) -> None:
        """Discard the measurements so far, which are of warm-up passes."""
        self._spent_s.clear()
