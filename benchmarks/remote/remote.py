"""Remote buckets compared with the cloud itself, and with a bucket that has no remote storage.

    python -m benchmarks.remote.remote  # writes the table beside this file
    python -m benchmarks.remote.remote members  # writes its section on members of cold shards

The cloud is an S3 server (moto) behind a proxy that adds 50 ms to each request and shares a fixed bandwidth among all
bodies. "direct" is obstore, the client library of the nodes, in this process, with the same number of requests in
flight. "cold" reads objects that the node does not have, in one batch; "warm" reads them again; "local" reads a bucket
without remote storage. Each round has new objects. Rates are MB/s. The proxy counts requests.

Prediction, written before the first run: cold reads reach 0.95 of direct, since a fetch is one request, and storing
1 MB costs 2 ms beside a transfer of 10 ms. Warm reads reach 0.98 of local ones: the look-up asks one dictionary more. A
PUT through reaches 0.9 of direct at 10 MB, because the bytes reach the node before the cloud. A batch of 128 with six
cold entries takes 1.2 times as long as those six alone.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import click
import obstore
from obstore.store import S3Store

import ais_loader
from ais_loader import Bucket, Client, Entry, Remote
from ais_loader.testing import NodeProcess, seeded_bytes
from benchmarks.kit.harness import Claim, run_rounds
from benchmarks.kit.pages import publish
from benchmarks.remote.cold_members import cold_members, section_of, with_section
from tests.remote.backend_kit import ANY_HOST
from tests.remote.fault_proxy import FaultProxy
from tests.remote.s3_server import CREDENTIALS, S3Server

MB = 10**6
SIZES = {"1 MB": MB, "10 MB": 10 * MB}
LATENCY_S = 0.05
IN_FLIGHT = 32
TABLE = Path(__file__).with_suffix(".md")


class Cloud:
    """New objects of one size, each round."""

    def __init__(self, server: S3Server, proxy: FaultProxy, size_bytes: int, count: int) -> None:
        self.server, self.proxy, self.size_bytes, self.count = server, proxy, size_bytes, count
        self.name = server.bucket()
        self._numbers = itertools.count()
        self._data = seeded_bytes(size_bytes, seed=1)

    def new_objects(self) -> list[str]:
        round_ = next(self._numbers)
        names = [f"{round_}/{number:04}" for number in range(self.count)]
        for name in names:
            self.server.put(self.name, name, self._data)
        return names

    @property
    def data(self) -> bytes:
        return self._data

    @property
    def total_mb(self) -> float:
        return self.size_bytes * self.count / MB

    def store(self) -> S3Store:
        return S3Store(
            self.name, endpoint=self.proxy.url, client_options={"allow_http": True}, virtual_hosted_style_request=False
        )


def direct_reads(cloud: Cloud) -> Callable[[], float]:
    return lambda: cloud.total_mb / direct_s(cloud, cloud.new_objects())


def direct_s(cloud: Cloud, names: list[str]) -> float:
    """Return the time in seconds that obstore takes for these objects."""
    store = cloud.store()

    async def read_all() -> None:
        turns = asyncio.Semaphore(IN_FLIGHT)

        async def read(name: str) -> None:
            async with turns:
                answer = await obstore.get_async(store, name)
                assert len(await answer.bytes_async()) > 0

        await asyncio.gather(*map(read, names))

    began_s = time.perf_counter()
    asyncio.run(read_all())
    return time.perf_counter() - began_s


def read_all(client: Client, bucket: str, names: list[str], size_bytes: int) -> float:
    """Return the time in seconds."""
    began_s = time.perf_counter()
    for item in client.get_batch([Entry(bucket, name) for name in names]):
        assert len(item.data) == size_bytes
    return time.perf_counter() - began_s


def node_reads(cloud: Cloud, client: Client) -> tuple[Callable[[], float], Callable[[], float], Callable[[], float]]:
    """Return cold, warm and local reads; warm ones read what the last cold ones have stored."""
    remote = client.create_bucket(
        f"r-{cloud.size_bytes}", remote=Remote(f"s3://{cloud.name}", endpoint=cloud.proxy.url)
    )
    local = client.create_bucket(f"l-{cloud.size_bytes}")
    kept: list[str] = []

    def cold() -> float:
        kept[:] = cloud.new_objects()
        return cloud.total_mb / read_all(client, remote.name, kept, cloud.size_bytes)

    def again(bucket: Bucket) -> Callable[[], float]:
        def run() -> float:
            if not kept:
                cold()
            if bucket is local:
                local.put_many([(name, cloud.data) for name in kept if not local.exists(name)])
            read_all(client, bucket.name, kept, cloud.size_bytes)
            return cloud.total_mb / min(read_all(client, bucket.name, kept, cloud.size_bytes) for _ in range(3))

        return run

    return cold, again(remote), again(local)


def direct_puts(cloud: Cloud, *, part_bytes: int = 0) -> Callable[[], float]:
    """Put by obstore: each object with one request, or in parts as a node does."""
    parts: dict[str, Any] = {"use_multipart": False}
    if part_bytes:
        parts = {"use_multipart": True, "chunk_size": part_bytes, "max_concurrency": 4}
    numbers = itertools.count()

    def run() -> float:
        store, round_ = cloud.store(), next(numbers)
        began_s = time.perf_counter()
        for number in range(cloud.count // 4):
            obstore.put(store, f"direct/{round_}/{number}", cloud.data, **parts)
        return cloud.total_mb / 4 / (time.perf_counter() - began_s)

    return run


def node_puts(cloud: Cloud, client: Client, bucket_name: str, *, flush: bool = False) -> Callable[[], float]:
    """Put to a bucket of the node. `flush`: wait for the uploads afterwards, outside the measured time."""
    numbers, bucket = itertools.count(), client.bucket(bucket_name)

    def run() -> float:
        round_ = next(numbers)
        began_s = time.perf_counter()
        for number in range(cloud.count // 4):
            bucket.put(f"put/{round_}/{number}", cloud.data)
        took_s = time.perf_counter() - began_s
        if flush:
            bucket.flush()
        return cloud.total_mb / 4 / took_s

    return run


def counted(cloud: Cloud, client: Client, url: str) -> list[str]:
    """Return lines about numbers of requests, and about a batch with a few cold entries."""
    bucket, proxy = client.bucket(f"r-{cloud.size_bytes}"), cloud.proxy
    names = [f"counted/{number:04}" for number in range(500)]
    for name in names:
        cloud.server.put(cloud.name, name, b"x" * 10_000)
    proxy.forget()
    with ThreadPoolExecutor(64) as pool:
        list(pool.map(lambda _: bucket.get(names[0]), range(64)))
    one = proxy.count("GET", f"{cloud.name}/{names[0]}")
    proxy.forget()
    epochs = []
    for _ in range(2):
        read_all(client, bucket.name, names[1:], 10_000)
        epochs.append(proxy.count("GET"))
        proxy.forget()
    ratios = []
    for round_ in range(11):
        cold = [f"few/{round_}/{number}" for number in range(6)]
        for name in cold:
            cloud.server.put(cloud.name, name, b"y" * 10_000)
        mixed = names[1:123]
        for at, name in enumerate(cold):
            mixed.insert(at * 20, name)
        ratios.append(read_all(client, bucket.name, mixed, 10_000) / direct_s(cloud, cold))
    return [
        "| what | result | wanted |",
        "|---|---:|---:|",
        f"| requests that 64 clients cause that want one cold object | {one} | 1 |",
        f"| requests of an epoch over {len(names) - 1} cold objects | {epochs[0]} | {len(names) - 1} |",
        f"| requests of the second epoch | {epochs[1]} | 0 |",
        f"| batch of 128 with 6 cold entries ÷ those 6 read directly, median | {sorted(ratios)[5]:.2f} | ≤ 1.3 |",
    ]


@click.group(invoke_without_command=True)
@click.option("--rounds", default=5, show_default=True)
@click.option("--total-mb", default=64, show_default=True, help="Of the objects of one size, in each round.")
@click.option("--bandwidth-mb-s", default=100.0, show_default=True, help="Of the simulated cloud.")
@click.option("--folder", default="/dev/shm", show_default=True, help="For the node's store.")
@click.option("--table/--no-table", default=True, show_default=True, help="Write remote.md.")
@click.pass_context
def main(context: click.Context, rounds: int, total_mb: int, bandwidth_mb_s: float, folder: str, table: bool) -> None:
    os.environ.update(CREDENTIALS)
    if context.invoked_subcommand is not None:
        return
    contestants: dict[str, Callable[[], float]] = {}
    claims: list[Claim] = []
    with (
        tempfile.TemporaryDirectory(dir=folder) as root,
        S3Server() as server,
        FaultProxy(server.endpoint) as proxy,
        NodeProcess(Path(root) / "node", arguments=[*ANY_HOST, "--set", f"remote_max_requests={IN_FLIGHT}"]) as node,
        ais_loader.connect(node.url) as client,
    ):
        proxy.latency_s, proxy.bytes_per_s = LATENCY_S, bandwidth_mb_s * MB
        for text, size in SIZES.items():
            cloud = Cloud(server, proxy, size, max(4, total_mb * MB // size))
            cold, warm, local = node_reads(cloud, client)
            back = Remote(f"s3://{cloud.name}/back", endpoint=proxy.url, write="back")
            client.create_bucket(f"b-{size}", remote=back)
            contestants |= {
                f"direct GET, {text}": direct_reads(cloud),
                f"cold, {text}": cold,
                f"warm, {text}": warm,
                f"local, {text}": local,
                f"direct PUT, {text}": direct_puts(cloud),
                f"write-through, {text}": node_puts(cloud, client, f"r-{size}"),
                f"write-back, {text}": node_puts(cloud, client, f"b-{size}", flush=True),
                f"local PUT, {text}": node_puts(cloud, client, f"l-{size}"),
            }
            claims += [
                Claim(f"cold, {text}", f"direct GET, {text}", 0.95),
                Claim(f"warm, {text}", f"local, {text}", 0.98),
                Claim(f"write-through, {text}", f"direct PUT, {text}", 0.9),
                Claim(f"write-back, {text}", f"local PUT, {text}", 0.98 if size >= 10 * MB else 0.9),
            ]
        rates = run_rounds(contestants, rounds)
        lines = counted(cloud, client, node.url)
    publish(
        "Remote buckets",
        __doc__,
        f"{rounds} rounds of {total_mb} MB for each size; {bandwidth_mb_s:g} MB/s and {LATENCY_S * 1000:g} ms. Client, "
        "node, proxy and S3 server share the cores.",
        rates,
        "MB/s",
        claims,
        "\n".join(lines),
        section_of(TABLE.read_text()),
        table=TABLE if table else None,
    )


@main.command()
@click.pass_context
def members(context: click.Context) -> None:
    """Read members of cold shards."""
    given = context.parent.params if context.parent is not None else {}
    with tempfile.TemporaryDirectory(dir=given["folder"]) as root:
        section = cold_members(Path(root), given["rounds"], LATENCY_S, given["bandwidth_mb_s"])
    click.echo(section)
    if given["table"]:
        TABLE.write_text(with_section(TABLE.read_text(), section))


if __name__ == "__main__":
    main()
