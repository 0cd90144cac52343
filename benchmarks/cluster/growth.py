"""Growth: what buckets, listings and lost nodes cost, by how many buckets and names there are.

This isolates what grows with a cluster's contents. Each figure is a mean or a sum of counts, of three nodes that keep
two copies, each on a machine of its own made of namespaces: processor time, bytes written to files, and bytes and
packets sent by all nodes. Passes that find nothing to repair, and restarts, are measured by
`benchmarks.cluster.clean_pass`.

Prediction, written before the first run. Before, each creation of a bucket wrote and sent the whole map several times,
and the record of every drive: 4 times the processor time of the first ones at 1,000 buckets, and 35 times their bytes.
With changes in place of maps, the bytes are the same at any number of buckets, and number 2,000 takes less than twice
the processor time: copying and comparing a map of 80 KB takes each node a few milliseconds. A listing costs each node
1 µs, and its client 5 µs, for each name, so 10⁵ names take ten times as much as 10⁴. A lost node costs its share of
copies, 100 µs each on both sides.

    python -m benchmarks.cluster.growth  # some minutes; --large for 10⁶ names a node as well
"""

from __future__ import annotations

import functools
import itertools
import os
import statistics
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import click

import ais_loader
from ais_loader.testing import eventually
from ais_loader.wire.generated import ais_cluster_pb2 as pb
from benchmarks.kit.counted_cluster import Cost, CountedCluster, patiently, written_bytes
from benchmarks.kit.harness import conclude, page
from storage_node.cluster.consensus.change import change_map
from storage_node.cluster.map.mutations import remove_node
from tests.peer_kit import PROCESS_OPERATOR

TABLE = Path(__file__).with_suffix(".md")
NODES, COPIES, REPEATS, OBJECT_BYTES, SETTLE_S = 3, 2, 40, 100, 8.0
BUCKETS, NAMES, LARGE = (0, 10, 100, 1000, 2000), (10_000, 100_000), 1_000_000
TIMEOUT_S = 3600.0
MOST_GROWTH = 2.0
BEFORE = {
    0: (0.36, 894, 29.0, 14_370, 15_048),
    10: (0.38, 1_904, 23.0, 26_686, 20_891),
    100: (0.86, 10_995, 33.0, 122_803, 68_069),
    1000: (5.39, 101_896, 129.0, 942_745, 446_755),
}
"""Embedded: processor ms and bytes written; cluster: processor ms of the nodes, bytes written and sent. Measured by a
draft of this benchmark, of the version that wrote and sent whole maps."""


def embedded_buckets(folder: Path) -> Iterator[tuple[float, float]]:
    """Yield, for each number of buckets, processor seconds and written bytes of one more."""
    made = itertools.count()
    with ais_loader.connect(folder) as client:
        for count in BUCKETS:
            while (number := next(made)) < count:
                client.create_bucket(f"bucket-{number:05}")
            began_s, began_bytes = time.process_time(), written_bytes(os.getpid())
            for _ in range(REPEATS):
                client.create_bucket(f"bucket-{next(made):05}")
            used_s, used_bytes = time.process_time() - began_s, written_bytes(os.getpid()) - began_bytes
            yield used_s / REPEATS, used_bytes / REPEATS


def cluster_buckets(folder: Path) -> Iterator[Cost]:
    """Yield the cost of one more bucket for each number of buckets, which are made by one change."""
    with CountedCluster(folder, NODES) as cluster, ais_loader.connect(cluster.url) as client:
        made = itertools.count()

        def fill(count: int, map_: pb.ClusterMap | None) -> pb.ClusterMap:
            assert map_ is not None
            while len(map_.bucket) < count:
                map_.bucket.add(name=f"b-{len(map_.bucket):05}", uuid=uuid.uuid4().bytes, copies=COPIES, min_copies=1)
            return map_

        for count in BUCKETS:
            endpoints, edit = [node.peer_endpoint for node in cluster.nodes], functools.partial(fill, count)
            change_map(endpoints, edit, timeout_s=60.0, caller=PROCESS_OPERATOR)
            time.sleep(SETTLE_S)
            client.create_bucket(f"more-{next(made):05}")  # its client and its drives get the map as a whole
            costs = [cluster.cost(lambda: client.create_bucket(f"more-{next(made):05}")) for _ in range(REPEATS)]
            middle = Cost(*map(statistics.median, zip(*costs, strict=True)))
            yield middle._replace(nodes_s=sum(cost.nodes_s for cost in costs) / REPEATS)  # counted in steps of 10 ms


def bucket_table(root: Path) -> tuple[str, bool]:
    embedded, cluster = list(embedded_buckets(root / "embedded")), list(cluster_buckets(root / "cluster"))
    lines = [
        "| buckets | embedded: processor ms | before | bytes written | before | 3 nodes: processor ms | before "
        "| bytes written | before | bytes sent | before |",
        "|---:|" + "---:|" * 10,
    ]
    for count, (used_s, used_bytes), cost in zip(BUCKETS, embedded, cluster, strict=True):
        before = [f"{one:,.4g}" if one < 1000 else f"{one:,}" for one in BEFORE.get(count, ())] or ["–"] * 5
        lines.append(
            f"| {count:,} | {1e3 * used_s:.2f} | {before[0]} | {used_bytes:,.0f} | {before[1]} "
            f"| {1e3 * cost.nodes_s:.0f} | {before[2]} | {cost.written_bytes:,.0f} | {before[3]} "
            f"| {cost.sent_bytes:,.0f} | {before[4]} |"
        )
    growth = [
        embedded[-1][0] / embedded[0][0],
        cluster[-1].nodes_s / cluster[0].nodes_s,
        cluster[-1].sent_bytes / cluster[0].sent_bytes,
        cluster[-1].written_bytes / cluster[0].written_bytes,
    ]
    named = ("embedded processor time", "processor time of the nodes", "bytes sent", "bytes written")
    ratios = ", ".join(f"{what} {ratio:.2f}×" for what, ratio in zip(named, growth, strict=True))
    verdict = f"The last row ÷ the first one: {ratios}; wanted: at most {MOST_GROWTH:g}×."
    return "\n".join(lines) + f"\n\n{verdict}", all(ratio <= MOST_GROWTH for ratio in growth)


def names_rows(root: Path, names_a_node: int) -> tuple[str, str]:
    """Return a row of the listing, and one of the repair after a lost node."""
    objects = names_a_node * NODES // COPIES
    with CountedCluster(root, NODES, metrics=True) as cluster, ais_loader.connect(cluster.url) as client:
        bucket = client.create_bucket("b", copies=COPIES)
        names = [f"{number:08}" for number in range(objects)]
        for part in (names[first : first + 1000] for first in range(0, objects, 1000)):
            patiently(lambda part=part: bucket.put_many((name, bytes(OBJECT_BYTES)) for name in part))  # type: ignore[misc]
        cost = cluster.cost(lambda: sum(1 for _ in bucket.objects()))
        listing = (
            f"| {names_a_node:,} | {objects:,} | {1e3 * cost.nodes_s:,.0f} | {1e3 * cost.client_s:,.0f} "
            f"| {1e6 * (cost.nodes_s + cost.client_s) / objects:.1f} | {cost.sent_bytes:,.0f} | {cost.packets:,.0f} "
            f"| {cost.wall_s:.2f} |"
        )
        lost = cluster.nodes[-1]
        lost_uuid = cluster.uuid_of(NODES - 1)
        lost.kill()
        before = cluster.count()
        endpoints = [node.peer_endpoint for node in cluster.nodes[:-1]]
        change_map(endpoints, remove_node(lost_uuid), timeout_s=60.0, caller=PROCESS_OPERATOR)
        copied = [0.0]

        def is_repaired() -> bool:
            time.sleep(3.0)
            found = sum(
                value
                for node in cluster.nodes[:-1]
                for name, value in node.numbers().items()
                if name.startswith("ais_loader_repair_objects_total")
            )
            is_over, copied[0] = found > 0.9 * names_a_node and found == copied[0], found
            return is_over  # a third of the copies of 1.5 times as many objects are made again, more or less

        eventually(is_repaired, timeout_s=TIMEOUT_S)
        cost = Cost(*(now - then for then, now in zip(before, cluster.count(), strict=True)))
        repair = (
            f"| {names_a_node:,} | {copied[0]:,.0f} | {1e3 * cost.nodes_s:,.0f} "
            f"| {1e6 * cost.nodes_s / max(1.0, copied[0]):.0f} | {cost.sent_bytes:,.0f} | {cost.written_bytes:,.0f} |"
        )
        return listing, repair


@click.command(help=__doc__)
@click.option("--large", is_flag=True, help="10⁶ names a node as well.")
@click.option("--write/--no-write", default=True, show_default=True, help="Whether to write the table.")
def main(large: bool, write: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        buckets, reached = bucket_table(root)
        click.echo(buckets)
        measured = [names_rows(root / str(count), count) for count in (*NAMES, *((LARGE,) if large else ()))]
    listings = [
        "| names a node | objects | processor ms of nodes | of the client | µs for each | bytes sent | packets | s |",
        "|" + "---:|" * 8,
        *(row for row, _ in measured),
    ]
    repairs = [
        "| names a node | copies made | processor ms of the nodes | µs for each | bytes sent | bytes written |",
        "|" + "---:|" * 6,
        *(row for _, row in measured),
    ]
    setting = (
        f"{NODES} nodes, {COPIES} copies of {OBJECT_BYTES} bytes. Of {REPEATS} creations, the mean processor time and "
        "the median of the bytes. Once in a thousand creations a file is written whole, which on average doubles the "
        "bytes written."
    )
    parts = (
        "## One more bucket",
        buckets,
        "## Listings",
        "\n".join(listings),
        "## One node is lost",
        "\n".join(repairs),
    )
    text = page("Growth of a cluster", __doc__ or "", setting, *parts) + "\n"
    click.echo(text)
    conclude(text, TABLE if write else None, reached=reached)


if __name__ == "__main__":
    main()
