"""Processor time of the steps of coding, with six nodes in this process, one after another.

All nodes share a process here, in which nothing else happens: its processor time before and after a step is what the
step took on all nodes. A busy machine changes the figures less than those of coding_cost.py, whose nodes are processes.

    python -m benchmarks.cluster.coding_phases  # prints a table for coding_cost.md
"""

from __future__ import annotations

import asyncio
import functools
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import click

from ais_loader.testing import throwaway_folder
from benchmarks.kit.harness import machine
from storage_node.cluster.coding import coder
from storage_node.cluster.coding.coding import Coding
from storage_node.cluster.coding.fragments import FragmentWriter
from storage_node.store.machine_memory import keep_freed_memory
from tests.coding.coded_cluster import coded_cluster

NEVER_S, SETTLE_S, IDLE_S = 3600.0, 4.0, 3.0
CORPORA = {"10 KiB": (10 << 10, 20_000), "100 KiB": (100 << 10, 3000), "2 MiB": (2 << 20, 200)}
"""Size and number of objects."""
STEPS = {
    "ask other owners": (coder.Coder, "_within_reach"),
    "read and check": (coder, "_held"),
    "code and send fragments": (FragmentWriter, "write"),
    "sync, and write manifests": (coder.Coder, "_recorded"),
    "swap entries on three nodes": (coder.Coder, "_swap"),
}


@contextmanager
def measured(spent_s: defaultdict[str, float]) -> Iterator[None]:
    """Add the processor time of each step to `spent_s`."""

    def around(step: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        async def awaited(*arguments: Any, **named: Any) -> Any:
            began_s = time.process_time()
            try:
                return await function(*arguments, **named)
            finally:
                spent_s[step] += time.process_time() - began_s

        @functools.wraps(function)
        def called(*arguments: Any) -> Any:
            began_s = time.process_time()
            try:
                return function(*arguments)
            finally:
                spent_s[step] += time.process_time() - began_s

        return awaited if asyncio.iscoroutinefunction(function) else called

    patches = [
        patch.object(holder, name, around(step, getattr(holder, name))) for step, (holder, name) in STEPS.items()
    ]
    for one in patches:
        one.start()
    try:
        yield
    finally:
        for one in patches:
            one.stop()


def code(size_bytes: int, count: int) -> dict[str, float]:
    """Return the processor seconds per GB of each step, and of all together."""
    found: list[Coding] = []
    begin = Coding.__init__

    def noted(self: Coding, *arguments: Any, **named: Any) -> None:
        begin(self, *arguments, **named)
        found.append(self)

    draw, spent_s, gigabytes = random.Random(1), defaultdict[str, float](float), size_bytes * count / 1e9
    with (
        throwaway_folder() as folder,
        patch.object(Coding, "__init__", noted),
        coded_cluster(Path(folder), coding_delay_s=NEVER_S, repair_interval_s=NEVER_S) as cluster,
    ):
        cluster.bucket.put_many((f"{at:06}", draw.randbytes(size_bytes)) for at in range(count))
        time.sleep(SETTLE_S)  # nodes compare what was put
        began_s, before_s = time.monotonic(), time.process_time()
        time.sleep(IDLE_S)
        idle = (time.process_time() - before_s) / (time.monotonic() - began_s)
        settled = patch.object(coder, "may_be_coded", lambda name, entry, *_: entry.has_file and name[0] != "/")
        began_s, before_s = time.monotonic(), time.process_time()
        with measured(spent_s), settled:
            for node, coding in zip(cluster.nodes, found, strict=True):
                view = coding._view()
                assert view is not None and node._loop is not None
                asyncio.run_coroutine_threadsafe(coding._coder.pass_(view), node._loop).result(300.0)
                removed_s = time.process_time()
                for store in cluster.stores:
                    for drive in store.drive_set.live():
                        drive.reap(everything=True)
                spent_s["remove copies"] += time.process_time() - removed_s
        total_s = time.process_time() - before_s - idle * (time.monotonic() - began_s)
        coded_bytes = sum(coding.metrics.bytes_coded for coding in found)
    assert coded_bytes > 0.95 * size_bytes * count, f"{coded_bytes:,} bytes were coded"
    spent_s["look for objects, and the rest"] = total_s - sum(spent_s.values())
    return {step: taken_s / gigabytes for step, taken_s in (*spent_s.items(), ("all", total_s))}


@click.command(help=(__doc__ or "").split("\n\n")[0])
def main() -> None:
    keep_freed_memory()
    columns = {name: code(*corpus) for name, corpus in CORPORA.items()}
    click.echo(f"Machine: {machine()}.\n")
    click.echo(f"| processor seconds per GB | {' | '.join(columns)} |\n|---|{'---:|' * len(columns)}")
    for step in (*STEPS, "remove copies", "look for objects, and the rest", "all"):
        click.echo(f"| {step} | {' | '.join(f'{column[step]:.1f}' for column in columns.values())} |")


if __name__ == "__main__":
    main()
