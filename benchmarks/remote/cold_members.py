"""Members of a cold shard, read by range, compared with fetching the shard.

The shard is a tar of 64 MiB behind a proxy that adds 50 ms to each request and shares a fixed bandwidth among all
bodies. "whole" is the time until the shard is stored and the members are read; "first" reads members of a shard of
which nothing is known; "again" reads others of the same shard, whose index is kept.

Finding the members takes a request for each that is larger than about 16 KiB, 24 at once: it saves bytes and space, and
time only where the shard takes longer than that many round trips. It is done once for each version of a shard.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import ais_loader
from ais_loader import Bucket, Client, Entry, Remote
from ais_loader.testing import NodeProcess
from tests.remote.backend_kit import ANY_HOST, Asked, DecidedServer, Reply, content
from tests.remote.fault_proxy import FaultProxy
from tests.tar_kit import packed_tar

MB = 10**6
SHAPES = ((640, 100 << 10), (64, 1 << 20))
"""Numbers of members, and their sizes in bytes."""
WANTED = (1, 8)
HEADING = "## Members of a cold shard"


class _Cost:
    def __init__(self) -> None:
        self.time_s: list[float] = []
        self.requests: list[int] = []
        self.sent_mb: list[float] = []

    def row(self, what: str) -> str:
        time_s, requests = statistics.median(self.time_s), statistics.median(self.requests)
        return f"| {what} | {time_s:.2f} | {requests:.0f} | {statistics.median(self.sent_mb):.1f} |"


def cold_members(folder: Path, rounds: int, latency_s: float, bandwidth_mb_s: float) -> str:
    """Return the section of the page."""
    lines = ["| members | read | seconds | requests | MB from the cloud |", "|---|---|---:|---:|---:|"]
    for count, size_bytes in SHAPES:
        drawn = random.Random(count)
        tar = packed_tar([(f"{at:06}", drawn.randbytes(size_bytes)) for at in range(count)])

        def answer(asked: Asked, tar: bytes = tar) -> Reply:
            return content(asked, tar) if asked.path.endswith(".tar") else Reply(404)

        with (
            DecidedServer(answer) as server,
            FaultProxy(server.url) as proxy,
            NodeProcess(folder / f"node-{count}", arguments=ANY_HOST) as node,
            ais_loader.connect(node.url) as client,
        ):
            proxy.latency_s, proxy.bytes_per_s = latency_s, bandwidth_mb_s * MB
            bucket = client.create_bucket("shards", remote=Remote("s3://corpus", endpoint=proxy.url))
            for wanted in WANTED:
                costs = {name: _Cost() for name in ("whole", "first", "again")}
                for at in range(rounds):
                    names = [f"{number:06}" for number in drawn.sample(range(count), 2 * wanted)]
                    shard = f"{wanted}-{at}.tar"
                    _measure(costs["first"], proxy, client, bucket, shard, names[:wanted])
                    _measure(costs["again"], proxy, client, bucket, shard, names[wanted:])
                    _measure(costs["whole"], proxy, client, bucket, f"whole-{shard}", names[:wanted], whole=True)
                shape = f"{wanted} of {count} of {size_bytes >> 10} KiB"
                lines += [cost.row(f"{shape} | {name}") for name, cost in costs.items()]
    story = (__doc__ or "").partition("\n\n")[2].strip()
    setting = f"Medians of {rounds} rounds; {bandwidth_mb_s:g} MB/s and {latency_s * 1000:g} ms."
    return "\n".join([HEADING, "", story, "", setting, "", *lines, ""])


def _measure(
    cost: _Cost,
    proxy: FaultProxy,
    client: Client,
    bucket: Bucket,
    shard: str,
    names: Sequence[str],
    whole: bool = False,
) -> None:
    proxy.forget()
    began_s = time.perf_counter()
    if whole:
        bucket.warm([shard])
    assert all(len(item.data) for item in client.get_batch([Entry(bucket.name, shard, name) for name in names]))
    cost.time_s.append(time.perf_counter() - began_s)
    cost.requests.append(len(proxy.requests))
    cost.sent_mb.append(sum(one.sent_bytes for one in proxy.requests) / MB)


def with_section(text: str, section: str) -> str:
    """Return a page with this section at its end, in the place of an earlier one."""
    return text.partition(HEADING)[0].rstrip("\n") + "\n\n" + section


def section_of(text: str) -> str:
    """Return the section of a page; "" if it has none."""
    _, heading, rest = text.partition(HEADING)
    return heading + rest
