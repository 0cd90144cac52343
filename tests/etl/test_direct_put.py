"""Direct put in a cluster: results of a job go from a transform's server to the nodes that will own them."""

from __future__ import annotations

import contextlib
import json
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from ais_loader import Client, connect
from ais_loader.errors import NodeUnavailable
from ais_loader.testing import seeded_bytes
from ais_loader.wire.cluster_map import ClusterView
from ais_loader.wire.generated import ais_etl_pb2 as pb
from storage_node.etl.jobs.cluster_store import NodeStore
from storage_node.etl.jobs.run import DIRECT_BYTES
from storage_node.etl.servers.channel import OutputReceiver
from storage_node.etl.servers.stage import ServerStage
from storage_node.etl.transform_http import PutClaims, TransformHttp
from storage_node.etl.values import Content, PutResult
from storage_node.etl.webserver import HTTPMultiThreadedServer
from storage_node.store.read.object_reader import open_object
from tests.node.cluster_kit import BUCKET, LocalCluster

pytestmark = pytest.mark.slow

LARGE = {f"{at:02d}": seeded_bytes(DIRECT_BYTES + 100 * at, seed=at) for at in range(24)} | {
    f"large-{at}": seeded_bytes((2 << 20) + at, seed=at) for at in range(3)
}
SMALL = {f"small-{at}": seeded_bytes(DIRECT_BYTES // 4 - at, seed=at) for at in range(6)}
SOURCES = LARGE | SMALL


def twice(data: bytes) -> bytes:
    return data[::-1] * 2


class Twice(HTTPMultiThreadedServer):
    def transform(self, data: bytes, path: str, args: Any) -> bytes:
        return twice(data)


class Bytes:
    """That each node has had of results, by its number."""

    def __init__(self, cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answered: Counter[int] = Counter()
        """By a server, to the node that asked it."""
        self.put: Counter[int] = Counter()
        """By a server, to another node."""
        sides = {id(side_of(cluster, number)): number for number in range(len(cluster.nodes))}
        receiver_of = ServerStage._receiver

        def counted(stage: ServerStage, content: Content) -> OutputReceiver:
            receiver, number = receiver_of(stage, content), sides[id(stage._context.transform_http)]
            take = receiver.take

            async def taking(chunk: bytes) -> None:
                self.answered[number] += len(chunk)
                await take(chunk)

            monkeypatch.setattr(receiver, "take", taking)
            return receiver

        monkeypatch.setattr(ServerStage, "_receiver", counted)
        for number in range(len(cluster.nodes)):
            count_puts(side_of(cluster, number), number, self.put)


def count_puts(side: TransformHttp, number: int, put_bytes: Counter[int]) -> None:
    put_result = side.put_result
    assert put_result is not None

    async def put(claims: PutClaims, chunks: AsyncIterator[bytes]) -> PutResult:
        async def counted() -> AsyncIterator[bytes]:
            async for chunk in chunks:
                put_bytes[number] += len(chunk)
                yield chunk

        return await put_result(claims, counted())

    side.put_result = put


def side_of(cluster: LocalCluster, number: int) -> TransformHttp:
    etl = cluster.batches(number).resources.etl
    assert etl is not None
    return etl.transform_http


def receiving(cluster: LocalCluster) -> set[int]:
    """First owners of large results whose sources are on another node."""
    owners = {name: (first_owner(cluster, BUCKET, name), first_owner(cluster, "to", name)) for name in LARGE}
    return {owner for source, owner in owners.values() if source != owner}


@contextlib.contextmanager
def cluster_with_server(folder: Path, *, secret: bool = True, copies: int = 1) -> Iterator[tuple[LocalCluster, Client]]:
    """With the sources in its bucket, and the transform "twice"."""
    config: dict[str, Any] = {}
    if secret:
        file = folder / "secret"
        file.write_text("0123456789abcdef0123456789abcdef")
        file.chmod(0o600)
        config["peer_secret_file"] = str(file)
    with Twice().running() as address, LocalCluster(folder, copies=copies, etl_servers=(address,), **config) as cluster:
        server = pb.TransformServer(address=address, direct_put=True)
        cluster.map.transform.append(pb.Transform(name="twice", uuid=uuid.uuid4().bytes, server=server))
        to = cluster.map.bucket.add(name="to", uuid=uuid.uuid4().bytes, copies=copies, min_copies=copies)
        cluster.view = ClusterView(cluster.map)
        while len(receiving(cluster)) < len(cluster.nodes):
            to.uuid = uuid.uuid4().bytes
            cluster.view = ClusterView(cluster.map)
        cluster.learn()
        cluster.await_compared()
        with connect("grpc://" + ",".join(node.endpoint for node in cluster.nodes)) as client:
            client.bucket(BUCKET).put_many(SOURCES.items())
            yield cluster, client


def require_right(cluster: LocalCluster, client: Client) -> None:
    """Each source has one result, with its stamp, whole on each node that owns it and on no other."""
    to = client.bucket("to")
    assert {name: bytes(to.get(name)) for name in to} == {name: twice(data) for name, data in SOURCES.items()}
    transform = cluster.map.transform[0]
    for name in SOURCES:
        metadata = to.head(name).metadata
        assert metadata["ais.etl-source"] == f"{BUCKET}/{name}"
        assert metadata["ais.etl-source-version"] == client.bucket(BUCKET).head(name).version
        assert json.loads(metadata["ais.etl-stages"]) == [["twice", transform.uuid.hex(), ""]]
    for number in range(len(cluster.nodes)):
        store = cluster.batches(number).node.store
        here = {name: record.version for name, record in store.objects("to")}
        assert set(here) == {name for name in SOURCES if number in owners(cluster, "to", name)}
        for name, version in here.items():
            assert b"".join(open_object(store, "to", name)) == twice(SOURCES[name])
            assert str(version) == to.head(name).version


def owners(cluster: LocalCluster, bucket: str, name: str) -> list[int]:
    return cluster.view.owners(cluster.view.buckets[bucket], name)


def first_owner(cluster: LocalCluster, bucket: str, name: str) -> int:
    return owners(cluster, bucket, name)[0]


def run(client: Client) -> None:
    job = client.bucket(BUCKET).transform("to", etl="twice")
    assert (job.state, job.counts.transformed, job.counts.failed) == ("done", len(SOURCES), 0)
    assert job.counts.output_bytes == sum(2 * len(data) for data in SOURCES.values())


def test_results_go_to_their_owners_and_do_not_pass_the_nodes_of_their_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with cluster_with_server(tmp_path) as (cluster, client):
        counted = Bytes(cluster, monkeypatch)
        run(client)
        require_right(cluster, client)
        answered: Counter[int] = Counter()
        put: Counter[int] = Counter()
        for name, data in SOURCES.items():
            source, owner = first_owner(cluster, BUCKET, name), first_owner(cluster, "to", name)
            if source == owner or name in SMALL:  # which ride together
                answered[source] += 2 * len(data)
            else:
                put[owner] += 2 * len(data)
        assert len(put) == 3  # or this has tested less than it could
        assert (counted.answered, counted.put) == (answered, put)
        # And what is there is not made again.
        again = client.bucket(BUCKET).transform("to", etl="twice")
        assert (again.counts.transformed, again.counts.skipped) == (0, len(SOURCES))


def test_a_node_that_does_not_take_results_is_sent_them_as_any_others(tmp_path: Path) -> None:
    async def refuse(claims: PutClaims, chunks: AsyncIterator[bytes]) -> PutResult:
        raise NodeUnavailable("not by this way")

    with cluster_with_server(tmp_path) as (cluster, client):
        side_of(cluster, 0).put_result = refuse  # as it is asked
        side_of(cluster, 1).put_result = None  # as one of a version before, of which nobody hears where
        put: Counter[int] = Counter()
        count_puts(side_of(cluster, 2), 2, put)
        run(client)
        require_right(cluster, client)
        assert put[2]


def test_every_copy_of_a_result_that_is_put_directly_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with cluster_with_server(tmp_path, copies=2) as (cluster, client):
        counted = Bytes(cluster, monkeypatch)
        run(client)
        require_right(cluster, client)
        put: Counter[int] = Counter()
        for name in LARGE:
            source, owning = first_owner(cluster, BUCKET, name), owners(cluster, "to", name)
            if source not in owning:  # or it is stored from there, where one of its copies stays
                put[owning[0]] += 2 * len(SOURCES[name])
        assert put and counted.put == put


def test_a_node_that_owns_a_result_no_more_stores_it_with_those_that_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with cluster_with_server(tmp_path) as (cluster, client):
        uuids = [node.uuid for node in cluster.view.nodes]

        def another(store: NodeStore, bucket: str, name: str) -> bytes:
            return uuids[(first_owner(cluster, bucket, name) + 1) % 3]

        monkeypatch.setattr(NodeStore, "owner", another)
        run(client)
        require_right(cluster, client)


def test_without_a_secret_of_the_cluster_results_pass_the_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with cluster_with_server(tmp_path, secret=False) as (cluster, client):
        counted = Bytes(cluster, monkeypatch)
        run(client)
        require_right(cluster, client)
        assert not counted.put and counted.answered.total() == sum(2 * len(data) for data in SOURCES.values())
