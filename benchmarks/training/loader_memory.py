"""Memory and bookkeeping of BatchLoader: resident memory over 100,000 batches, and what records and stall watch cost.

    python -m benchmarks.training.loader_memory            # writes the table beside this file

Memory: a plan without an end draws 32 of 4,096 objects of 1 KiB for each batch, which becomes one array. A process of
its own runs the loader, with threads or with worker processes, and notes its resident memory and that of its workers
100 times. What counts is the change from the second tenth of the batches, as pools and slots fill in the first one, to
the last one, as medians.

Cost: batches of 128 objects of 10 KiB by two threads. Every batch has a record, which is added to the summary whether
or not there is an `on_batch`. So the time of a record, its sum, a call of `on_batch` and the stall watch's looks at the
clock is taken by itself, and divided by the processor time of a batch. Besides, loaders with `on_batch` and the stall
watch, and with neither, take turns. They are compared by processor time, since a wall clock on a busy machine measures
others; "neither" takes part twice, which shows what noise is left.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np
import psutil

import ais_loader
from ais_loader import BatchLoader, MapDataset, ShufflePlan
from ais_loader.loading.engine import StallWatch
from ais_loader.loading.records import BatchRecord, Summary
from ais_loader.loading.workers import FetchedBatch
from ais_loader.values.timing import TimingStopwatch
from ais_loader.wire.node_waits import NodeWaits
from benchmarks.kit.harness import conclude, page, run_rounds
from benchmarks.kit.load import Load, fill

OBJECTS, OBJECT_BYTES, BATCH = 4096, 1 << 10, 32
BATCH_OF_COST = 128
NOTES = 100
MOST_GROWTH = MOST_COST = 0.02
TABLE = Path(__file__).with_suffix(".md")
WAYS: dict[str, dict[str, Any]] = {"threads=2": {"threads": 2}, "workers=2": {"workers": 2, "in_flight": 4}}


class Endless:
    """A plan without an end."""

    def steps(self, epoch: int) -> None:
        return None

    def batch(self, epoch: int, step: int) -> list[int]:
        return [(step * 97 + at * 131) % OBJECTS for at in range(BATCH)]


def joined(samples: list[bytes]) -> Any:
    return np.frombuffer(b"".join(samples), np.uint8)


def note_memory(store: str, load: Load, batches: int, options: dict[str, Any], to: Any) -> None:
    """Send resident memory of this process, and of its workers, while a loader runs; then the seconds that it took."""
    dataset = MapDataset(store, load.entries)
    loader = BatchLoader(dataset, Endless(), collate=joined, rank=0, world_size=1, **options)
    own, began_s = psutil.Process(), time.perf_counter()
    for at, batch in enumerate(loader, 1):
        assert len(batch) == BATCH * OBJECT_BYTES
        if at % (batches // NOTES) == 0:
            to.send((own.memory_info().rss, sum(worker.memory_info().rss for worker in own.children())))
        if at == batches:
            break
    to.send(time.perf_counter() - began_s)
    os._exit(0)


def memory_table(store: str, load: Load, batches: int) -> tuple[str, bool]:
    lines = [
        f"| resident MiB in {batches:,} batches | second tenth | middle | last tenth | wanted | change | batches/s | |",
        "|---|---:|---:|---:|---:|---:|---:|---|",
    ]
    reached = True
    for way, options in WAYS.items():
        ours, theirs = multiprocessing.Pipe(duplex=False)
        runner = multiprocessing.get_context("spawn").Process(
            target=note_memory, args=(store, load, batches, options, theirs)
        )
        runner.start()
        theirs.close()
        notes = [ours.recv() for _ in range(NOTES)]
        rate = batches / ours.recv()
        runner.join()
        for who, column in (("trainer", 0), ("its workers", 1)):
            values = [note[column] for note in notes]
            if not any(values):
                continue
            tenth = NOTES // 10
            first, middle, last = (
                statistics.median(values[start : start + tenth]) for start in (tenth, NOTES // 2, NOTES - tenth)
            )
            change = last / first - 1
            reached = reached and abs(change) <= MOST_GROWTH
            told = "reached" if abs(change) <= MOST_GROWTH else "MISSED"
            mib = [f"{value / 2**20:,.1f}" for value in (first, middle, last)]
            lines.append(
                f"| {way}, {who} | {' | '.join(mib)} | ± {MOST_GROWTH:.0%} | **{change:+.2%}** | {rate:,.0f} | {told} |"
            )
    return "\n".join(lines), reached


def processor_s(loader: BatchLoader) -> float:
    """Return the processor time of a batch, in seconds."""
    began_s = time.process_time()
    batches = sum(1 for _ in loader)
    return (time.process_time() - began_s) / batches


def bookkeeping_s(count: int = 20_000) -> float:
    """Return the time that a batch spends on its record and on the stall watch, in seconds."""
    timing, summary = (
        TimingStopwatch().read(paused_s=0, retries=0, hedged=0, waits=NodeWaits(), request_id=""),
        Summary(),
    )
    fetched, watch = FetchedBatch(None, "", [timing]), StallWatch(60.0, "wait", 0)
    records: list[BatchRecord] = []
    began_s = time.process_time()
    for at in range(count):
        assert watch.begin().left_s
        watch.place = f"epoch 0, step {at}"
        assert watch.left_s
        record = BatchRecord.of(fetched, step=at, draw_s=0.0, wait_s=0.0)
        summary.add(record)
        records.append(record)  # as `on_batch`
    return (time.process_time() - began_s) / count


def cost_table(store: str, load: Load, rounds: int) -> tuple[str, bool]:
    records: list[BatchRecord] = []
    with ais_loader.connect(store, mode="r") as client:
        dataset = MapDataset(client, load.entries)
        plan = ShufflePlan(load.objects, BATCH_OF_COST)

        def turn(**options: Any) -> Callable[[], float]:
            loader = BatchLoader(dataset, plan, rank=0, world_size=1, **options)
            return lambda: processor_s(loader)

        turns = {"both": turn(on_batch=records.append), "neither": turn(stall_s=None), "again": turn(stall_s=None)}
        for work in turns.values():
            work()
        spent = run_rounds(turns, rounds)
    assert len(records) == (rounds + 1) * -(-load.objects // BATCH_OF_COST)
    batch_s = statistics.median(spent["neither"])
    own_s = statistics.median(bookkeeping_s() for _ in range(7))
    cost = own_s / batch_s
    told = "reached" if cost < MOST_COST else "MISSED"
    lines = [
        "| processor time of a batch | wanted | | |",
        "|---|---:|---:|---|",
        f"| its records and stall watch, {1e6 * own_s:.1f} of {1e6 * batch_s:,.0f} µs | < {MOST_COST:.0%} "
        f"| **{cost:.1%}** | {told} |",
    ]
    for name, what in (("both", "`on_batch` and `stall_s=60`"), ("again", "neither, again")):
        ratios = sorted(a / b - 1 for a, b in zip(spent[name], spent["neither"], strict=True))
        quarter = len(ratios) // 4
        lines.append(
            f"| {what}, against neither: median (half of {rounds} rounds) | | {statistics.median(ratios):+.1%} "
            f"({ratios[quarter]:+.1%} – {ratios[-1 - quarter]:+.1%}) | |"
        )
    return "\n".join(lines), cost < MOST_COST


@click.command(help=__doc__)
@click.option("--batches", default=100_000, show_default=True)
@click.option("--rounds", default=61, show_default=True)
@click.option("--write/--no-write", default=True, help=f"Write the table to {TABLE.name}.")
def main(batches: int, rounds: int, write: bool) -> None:
    with tempfile.TemporaryDirectory() as name:
        small = fill(Path(name) / "small", OBJECTS, OBJECT_BYTES)
        large = fill(Path(name) / "large", 100 * BATCH_OF_COST, 10 << 10)
        costs, are_small = cost_table(f"{name}/large", large, rounds)
        memory, is_flat = memory_table(f"{name}/small", small, batches)
    setting = f"{batches:,} batches; {rounds} rounds of 100 batches."
    text = page("Memory and bookkeeping of BatchLoader", __doc__, setting, memory, costs)
    click.echo(text)
    conclude(text + "\n", TABLE if write else None, reached=is_flat and are_small)


if __name__ == "__main__":
    main()
