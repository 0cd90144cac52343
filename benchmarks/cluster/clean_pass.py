"""Cost of finding out that nothing has changed in a cluster, or what has: a repair pass, a restart, lost copies.

This isolates the comparison of copies. Three nodes in one process keep two copies of each object. Passes begin when
this program says so. Measured is the processor time of the process, less what it takes when nothing happens. Bytes are
those of requests between nodes and of their responses, without the objects.

Prediction, written before the first run. A pass that finds nothing takes milliseconds at 10⁵ names a node, and less
than 1 % of a core at 10⁶ names and a pass a minute. A restart reads the node's own entries once, 1 µs for each. A lost
copy costs the comparison of the names in its range, 256 on average and 60 µs each, by both owners. Without digests, it
is 60 µs for every name in each pass, and twice that for every copy anywhere in a restart. After the first run, ranges
became smaller, of 64 names: with 256, 100 lost copies among 10⁴ took 1.4 s.

    python -m benchmarks.cluster.clean_pass 10000 100000 1000000
"""

from __future__ import annotations

import resource
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

from ais_loader.errors import LoaderError
from ais_loader.testing import eventually
from benchmarks.kit.harness import page
from storage_node.context.channels import Channels
from storage_node.server import NodeServer
from storage_node.store.format import Version
from storage_node.store.store import Store
from tests.node.cluster_kit import BUCKET, LocalCluster

NODES, COPIES, LOST, GROUP = 3, 2, 100, 1000
TIMEOUT_S, IDLE_S = 3600.0, 3.0
TABLE = Path(__file__).with_suffix(".md")
HEAD = """| names a node | what | processor ms | µs for each name | bytes | s |
|---:|---|---:|---:|---:|---:|"""
_sent_bytes = 0


def count_bytes() -> None:
    """Count what nodes ask each other, from now on."""
    ask = Channels.ask

    async def counted(
        self: Channels, endpoint: str, stub: Any, method: str, request: Any, *rest: Any, **of: Any
    ) -> Any:
        global _sent_bytes
        response = await ask(self, endpoint, stub, method, request, *rest, **of)
        _sent_bytes += request.ByteSize() + response.ByteSize()
        return response

    Channels.ask = counted  # type: ignore[method-assign]


def processor_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


class Measured:
    """Rows of the table, of so many names on each node."""

    def __init__(self, names: int) -> None:
        self._names = names
        used_s = processor_s()
        time.sleep(IDLE_S)
        self._idle = (processor_s() - used_s) / IDLE_S

    def row(self, what: str, step: Callable[[], None]) -> None:
        began_s, used_s, sent = time.monotonic(), processor_s(), _sent_bytes
        step()
        taken_s = time.monotonic() - began_s
        used_s = max(0.0, processor_s() - used_s - self._idle * taken_s)
        each = f"{used_s / self._names * 1e6:,.2f}"
        row = f"| {self._names:,} | {what} | {used_s * 1000:,.0f} | {each} | {_sent_bytes - sent:,} | {taken_s:,.1f} |"
        click.echo(row)
        rows.append(row)


rows: list[str] = []


def store_of(node: NodeServer) -> Store:
    assert node.batches is not None
    return node.batches.node.store


def put(cluster: LocalCluster, names: Sequence[str]) -> None:
    """Put small objects on their owners, in one version, without the protocol of writes."""
    owners = dict(zip(names, cluster.view.concerned(cluster.view.buckets[BUCKET], names), strict=True))
    version = Version(1, max(store_of(node).replicas.clock for node in cluster.nodes) + 1)
    for number, node in enumerate(cluster.nodes):
        store = store_of(node)
        uploads = [store.stage(BUCKET, name, [b"x"], {}, grouped=True) for name in names if number in owners[name]]
        for upload in uploads:
            upload.assign(version)
        assert not any(isinstance(result, LoaderError) for result in store.commit_many(uploads))


def one_pass(cluster: LocalCluster) -> None:
    """Have every node make a pass."""
    before = [node.repair.metrics.passes for node in cluster.nodes]
    for node in cluster.nodes:
        assert node._loop is not None
        node._loop.call_soon_threadsafe(node.repair.wake)
    eventually(
        lambda: all(node.repair.metrics.passes > at for node, at in zip(cluster.nodes, before, strict=True)), TIMEOUT_S
    )


def restart(root: Path, cluster: LocalCluster, number: int, running: ExitStack) -> None:
    config = cluster.nodes[number].config.replace(port=cluster.nodes[number].port)
    cluster.nodes[number].stop(grace_s=0.2)
    cluster.nodes[number] = node = running.enter_context(NodeServer([root / f"node-{number}"], config))
    eventually(lambda: not store_of(node).replicas.stale.any, TIMEOUT_S)


def lose(store: Store, most: int) -> None:
    """Remove copies, spread over the names, as if they had never been there."""
    names = [name for name, _ in store.objects(BUCKET)]
    for name in names[:: max(1, len(names) // most)][:most]:
        store.delete(BUCKET, name)


def repaired(cluster: LocalCluster, number: int, names: int) -> None:
    """Have passes made until the node has so many objects again."""
    while True:
        one_pass(cluster)
        if sum(1 for _ in store_of(cluster.nodes[number]).replicas.versions(BUCKET)) == names:
            return


def measure(root: Path, names: int) -> None:
    total = names * NODES // COPIES
    with LocalCluster(root, NODES, copies=COPIES, repair_interval_s=3600.0) as cluster, ExitStack() as running:
        for first in range(0, total, GROUP):
            put(cluster, [f"train/{at:08d}.bin" for at in range(first, min(first + GROUP, total))])
        held = [sum(1 for _ in store_of(node).replicas.versions(BUCKET)) for node in cluster.nodes]
        assert sum(held) == total * COPIES
        of = Measured(names)
        of.row("first pass of 3 nodes", lambda: one_pass(cluster))
        of.row("pass of 3 nodes, nothing changed", lambda: one_pass(cluster))
        of.row("the same again", lambda: one_pass(cluster))
        of.row("restart of a node, nothing changed", lambda: restart(root, cluster, 0, running))
        lose(store_of(cluster.nodes[1]), LOST)
        of.row(f"{LOST} copies lost on a node: passes until it has them", lambda: repaired(cluster, 1, held[1]))
        lose(store_of(cluster.nodes[2]), held[2])
        of.row("all copies lost on a node: passes until it has them", lambda: repaired(cluster, 2, held[2]))


@click.command(help=(__doc__ or "").split("\n\n")[0])
@click.argument("names", nargs=-1, type=int, required=True)
@click.option("--write/--no-write", default=True, show_default=True)
def main(names: tuple[int, ...], write: bool) -> None:
    count_bytes()
    for count in names:
        with tempfile.TemporaryDirectory() as folder:
            measure(Path(folder), count)
    if write:
        story = (__doc__ or "").split("\n\n    python")[0]
        setting = f"{NODES} nodes, {COPIES} copies, objects of 1 byte"
        TABLE.write_text(page("Finding out that nothing has changed", story, setting, "\n".join([HEAD, *rows])) + "\n")


if __name__ == "__main__":
    main()
