"""Reads of coded objects against reads of copies, small ones from six nodes, with all of them and with one or two away.

Both buckets survive the loss of two nodes: one has three copies of each object, the other one is coded 4+2. The same
client reads the same batches of random objects, one at a time, in the same run. All nodes and the client share this
machine's cores, so a read that takes more work takes longer here, even where it would only use more machines.

    python -m benchmarks.cluster.coding_reads  # writes the table beside this file
    python -m benchmarks.cluster.coding_reads --rounds 2 --no-write
"""

from __future__ import annotations

import os
import random
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click
import numpy as np

import ais_loader
from ais_loader.testing import eventually
from ais_loader.wire.redundancy import companion_name
from benchmarks.cluster.coding_cost import coded_bytes
from benchmarks.kit.harness import machine
from tests.cluster_processes import ClusterProcesses

NODES, DATA, PARITY = 6, 4, 2
COUNT, SIZE_BYTES, BATCH, BATCHES = 6000, 10 << 10, 128, 40
LEFT_BYTES = NODES * DATA * (64 << 10)
"""Less than a group on each node stays as copies."""
TABLE = Path(__file__).with_suffix(".md")
PREDICTION = """Predicted before the first run: coded reads take three to six times as long as copies on one machine,
because each batch takes two hops and about 36 requests between nodes instead of 6. With one node away, they take at
most 1.3 times as long as with all nodes, because a known failure is not waited for, and a sixth of the entries costs
four reads instead of one.

Predicted before this run, the first one in which owners answer with places and one node reads the fragments, with 10
requests between nodes instead of 36: at most 4 times as long as copies, where it was 6.5. A frozen node costs at most
1.3 times as much as all nodes, and two killed ones at most twice as much.
"""

FINDINGS = """\
By turns with the version before, in one run with a cluster of each (1,500 objects, 12 rounds of 15 batches, load
average 30 to 75 from other work, so that times are long): all nodes together needed 46.7 ms of processor time for a
coded batch before and 20.7 ms after, 2.26 times less, and a batch took 72.0 ms before and 23.9 ms after, 3.0 times
less. With one node frozen it was 1.9 and 1.8 times less, with one killed 2.0 and 2.0, with two killed 1.6 and 1.3.

What is left is mostly on the one node that gathers: about half of the processor time of all nodes. It places entries
twice, by owner and by fragment, and keeps a sender, a stream and a task for each of the ten requests. Five of these
ask for places; three owners of six have all entries.
"""


@contextmanager
def coded_nodes(folder: Path) -> Iterator[ClusterProcesses]:
    """Six nodes with the buckets "copies" and "coded"."""
    settings = {"coding_delay_s": 2.0, "repair_interval_s": 60}
    arguments = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    buckets = {"copies": PARITY + 1, "coded": PARITY + 1}
    with ClusterProcesses(folder, NODES, buckets=buckets, arguments=arguments) as cluster:
        parent = next(bucket for bucket in cluster.map.bucket if bucket.name == "coded")
        parent.coding.data, parent.coding.parity = DATA, PARITY
        companion = companion_name(parent.uuid)
        cluster.map.bucket.add(name=companion, uuid=uuid.uuid4().bytes, copies=1, min_copies=1, coded_of=parent.uuid)
        cluster.map.version += 1
        cluster.teach()
        yield cluster


def batches_ms(client: ais_loader.Client, bucket: str, seed: int) -> list[float]:
    """Return the times of successive batches."""
    draw, taken = random.Random(seed), list[float]()
    for _ in range(BATCHES):
        names = [f"{at:05}" for at in draw.sample(range(COUNT), BATCH)]
        began_s = time.perf_counter()
        with client.bucket(bucket).get_batch(names) as batch:
            assert len(batch.tobytes()) == BATCH
        taken.append((time.perf_counter() - began_s) * 1000)
    return taken


def measure(client: ais_loader.Client, rounds: int) -> dict[str, list[float]]:
    """Return the times of each bucket, in rounds that take turns. The first batches learn what is slow."""
    for bucket in ("copies", "coded"):
        batches_ms(client, bucket, 0)
    found: dict[str, list[float]] = {"copies": [], "coded": []}
    for number in range(rounds):
        for bucket, taken in found.items():
            taken.append(float(np.median(batches_ms(client, bucket, 1 + number))))
    return found


def spread(values: Sequence[float]) -> str:
    return f"{np.median(values):.1f} ({min(values):.1f} – {max(values):.1f})"


@click.command(help=(__doc__ or "").split("\n\n")[0])
@click.option("--rounds", default=5, show_default=True)
@click.option("--write/--no-write", default=True, show_default=True)
def main(rounds: int, write: bool) -> None:
    load = os.getloadavg()[0]
    with (
        tempfile.TemporaryDirectory() as folder,
        coded_nodes(Path(folder)) as cluster,
        ais_loader.connect(cluster.url) as client,
    ):
        draw = random.Random(0)
        objects = [(f"{at:05}", draw.randbytes(SIZE_BYTES)) for at in range(COUNT)]
        client.bucket("copies").put_many(objects)
        client.bucket("coded").put_many(objects)
        wanted = COUNT * SIZE_BYTES - LEFT_BYTES
        eventually(lambda: coded_bytes(cluster.nodes) >= wanted, timeout_s=300)
        found = {"all nodes": measure(client, rounds)}
        away: list[tuple[str, Callable[[], object], Callable[[], object]]] = [
            ("one node frozen", cluster.nodes[-1].pause, cluster.nodes[-1].resume),
            ("one node killed", cluster.nodes[-1].kill, lambda: None),
            ("two nodes killed", cluster.nodes[-2].kill, lambda: None),
        ]
        for label, begin, end in away:
            begin()
            found[label] = measure(client, rounds)
            end()
    lines = [
        "| nodes | copies, ms | coded, ms | coded ÷ copies | coded ÷ coded with all nodes |",
        "|---|---:|---:|---:|---:|",
    ]
    for label, times in found.items():
        ratios = [np.median(times["coded"]) / np.median(one) for one in (times["copies"], found["all nodes"]["coded"])]
        lines.append(
            f"| {label} | {spread(times['copies'])} | {spread(times['coded'])} | {ratios[0]:.2f} | {ratios[1]:.2f} |"
        )
    parts = [
        "# Reads of coded objects\n",
        (__doc__ or "").split("\n\n    python")[0].split("\n\n", 1)[1] + "\n",
        PREDICTION,
        f"Machine: {machine()}. {COUNT:,} objects of {SIZE_BYTES >> 10} KiB, batches of {BATCH}, medians of {rounds} "
        f"rounds of {BATCHES} batches. Load average at the start {load:.0f}: only ratios are meaningful.\n",
        "\n".join(lines) + "\n",
        FINDINGS,
    ]
    text = "\n".join(parts)
    click.echo(text)
    if write:
        TABLE.write_text(text)


if __name__ == "__main__":
    main()
