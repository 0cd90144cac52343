"""The price of one more bucket in a cluster, in bytes: the same whatever the number of buckets."""

from __future__ import annotations

import uuid
from collections import Counter
from pathlib import Path

import pytest
from agreement_kit import TIMEOUT_S, endpoints_of, known_map, make_cluster, nodes_at

import ais_loader
from ais_loader.testing import eventually
from ais_loader.transport.grpc.node_calls import NodeCalls
from ais_loader.wire.generated import ais_cluster_pb2 as pb
from storage_node.cluster.consensus.change import AsyncChannels, change_map
from storage_node.cluster.consensus.effects import NoAnswer, Request, Response
from storage_node.store.files.growing_file import GrowingFile, write_atomically

BUCKETS = 1000


class Bytes:
    """What nodes send each other, what a client gets, and what is written to files, from now on."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.sent = self.written = 0
        self.whole_files = Counter[Path]()
        call, append = AsyncChannels.call, GrowingFile._append
        map_of = NodeCalls.cluster_map

        async def counted(channels: AsyncChannels, endpoint: str, request: Request) -> Response | NoAnswer:
            answer = await call(channels, endpoint, request)
            self.sent += request.ByteSize() + (0 if isinstance(answer, NoAnswer) else answer.ByteSize())
            return answer

        def appended(file, path, line, left):  # type: ignore[no-untyped-def]
            self.written += len(line)
            return append(file, path, line, left)

        def replaced(path: Path, data: bytes, *of: object) -> None:
            self.whole_files[path] += 1
            write_atomically(path, data, *of)  # type: ignore[arg-type]

        def learned(node: NodeCalls, known: pb.ClusterMap | None, *, timeout_s: float) -> pb.ClusterMap:
            request = pb.GetMapRequest(known_version=known.version if known is not None else 0)
            answer = node._call(lambda conn: conn.cluster.GetMap(request, timeout=timeout_s))
            self.sent += answer.ByteSize()
            return map_of(node, known, timeout_s=timeout_s)

        patch.setattr(AsyncChannels, "call", counted)
        patch.setattr(GrowingFile, "_append", appended)
        patch.setattr("storage_node.store.files.growing_file.write_atomically", replaced)
        patch.setattr(NodeCalls, "cluster_map", learned)


def fill(map_: pb.ClusterMap | None) -> pb.ClusterMap:
    assert map_ is not None
    for number in range(BUCKETS):
        map_.bucket.add(name=f"bucket-{number:04}", uuid=uuid.uuid4().bytes, copies=2, min_copies=1)
    return map_


@pytest.mark.slow
def test_one_more_bucket_costs_the_same_bytes_among_a_thousand(tmp_path: Path) -> None:
    costs = []
    with nodes_at(tmp_path, 3) as nodes:
        make_cluster(nodes)
        with ais_loader.connect("grpc://" + ",".join(endpoints_of(nodes))) as client:
            for number in range(70):  # as many as a map remembers changes
                client.create_bucket(f"first-{number}")
            for before in (None, fill):
                if before is not None:
                    change_map(endpoints_of(nodes), before, timeout_s=TIMEOUT_S)
                    client.create_bucket("after")
                    eventually(lambda: all(len(node.batches.node.store.buckets()) > BUCKETS for node in nodes))
                with pytest.MonkeyPatch.context() as patch:
                    counted = Bytes(patch)
                    for number in range(5):
                        client.create_bucket(f"more-{before is not None}-{number}")
                    costs.append(counted)
        few, many = costs
        # Fourteen times as many buckets. On a busy machine, a change may need several rounds.
        assert many.sent <= 3 * few.sent and many.written <= 3 * few.written
        assert many.sent < 5 * 3 * BUCKETS, "less than any whole map sent once"
        assert not many.whole_files and max(few.whole_files.values(), default=0) <= 1

        def all_know() -> bool:
            maps = [known_map(node) for node in nodes]
            return all(map_ == maps[0] and map_ is not None and len(map_.bucket) == BUCKETS + 81 for map_ in maps)

        eventually(all_know)
        for node in nodes:
            assert node.batches is not None
            assert len(node.batches.node.store.buckets()) == BUCKETS + 81


@pytest.mark.slow
def test_all_buckets_of_a_map_are_recorded_with_one_write(tmp_path: Path) -> None:
    with nodes_at(tmp_path, 1) as nodes:
        make_cluster(nodes)
        with pytest.MonkeyPatch.context() as patch:
            written: list[str] = []
            write = GrowingFile.write

            def noted(file, path, value):  # type: ignore[no-untyped-def]
                written.append(path.name)
                write(file, path, value)

            patch.setattr(GrowingFile, "write", noted)
            change_map(endpoints_of(nodes), fill, timeout_s=TIMEOUT_S)
            changed = written[written.index("cluster.json") :]  # the making of the cluster may still be recorded before
            assert changed.count("record.json") == 1 and changed.count("cluster.json") == 3
