"""Ranks that need the same batches: eight loaders, of which two read for all, against eight that read by themselves.

    python -m benchmarks.training.replicas            # writes the table beside this file

Eight processes are two groups of four, as two data-parallel ranks with four tensor-parallel ones each. They read an
epoch of a node on this machine, with two threads each, and `collate` makes one array of a batch. "replicas" pass
`replicas=`; "independent" loaders get the same rank and world_size. All are started before, and the first batches are
not counted. Node bytes are those that the node has sent. Processor time is that of the node and of all processes.

Predicted before the first run: a quarter of the node's bytes, and less than half of the processor time. The second was
missed: a lane costs little, and each process still maps the batch and looks at it. What is wanted since is less than
nine tenths.
"""

from __future__ import annotations

import multiprocessing
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import click
import numpy as np
import psutil

from ais_loader import BatchLoader, MapDataset, ShufflePlan, connect
from ais_loader.testing import NodeProcess
from benchmarks.kit.harness import conclude, page

RANKS, TENSOR, BATCH, STEPS = 8, 4, 128, 120
KINDS = {"10 KiB": 10 << 10, "64 KiB": 64 << 10}
OBJECTS = 1024
SENT = "ais_loader_session_sent_bytes_total"
MOST_BYTES, MOST_TIME = 0.26, 0.9
TABLE = Path(__file__).with_suffix(".md")


def joined(samples: list[bytes]) -> Any:
    return np.concatenate([np.frombuffer(sample, np.uint8) for sample in samples])


def read(url: str, rank: int, key: str, begun: Any, to: Any) -> None:
    """Read an epoch. Send the processor time and the bytes."""
    dataset = MapDataset(url, "ais://b/")
    plan = ShufflePlan(OBJECTS, BATCH, seed=1, epoch_steps=2 * STEPS)
    shared: dict[str, Any] = {"replicas": (rank % TENSOR, TENSOR, f"{key} {rank // TENSOR}")} if key else {}
    loader = BatchLoader(dataset, plan, collate=joined, rank=rank // TENSOR, world_size=RANKS // TENSOR, **shared)
    batches = iter(loader)
    next(batches)
    begun.wait(120)
    before_s, size_bytes = time.process_time(), 0
    for batch in batches:
        size_bytes += len(batch)
        assert batch[-1] == batch.max()  # every page that has a number is read
    to.send((time.process_time() - before_s, size_bytes))
    begun.wait(120)


def turn(node: NodeProcess, key: str) -> tuple[float, float, float]:
    """Return the bytes that the node has sent, the processor time, and the time of an epoch, in seconds."""
    context = multiprocessing.get_context("fork")
    begun = context.Barrier(RANKS + 1)
    pipes = [context.Pipe(duplex=False) for _ in range(RANKS)]
    ranks = [context.Process(target=read, args=(node.url, rank, key, begun, to)) for rank, (_, to) in enumerate(pipes)]
    for one in ranks:
        one.start()
    begun.wait(120)
    own, sent, began_s = psutil.Process(node.pid).cpu_times(), node.numbers()[SENT], time.perf_counter()
    found = [ours.recv() for ours, _ in pipes]
    wall_s = time.perf_counter() - began_s
    node_s = sum(psutil.Process(node.pid).cpu_times()[:2]) - sum(own[:2])
    sent = node.numbers()[SENT] - sent
    begun.wait(120)
    for one in ranks:
        one.join()
    assert len({size_bytes for _, size_bytes in found}) == 1
    return sent, node_s + sum(processor_s for processor_s, _ in found), wall_s


@click.command(help=__doc__)
@click.option("--rounds", default=5, show_default=True)
@click.option("--write/--no-write", default=True, help=f"Write the table to {TABLE.name}.")
def main(rounds: int, write: bool) -> None:
    lines = [
        "| objects | of replicas ÷ of independent loaders | wanted | median (smallest – largest) | |",
        "|---|---|---:|---:|---|",
    ]
    reached = True
    with tempfile.TemporaryDirectory() as folder:
        for kind, size_bytes in KINDS.items():
            with NodeProcess(f"{folder}/{kind}", metrics=True) as node:
                with connect(node.url) as client:
                    client.create_bucket("b").put_many(
                        (f"{at:05}", bytes([at % 251]) * (size_bytes - 1) + b"\xff") for at in range(OBJECTS)
                    )
                found = [(turn(node, f"{kind} {at} {node.pid}"), turn(node, "")) for at in range(rounds)]
            for at, (what, most) in enumerate(
                (("bytes sent by the node", MOST_BYTES), ("processor time", MOST_TIME), ("time of an epoch", None))
            ):
                ratios = [shared[at] / alone[at] for shared, alone in found]
                median = statistics.median(ratios)
                is_reached = most is None or median <= most
                reached = reached and is_reached
                told = "" if most is None else "reached" if is_reached else "MISSED"
                lines.append(
                    f"| {kind} | {what} | {'' if most is None else f'≤ {most}'} | **{median:.2f}** "
                    f"({min(ratios):.2f} – {max(ratios):.2f}) | {told} |"
                )
    setting = f"{rounds} rounds of {STEPS} batches of {BATCH} for each of {RANKS} ranks in groups of {TENSOR}."
    text = page("Ranks that need the same batches", __doc__, setting, "\n".join(lines))
    click.echo(text)
    conclude(text + "\n", TABLE if write else None, reached=reached)


if __name__ == "__main__":
    main()
