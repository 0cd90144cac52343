"""Cost of an operation in clusters of 3, 5 and 9 nodes, and what that makes of 64, 256 and 1,000.

This isolates what grows with the number of nodes, for buckets with two copies of 1 KiB objects: processor time of the
nodes and of the client, and bytes and packets that all nodes send. Each node is a process on a machine of its own,
made of namespaces on one real machine. An idle cluster shows what nodes tell each other anyway, renewals of leases
most of all; what it costs in the time of an operation is subtracted from that operation's figures.

Prediction, written before the first run. A PUT and a GET cost the same in any cluster, since their nodes are computed.
A batch of 128 costs the nodes 0.1 ms more for each node that has a part in it. A listing and the creation of a bucket
ask every node: they grow in proportion. So does what each idle node sends, as each node renews with each other one:
the cluster's total grows by the square, which must level off where renewals become rarer in large clusters.

The second table extends the line that fits the three sizes best, and says how far the farthest figure is from it. A
figure that is more than a quarter off is not extended, nor is an idle cluster: its square fits, but leases are renewed
less often in large clusters. All nodes share two cores and their caches here, so that a PUT or a GET takes more
processor time with each further process, though it concerns as many nodes, and its bytes do not grow. Read the table
for what saturates first, not as measurements.

    python -m benchmarks.cluster.sizes  # some minutes
"""

from __future__ import annotations

import functools
import itertools
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import click

import ais_loader
from benchmarks.kit.counted_cluster import Cost, CountedCluster, patiently
from benchmarks.kit.harness import page

TABLE = Path(__file__).with_suffix(".md")
SIZES, MODELED = (3, 5, 9), (64, 256, 1000)
OBJECTS, OBJECT_BYTES, BATCH = 3000, 1 << 10, 128
SETTLE_S, IDLE_S = 12.0, 15.0
BATCH_OF, FIRST = "batch of", "first batch of"
MOST_OFF = 0.25
IDLE = "one second of an idle cluster"
HEAD = """| operation | nodes | processor µs of the nodes | of the client | bytes sent | packets | wall ms |
|---|---:|---:|---:|---:|---:|---:|"""


def measure(root: Path, nodes: int) -> dict[str, Cost]:
    """Mean cost of each operation in a cluster of so many nodes."""
    with CountedCluster(root, nodes) as cluster, ais_loader.connect(cluster.url) as client:
        bucket = client.create_bucket("b", copies=2)
        names = [f"{number:05}" for number in range(OBJECTS)]
        patiently(lambda: bucket.put_many((name, bytes(OBJECT_BYTES)) for name in names))
        time.sleep(SETTLE_S)
        idle = cluster.cost(lambda: time.sleep(IDLE_S))
        some, again, more = (itertools.cycle(names) for _ in range(3))

        def batch(of: ais_loader.Client) -> None:
            with of.get_batch([ais_loader.Entry("b", name) for name in itertools.islice(more, BATCH)]) as items:
                assert sum(1 for _ in items) == BATCH

        def first_batch() -> None:
            with ais_loader.connect(cluster.url) as other:
                batch(other)

        # The first calls of each pair of nodes make its connections, which is done once and not counted.
        operations: dict[str, tuple[Callable[[], object], int, int]] = {
            "PUT, two copies": (lambda: bucket.put(next(some), bytes(OBJECT_BYTES)), 1000, 1000),
            "GET": (lambda: bucket.get(next(again)), 1000, 2000),
            f"{BATCH_OF} {BATCH}": (lambda: batch(client), 50, 400),
            f"{FIRST} {BATCH} of a new client": (first_batch, 1, 20),
            f"listing of {OBJECTS:,}": (lambda: sum(1 for _ in bucket.objects()), 1, 20),
            "one more bucket": (lambda: client.create_bucket(f"bucket-{next(some)}", exist_ok=True), 1, 20),
        }
        found = {IDLE: Cost(*(one / idle.wall_s for one in idle))}
        for name, (action, first, times) in operations.items():
            for _ in range(first):
                patiently(action)
            cost = cluster.cost(functools.partial(patiently, action), times)
            rest = (of - cost.wall_s * every for of, every in zip(cost, found[IDLE], strict=True))
            found[name] = Cost(*rest)._replace(wall_s=cost.wall_s)
        return found


def fitted(sizes: Sequence[int], figures: Sequence[float], *, square: bool) -> Callable[[int], float]:
    """Return the line a + b n (or n²) that fits the figures best, with b of at least 0."""
    x = [size**2 if square else size for size in sizes]
    mean_x, mean = sum(x) / len(x), sum(figures) / len(figures)
    slope = sum((one - mean_x) * (figure - mean) for one, figure in zip(x, figures, strict=True))
    slope = max(0.0, slope / sum((one - mean_x) ** 2 for one in x))
    return lambda size: mean + slope * ((size**2 if square else size) - mean_x)


def tables(costs: Sequence[dict[str, Cost]]) -> tuple[str, str]:
    """Measured figures, and what they make of larger clusters."""
    larger = " | ".join(f"{nodes:,}" for nodes in MODELED)
    rows, modeled = [HEAD], [f"| operation | figure | farthest from the line | {larger} |"]
    modeled.append("|---|---|---:|" + "---:|" * len(MODELED))
    for name in costs[0]:
        for nodes, cost in zip(SIZES, (one[name] for one in costs), strict=True):
            rows.append(
                f"| {name} | {nodes} | {1e6 * cost.nodes_s:,.0f} | {1e6 * cost.client_s:,.0f} "
                f"| {cost.sent_bytes:,.0f} | {cost.packets:,.0f} | {1e3 * cost.wall_s:,.1f} |"
            )
        for what, factor in (("nodes_s", 1e6), ("sent_bytes", 1.0)):
            figures = [factor * getattr(one[name], what) for one in costs]
            line = fitted(SIZES, figures, square=name == IDLE)
            off = max((figure / line(size) - 1 for size, figure in zip(SIZES, figures, strict=True)), key=abs)
            is_line = abs(off) <= MOST_OFF and name != IDLE
            shown = " | ".join(f"{line(at):,.0f}" if is_line else "–" for at in MODELED)
            label = "processor µs of the nodes" if what == "nodes_s" else "bytes sent"
            modeled.append(f"| {name} | {label} | {off:+.0%} | {shown} |")
    return "\n".join(rows), "\n".join(modeled)


@click.command(help=__doc__)
@click.option("--write/--no-write", default=True, show_default=True, help="Whether to write the table.")
def main(write: bool) -> None:
    costs = []
    for nodes in SIZES:
        with tempfile.TemporaryDirectory() as folder:
            costs.append(measure(Path(folder), nodes))
    measured, modeled = tables(costs)
    setting = f"{OBJECTS:,} objects of {OBJECT_BYTES} bytes; figures are means, of {IDLE_S:g} s for an idle cluster."
    parts = ("## Measured", measured, "## Extended to larger clusters", modeled)
    text = page("Sizes of a cluster", __doc__ or "", setting, *parts) + "\n"
    click.echo(text)
    if write:
        TABLE.write_text(text)


if __name__ == "__main__":
    main()
