"""Results of a job that the server puts to their owners directly, compared with results through the sources' nodes.

    python -m benchmarks.etl.direct_put  # writes the table beside this file

Three nodes are separate processes, and buckets have one copy. One server (the standard library's threads, hpush) has a
transform that returns its input. Two transforms name this server, one of them with `direct_put`. The owners of a source
and of its result are drawn independently: two thirds of the results belong to a different node than the one that reads
the source. Each round runs every contestant once, into its own bucket, and ratios are computed within a round.

Where the kernel has network namespaces, the last rows are for nodes on machines of their own. Each of these may send 20
MB/s and receives without a limit. The server is on another machine, which sends without a limit.

Prediction, written before the first run: Large results save the way from the source's node to the owner, one of the
four ways that their bytes go (source to server, server to node, node to owner, owner to drive). All four are copies
between processes of one machine, which costs almost as little as no network: 1.1 times as many. Small results save a
place in a group of PutMany, and each pays for an HTTP request to the owner and for two signatures: 0.7 times as many.
The wanted 1.3 times needs a network that the bytes have to share.

In a first run, small results reached 0.28 and large ones 0.91: each result held a worker's turn while the other node
stored it, and each small result was a separate commit. Since then, no result holds a turn, and results that are
expected to have less than 64 KiB travel to their owners in groups, whatever their server is capable of. The two rows of
10 KiB therefore take the same path, and the difference between them comes from the machine.

Prediction for machines with a network of their own, made before they were measured: Through its node, a result of 1 MiB
costs that node two thirds of a MiB to send in addition to the input, so 1.6 times as many arrive directly. Found, while
other processes used the machine: 1.4. With no network to share, large results reach the same rate directly as through
the node.
"""

from __future__ import annotations

import multiprocessing
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeAlias

import click

from ais_loader import connect
from ais_loader.testing import seeded_bytes
from ais_loader.wire.generated import ais_etl_pb2 as pb
from benchmarks.kit.harness import Claim, run_rounds
from benchmarks.kit.pages import publish
from storage_node.etl.webserver import HTTPMultiThreadedServer
from tests.cluster_processes import ClusterProcesses
from tests.machines_kit import Machines

NODES = 3
SIZES = {"10 KiB": 10 << 10, "1 MiB": 1 << 20, "1 MiB between machines": 1 << 20}
TABLE = Path(__file__).with_suffix(".md")
Contestants: TypeAlias = dict[str, Callable[[], float]]
LIMITED = "1 MiB between machines"
SENT_BYTES_PER_S = 20_000_000
HTTP_PORT = 7490
CLAIMS = [
    Claim("1 MiB, direct", "1 MiB, through the node", 1.3),
    Claim(f"{LIMITED}, direct", f"{LIMITED}, through the node", 1.3),
]


class Nothing(HTTPMultiThreadedServer):
    def transform(self, data: bytes, path: str, args: Any) -> bytes:
        return data


def _serve(ready: Connection, host: str, nodes: Sequence[str]) -> None:
    Nothing.nodes = nodes
    with Nothing().running(host) as address:
        ready.send(address)
        ready.recv()


def _server(held: ExitStack, host: str, nodes: Sequence[str]) -> str:
    """Its address."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(there, host, nodes), daemon=True)
    process.start()
    held.callback(process.join, 10)
    held.callback(here.send, None)
    address: str = here.recv()
    return address


def contestants(held: ExitStack, counts: dict[str, int], machines: Machines | None = None) -> Contestants:
    """Return the contestants named in `counts`, each with its number of objects; on `machines`, if there are any."""
    folder = Path(held.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm")))
    nodes = [f"http://{place.address}:{HTTP_PORT}" for place in machines.places] if machines else []
    address = _server(held, machines.here if machines else "127.0.0.1", nodes)
    arguments = ["--etl-server", address]
    if machines:
        arguments += ["--insecure", "--set", "etl_http_host={address}", "--set", f"etl_http_port={HTTP_PORT}"]
    buckets = dict.fromkeys((f"from-{at}" for at in range(len(counts))), 1)
    places = machines.places if machines else None
    cluster = held.enter_context(ClusterProcesses(folder, NODES, buckets=buckets, arguments=arguments, places=places))
    for name, direct_put in (("through", False), ("direct", True)):
        server = pb.TransformServer(address=address, direct_put=direct_put)
        cluster.map.transform.append(pb.Transform(name=name, uuid=uuid.uuid4().bytes, server=server))
    cluster.map.version += 1
    cluster.teach()
    client = held.enter_context(connect(cluster.url))
    numbers = iter(range(1 << 20))

    def measured(number: int, transform: str, count: int) -> Callable[[], float]:
        def run() -> float:
            to_name = f"to-{next(numbers)}"
            client.create_bucket(to_name)
            began_s = time.perf_counter()
            client.bucket(f"from-{number}").transform(to_name, etl=transform)
            wall_s = time.perf_counter() - began_s
            client.delete_bucket(to_name, force=True)
            return count / wall_s

        return run

    found = {}
    for number, (size, count) in enumerate(counts.items()):
        objects = ((f"{at:06d}", seeded_bytes(SIZES[size], at)) for at in range(count))
        client.bucket(f"from-{number}").put_many(objects)
        found[f"{size}, direct"] = measured(number, "direct", count)
        found[f"{size}, through the node"] = measured(number, "through", count)
    if machines:
        for number in range(NODES):
            machines.limit(number, SENT_BYTES_PER_S)
    return found


@click.command(help=__doc__)
@click.option("--small", default=2000, show_default=True, help="Objects of 10 KiB.")
@click.option("--large", default=150, show_default=True, help="Objects of 1 MiB.")
@click.option("--rounds", default=5, show_default=True)
@click.option("--keep/--no-keep", default=True, show_default=True, help="Write the table.")
def main(small: int, large: int, rounds: int, keep: bool) -> None:
    with ExitStack() as held:
        ways = contestants(held, {"10 KiB": small, "1 MiB": large})
        if Machines.possible():
            ways |= contestants(held, {LIMITED: large}, held.enter_context(Machines(NODES)))
        else:
            click.echo("no network namespaces here: nothing is measured between machines", err=True)
        rates = run_rounds(ways, rounds)
    publish(
        "Direct put",
        __doc__,
        f"{rounds} rounds of {small:,} and {large:,} objects; nodes, server and client share the cores.",
        rates,
        "objects/s",
        [claim for claim in CLAIMS if claim.subject in rates],
        table=TABLE if keep else None,
    )


if __name__ == "__main__":
    main()
