"""Memory use of a node and a client: while 10 GiB stream through them, and with 1,024 sessions open.

This isolates memory from speed: one GetBatch requests objects of 1 MiB again and again, and the peak growth is read
from /proc. Then 1,024 sessions are opened on one node, and 32 of them are busy.

    python -m benchmarks.reads.memory  # writes the table beside this file
"""

from __future__ import annotations

import resource
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import click

import ais_loader
from ais_loader.testing import NodeProcess, peak_rss_bytes, reset_peak_rss, rss_bytes
from benchmarks.kit.harness import machine
from benchmarks.kit.load import Load, fill

TABLE = Path(__file__).with_suffix(".md")
MIB = 1 << 20
LIMIT_BYTES = 256 * MIB


def stream(node: NodeProcess, client: ais_loader.Client, load: Load, total_bytes: int) -> tuple[int, int, int]:
    """Bytes received, and by how much the client and the node grew at their peak."""
    names, bucket = load.names, client.bucket(load.bucket)
    for _ in bucket.get_batch(names[:64]):  # both have their code and buffers before the count begins
        pass
    pids = (None, node.pid)
    for pid in pids:
        reset_peak_rss(pid)
    before = [rss_bytes(pid) for pid in pids]
    asked = (names * (total_bytes // MIB // len(names) + 1))[: total_bytes // MIB]
    received = sum(len(item.data) for item in bucket.get_batch(asked))
    after = [peak_rss_bytes(pid) for pid in pids]
    return received, after[0] - before[0], after[1] - before[1]


def open_sessions(node: NodeProcess, load: Load, idle: int, busy: int) -> tuple[int, int, float]:
    """Growth of the node with `idle` sessions open, then with `busy` of them working; MiB/s that these moved."""
    names = load.names
    before = rss_bytes(node.pid)
    with ExitStack() as held:
        clients = [held.enter_context(ais_loader.connect(node.url)) for _ in range(idle)]

        def touch(client: ais_loader.Client) -> None:
            assert len(client.bucket(load.bucket).get_batch(names[:1]).tobytes()) == 1

        with ThreadPoolExecutor(32) as pool:
            list(pool.map(touch, clients))
        described = clients[0].describe()
        assert described["open_sessions"] >= idle, described  # type: ignore[operator]
        idle_growth = rss_bytes(node.pid) - before
        reset_peak_rss(node.pid)

        def work(client: ais_loader.Client) -> int:
            return sum(len(item.data) for item in client.bucket(load.bucket).get_batch(names[:200]))

        start = time.perf_counter()
        with ThreadPoolExecutor(busy) as pool:
            moved = sum(pool.map(work, clients[:busy]))
        rate = moved / MIB / (time.perf_counter() - start)
        return idle_growth, peak_rss_bytes(node.pid) - before, rate


@click.command(help=__doc__)
@click.option("--gib", default=10, show_default=True, help="How much to stream, in GiB.")
@click.option("--write/--no-write", default=True, help=f"Write the table to {TABLE.name}.")
def main(gib: int, write: bool) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 16_384)), hard))
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "store"
        load = fill(store, 1000, MIB)
        with NodeProcess([store]) as node, ais_loader.connect(node.url) as client:
            received, client_growth, node_growth = stream(node, client, load, gib << 30)
        with NodeProcess([store]) as node:
            idle_growth, busy_growth, rate = open_sessions(node, load, 1024, 32)
    rows = [
        (f"client, peak growth over a GetBatch of {received / 2**30:.1f} GiB", client_growth, LIMIT_BYTES),
        (f"node, peak growth over a GetBatch of {received / 2**30:.1f} GiB", node_growth, LIMIT_BYTES),
        ("node, growth with 1,024 idle sessions", idle_growth, None),
        (f"node, peak growth with 32 of them busy ({rate:,.0f} MiB/s)", busy_growth, None),
    ]
    lines = ["| what | MiB | limit |", "|---|---:|---:|"]
    lines += [f"| {what} | {value >> 20} | {limit >> 20 if limit else '–'} |" for what, value, limit in rows]
    first_line = (__doc__ or "").strip().splitlines()[0]
    text = f"# Memory\n\n{first_line}\n\nMachine: {machine()}.\n\n" + "\n".join(lines) + "\n"
    click.echo(text)
    if write:
        TABLE.write_text(text)
    raise SystemExit(0 if all(limit is None or value < limit for _, value, limit in rows) else 1)


if __name__ == "__main__":
    main()
