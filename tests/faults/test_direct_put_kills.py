"""Direct put while nodes are killed: a result is whole where it was acknowledged, or it is made again; none is lost."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ais_loader import Client, connect
from ais_loader.testing import SeededObjects, eventually
from ais_loader.wire.generated import ais_etl_pb2 as pb
from storage_node.etl.jobs.run import DIRECT_BYTES
from storage_node.etl.webserver import HTTPMultiThreadedServer
from tests.cluster_processes import ClusterProcesses
from tests.faults.fault_kit import serve_all
from tests.patience import PATIENT_CLIENT

pytestmark = pytest.mark.slow
SOURCES = SeededObjects({f"{at:03d}": (DIRECT_BYTES + 1000 * at, at) for at in range(60)})
VICTIM = 2


def twice(data: bytes) -> bytes:
    return data[::-1] * 2


class Held(HTTPMultiThreadedServer):
    """Goes on with the first objects, and then when it is let: their results have places to go to by then."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.let, self._lock = 0, threading.Event(), threading.Lock()

    def transform(self, data: bytes, path: str, args: Any) -> bytes:
        with self._lock:
            self.begun += 1
            begun = self.begun
        if begun > 10:
            assert self.let.wait(180)
        return twice(data)


@contextmanager
def cluster_with(server: Held, folder: Path) -> Iterator[tuple[ClusterProcesses, Client]]:
    with server.running() as address:
        arguments = ["--set", f"etl_servers={address}"]
        with ClusterProcesses(
            folder / "nodes", buckets={"from": 2, "to": 2}, min_copies=2, arguments=arguments
        ) as cluster:
            told = pb.TransformServer(address=address, direct_put=True)
            cluster.map.transform.append(pb.Transform(name="twice", uuid=uuid.uuid4().bytes, server=told))
            cluster.map.version += 1
            cluster.teach()
            with connect(cluster.url, options=PATIENT_CLIENT) as client:
                yield cluster, client


def require_right(client: Client) -> None:
    names = sorted(SOURCES)
    assert sorted(client.bucket("to")) == names
    assert client.bucket("to").get_batch(names).tobytes() == [twice(SOURCES[name]) for name in names]


def test_a_killed_owner_loses_no_result_that_was_on_its_way_to_it(tmp_path: Path) -> None:
    server = Held()
    with cluster_with(server, tmp_path) as (cluster, client):
        client.bucket("from").put_many(SOURCES.items())
        job = client.bucket("from").transform("to", etl="twice", wait=False)
        try:
            eventually(lambda: server.begun > 12)
            cluster.kill([VICTIM])
        finally:
            server.let.set()
        counts = job.wait(timeout_s=180)
        assert (job.state, counts.transformed + counts.skipped, counts.failed) == ("done", len(SOURCES), 0)
        require_right(client)
        cluster.start([VICTIM])
        serve_all(cluster)

        def is_all_there() -> bool:
            """Unless a node stands still, and does not say what it has."""
            begun = server.begun
            again = client.bucket("from").transform("to", etl="twice")
            return (again.counts.transformed, again.counts.skipped, server.begun) == (0, len(SOURCES), begun)

        eventually(is_all_there)
        require_right(client)
