"""CPU cost of an entry, a byte and a request on a node and a client: the model's only inputs from measurement.

CPU time, not wall time, so that a busy machine disturbs little: one client with three batches in flight asks one node
for batches of 4 to 128 entries of 1 KiB to 1 MiB (page cache warm), and for batches of one, which take a shorter way
through the node. Each point counts the least of its rounds; the costs are the least-squares fit of relative errors,
held at zero or above.

    python -m benchmarks.cluster_costs        # measures anew and prints the figures; MEASURED below is such a run
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np
import numpy.typing as npt
import psutil
import xxhash

MIB = 1 << 20
GIB = 1 << 30
POINTS = {1 << 10: 20_000, 10 << 10: 20_000, 100 << 10: 6_000, MIB: 1_500}
"""Objects by size."""
BATCHES = (1, 4, 16, 64, 128)


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds of one core. A node and a client process are each worth one core: the GIL is theirs alone."""

    node_request_s: float
    """A sub-request of several entries: parsed, planned, read in the executor, its first frame made and sent."""
    node_single_s: float
    """A request of one entry, all of it but its bytes."""
    node_entry_s: float
    node_byte_s: float
    """Read, verified, framed and sent; later frames of an answer are part of this."""
    client_request_s: float
    client_single_s: float
    client_entry_s: float
    client_byte_s: float
    read_byte_s: float
    """Of `node_byte_s`, what reading and verifying take; the rest is what sending a byte on takes."""
    placement_s: float
    """To score one entry for one host, when a batch is placed."""


MEASURED = Costs(
    node_request_s=410e-6,
    node_single_s=91e-6,
    node_entry_s=6.5e-6,
    node_byte_s=0.59e-9,
    client_request_s=238e-6,
    client_single_s=164e-6,
    client_entry_s=1.5e-6,
    client_byte_s=0.61e-9,
    read_byte_s=0.13e-9,
    placement_s=6.3e-9,
)
"""2 cores of an AMD EPYC, Linux 6.18, Python 3.11, grpcio 1.85: see `cluster_model.md` for how well they predict."""


@dataclass(frozen=True, slots=True)
class Hardware:
    """A storage host, and a client host alike. Assumed, not measured: those of the paper's test, and data sheets."""

    nic_bytes_s: float = 100e9 / 8
    """Each way."""
    latency_s: float = 50e-6
    """One way through the network and both kernels, of an empty message."""
    drives: int = 12
    drive_bytes_s: float = 5e9
    drive_latency_s: float = 100e-6
    queue_depth: int = 64
    """Reads under way per drive."""


LOOPBACK = Hardware(nic_bytes_s=1e15, latency_s=20e-6, drive_bytes_s=1e15, drive_latency_s=0.0)
"""For the comparison with one machine, page cache warm."""


@dataclass(frozen=True, slots=True)
class Point:
    """What a batch took at one size of object and of batch."""

    size_bytes: int
    batch: int
    node_s: float
    client_s: float


def measure_points(rounds: int, round_s: float) -> list[Point]:
    import ais_loader
    from ais_loader.testing import NodeProcess
    from benchmarks.clients import get_batches, object_names
    from benchmarks.getbatch import fill

    points = []
    for size_bytes, count in POINTS.items():
        names = object_names(count)
        with tempfile.TemporaryDirectory() as folder:
            store = Path(folder) / "store"
            fill(store, count, size_bytes)
            with NodeProcess([store]) as node, ais_loader.connect(node.url) as client:
                get_batches(client, names, 128, 3, 0)
                process = psutil.Process(node.pid)
                for batch in BATCHES:
                    some = names[: min(count, 1000 * batch)]
                    found = []
                    for seed in range(rounds):
                        node_before, client_before = process.cpu_times(), time.process_time()
                        done, start = 0.0, time.perf_counter()
                        while time.perf_counter() - start < round_s:
                            get_batches(client, some, batch, 3, seed)
                            done += len(some) / batch
                        client_s, after = time.process_time() - client_before, process.cpu_times()
                        node_s = after.user + after.system - node_before.user - node_before.system
                        found.append((node_s / done, client_s / done))
                    best = np.array(found).min(axis=0)
                    points.append(Point(size_bytes, batch, float(best[0]), float(best[1])))
    return points


def fit(points: list[Point], seconds: Callable[[Point], float]) -> tuple[npt.NDArray[np.float64], list[float]]:
    """Per request, entry and byte; and the relative error at each point."""
    rows = np.array([[1.0, point.batch, point.batch * point.size_bytes] for point in points])
    wanted = np.array([seconds(point) for point in points])
    relative, used = rows / wanted[:, None], [0, 1, 2]
    while True:
        solved = np.zeros(3)
        solved[used] = np.linalg.lstsq(relative[:, used], np.ones(len(points)), rcond=None)[0]
        if (solved >= 0).all():
            return solved, (rows @ solved / wanted - 1).tolist()
        used = [column for column in used if solved[column] > 0]


def measure_read_byte_s(rounds: int) -> float:
    """Seconds of CPU time per byte of the embedded store: read and verified, not sent."""
    import ais_loader
    from benchmarks.clients import get_batches, object_names
    from benchmarks.getbatch import fill

    size_bytes, names = 100 << 10, object_names(2_000)
    with tempfile.TemporaryDirectory() as folder:
        fill(Path(folder) / "store", len(names), size_bytes)
        with ais_loader.connect(Path(folder) / "store", mode="r") as client:
            found = []
            for seed in range(rounds + 1):
                start = time.process_time()
                get_batches(client, names, 128, 1, seed)
                found.append(time.process_time() - start)
    return min(found) / (size_bytes * len(names))


def measure_placement_s(rounds: int) -> float:
    from ais_loader.wire.cluster_map import HostPlacement, Place

    hosts, entries = 1_000, 1_024
    keys = [xxhash.xxh3_64_intdigest(f"host-{at}".encode()) for at in range(hosts)]
    placement = HostPlacement([Place(at, f"host-{at}", keys[at], 1.0) for at in range(hosts)])
    hashes = np.random.default_rng(0).integers(0, 2**64, entries, np.uint64)
    found = []
    for _ in range(rounds + 2):
        start = time.process_time()
        placement.owners(hashes, 1)
        found.append(time.process_time() - start)
    return min(found) / hosts / entries


@click.command(help=__doc__)
@click.option("--rounds", default=3, show_default=True)
@click.option("--round-s", default=0.6, show_default=True, help="Seconds of a round, at least.")
def main(rounds: int, round_s: float) -> None:
    points = measure_points(rounds, round_s)
    for point in points:
        click.echo(
            f"{point.size_bytes >> 10:>5} KiB × {point.batch:<4} node {point.node_s * 1e6:>8.0f} µs/request   "
            f"client {point.client_s * 1e6:>8.0f} µs/request"
        )
    several = [point for point in points if point.batch > 1]
    small = next(point for point in points if point.batch == 1 and point.size_bytes == 10 << 10)
    sides: list[tuple[str, Callable[[Point], float]]] = [
        ("node", lambda point: point.node_s),
        ("client", lambda point: point.client_s),
    ]
    for side, seconds in sides:
        (request, entry, byte), errors = fit(several, seconds)
        single = seconds(small) - entry - byte * small.size_bytes
        click.echo(
            f"{side}_request_s={request * 1e6:.0f}e-6, {side}_single_s={single * 1e6:.0f}e-6, "
            f"{side}_entry_s={entry * 1e6:.2f}e-6, {side}_byte_s={byte * 1e9:.3f}e-9; "
            f"fit off by {', '.join(f'{error:+.0%}' for error in errors)}"
        )
    click.echo(f"read_byte_s={measure_read_byte_s(rounds) * 1e9:.3f}e-9 (with node_entry_s; take that off)")
    click.echo(f"placement_s={measure_placement_s(rounds) * 1e9:.1f}e-9")


if __name__ == "__main__":
    main()
