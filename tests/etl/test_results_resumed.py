"""Answers that broke off inside a result: they go on in the same bytes, or the entry begins again; never a mix."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from ais_loader import Bucket, Client, ClusterOptions, Entry, connect
from ais_loader.testing import seeded_bytes
from ais_loader.wire.answer_check import digest
from ais_loader.wire.checksum import crc32c
from ais_loader.wire.frame import Frame
from ais_loader.wire.generated import ais_batch_pb2 as pb
from storage_node.server import NodeServer
from tests.faulty_link import FaultyLink
from tests.node.cluster_kit import BUCKET, LocalCluster
from tests.node.node_kit import RawSession, batch_of, bucket_of, serving

MiB = 1 << 20
LARGE = seeded_bytes(6 * MiB, seed=7)
SMALL = {f"s/{at}": seeded_bytes(1000 + at, seed=at) for at in range(6)}


def upper(data: memoryview) -> bytes:
    return bytes(data).upper()


def fresh(data: memoryview, size: int = 6 << 20) -> bytes:
    """Other bytes, and more or fewer of them, each time."""
    import os

    stamp = os.urandom(16)
    return stamp * (size // 16 + 1 + stamp[0])


def stamps(data: bytes | memoryview) -> set[bytes]:
    """Of all that `fresh` was called for to make this."""
    assert len(data) % 16 == 0
    return set(np.frombuffer(data, "S16").tolist()) if len(data) else set()


def joined(frames: Sequence[Frame]) -> tuple[bytes, list[int]]:
    """Of entry 0, whose pieces each carry its checksum from its start: its bytes, and where each piece began."""
    data, offsets = b"", []
    for frame in frames:
        piece = frame.piece
        assert piece is not None and piece.offset in (0, len(data))
        data = data[: piece.offset] + bytes(frame.payload)
        offsets.append(piece.offset)
        assert int(frame.checksum[0]) == crc32c(data) and frame.checksum_kind.tolist() == [pb.TRANSFORMED]
    assert frames[-1].completes_entry
    return data, offsets


def request_of(name: str, etl: str, args: str = "", **fields: Any) -> pb.BatchRequest:
    call = pb.TransformCall(stage=[pb.TransformStage(name=etl, args=args)])
    return batch_of([name], ordered=True, transform=[call], transform_index=[1], **fields)


def going_on(data: bytes, version: str, offset: int) -> dict[str, Any]:
    return {"resume_offset": offset, "resume_checksum": crc32c(data[:offset]), "resume_version": version}


def began(session: RawSession, batch_id: int, request: pb.BatchRequest) -> tuple[bytes, str]:
    frames, _ = session.ask(batch_id, request)
    assert frames[0].piece is not None
    return joined(frames)[0], frames[0].piece.version


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeServer]:
    folder = tmp_path_factory.mktemp("node")
    with serving(folder, etl_code=True, etl_workers=1, etl_cache_bytes=40 * MiB) as node, bucket_of(node) as bucket:
        bucket.put("large", LARGE)
        bucket.client.etl.init("upper", upper)
        bucket.client.etl.init("fresh", fresh)
        yield node


@pytest.fixture
def bucket(node: NodeServer) -> Iterator[Bucket]:
    with bucket_of(node) as bucket:
        yield bucket


@pytest.fixture
def session(node: NodeServer) -> Iterator[RawSession]:
    with RawSession(node.url) as session:
        yield session


def made_by(node: NodeServer, name: str) -> int:
    assert node.batches is not None and node.batches.resources.etl is not None
    return node.batches.resources.etl.transforms.counts(name).objects


def forget_results(node: NodeServer) -> None:
    async def forget() -> None:
        assert node.batches is not None and node.batches.resources.etl is not None
        node.batches.resources.etl.cache.clear()

    assert node._loop is not None
    asyncio.run_coroutine_threadsafe(forget(), node._loop).result(180)


@pytest.mark.parametrize("offset", [1, 4 * MiB + 5, 6 * MiB - 1])
@pytest.mark.parametrize("kept", [True, False])
def test_a_result_that_is_kept_or_made_alike_goes_on(
    node: NodeServer, session: RawSession, kept: bool, offset: int
) -> None:
    data, version = began(session, 1, request_of("large", "upper"))
    assert data == LARGE.upper()
    made = made_by(node, "upper")
    if not kept:
        forget_results(node)
    frames, end = session.ask(2, request_of("large", "upper", **going_on(data, version, offset)))
    assert [frame.piece.offset for frame in frames if frame.piece] == list(range(offset, len(data), MiB))
    assert b"".join(frame.payload for frame in frames) == data[offset:]
    assert int(frames[-1].checksum[0]) == crc32c(data)
    assert end.digest == digest(np.zeros(1, np.uint8), np.array([crc32c(data)], np.uint32))
    assert made_by(node, "upper") == made + (0 if kept else 1)


@pytest.mark.parametrize("size", [6 * MiB, 5 * MiB, 16, 0])
def test_a_result_that_was_made_anew_begins_again(node: NodeServer, session: RawSession, size: int) -> None:
    data, version = began(session, 1, request_of("large", "fresh"))
    forget_results(node)
    args = f'{{"size": {size}}}'
    frames, end = session.ask(2, request_of("large", "fresh", args, **going_on(data, version, 3 * MiB)))
    again, offsets = joined(frames)
    assert offsets[0] == 0 and len(stamps(again)) == 1 and stamps(again) != stamps(data)
    assert len(again) >= size and end.payload_bytes == len(again)
    assert end.digest == digest(np.zeros(1, np.uint8), np.array([crc32c(again)], np.uint32))


@pytest.mark.slow
def test_a_beginning_alone_that_is_the_same_does_not_go_on(session: RawSession) -> None:
    """It is told by what the whole was: its length and checksum, and the object that it was made of."""
    data, version = began(session, 1, request_of("large", "upper"))
    of, size, checksum = version.split("/")
    assert (int(size), int(checksum, 16)) == (len(data), crc32c(data))
    others = [f"9-9-9/{size}/{checksum}", f"{of}/{len(data) + 1}/{checksum}", f"{of}/{size}/00000000", of, "", "//"]
    for batch_id, other in enumerate(others, 2):
        frames, _ = session.ask(batch_id, request_of("large", "upper", **going_on(data, other, MiB)))
        assert joined(frames) == (data, list(range(0, len(data), MiB)))
    torn = {**going_on(data, version, MiB), "resume_checksum": 1}
    assert joined(session.ask(20, request_of("large", "upper", **torn))[0]) == (data, list(range(0, len(data), MiB)))


@pytest.mark.slow
def test_a_transform_or_an_object_that_was_replaced_begins_again_in_the_new_one(
    session: RawSession, bucket: Bucket
) -> None:
    bucket.put("changing", LARGE)
    bucket.client.etl.init("changes", upper)
    data, version = began(session, 1, request_of("changing", "changes"))
    bucket.client.etl.init("changes", lambda data: bytes(data)[::-1], replace=True)
    resume = going_on(data, version, 2 * MiB)
    again, offsets = joined(session.ask(2, request_of("changing", "changes", **resume))[0])
    assert (again, offsets[0]) == (LARGE[::-1], 0)
    bucket.put("changing", LARGE[1:])
    again, offsets = joined(session.ask(3, request_of("changing", "changes", **resume))[0])
    assert (again, offsets[0]) == (LARGE[:0:-1], 0)


@pytest.mark.slow
def test_an_entry_without_a_transform_goes_on_in_its_version_or_begins_again_in_a_newer_one(
    session: RawSession, bucket: Bucket
) -> None:
    bucket.put("plain", LARGE)
    frames, _ = session.ask(1, batch_of(["plain"], ordered=True))
    assert frames[0].piece is not None
    resume = going_on(LARGE, frames[0].piece.version, 2 * MiB)
    request = request_of("plain", "upper", **resume)
    request.name.append("large")
    request.transform_index[:] = [0, 1]
    frames, _ = session.ask(2, request)
    assert b"".join(bytes(frame.payload) for frame in frames) == LARGE[2 * MiB :] + LARGE.upper()
    bucket.put("plain", LARGE[::-1])
    frames, _ = session.ask(3, request)
    assert frames[0].piece is not None and frames[0].begins_again
    assert b"".join(bytes(frame.payload) for frame in frames) == LARGE[::-1] + LARGE.upper()
    request.version[:] = [request.resume_version, ""]
    frames, _ = session.ask(4, request)
    assert frames[0].status.tolist() == [pb.NOT_FOUND] and not frames[0].payload


# -- connections that break


def options(**fields: Any) -> ClusterOptions:
    return ClusterOptions(retry_s=240.0, verify_payload=True, **fields)


def entries_of(bucket: str, names: Sequence[str], etl: str = "fresh") -> list[Entry]:
    """Small ones, which are as they are stored, before and after the large results."""
    plain = [Entry(bucket, name) for name in SMALL]
    return [*plain[:3], *(Entry(bucket, name, etl=etl) for name in names), *plain[3:]]


def check(client: Client, entries: Sequence[Entry], **fields: Any) -> list[set[bytes]]:
    """All entries are whole; returns who made each result."""
    made = []
    items = sorted(client.get_batch(list(entries), **fields), key=lambda item: item.index)
    assert [item.index for item in items] == list(range(len(entries)))
    for entry, item in zip(entries, items, strict=True):
        if entry.etl is None:
            assert item.tobytes() == SMALL[entry.name]
        else:
            assert len(item.data) >= 6 * MiB
            made.append(stamps(item.data))
    return made


@pytest.mark.slow
def test_a_client_whose_session_breaks_has_each_result_of_one_making(node: NodeServer, bucket: Bucket) -> None:
    bucket.put_many(list(SMALL.items()))
    with FaultyLink(node.url) as link, connect(link.url, options=options()) as client:
        for etl, cuts in (("fresh", 2), ("upper", 2)):
            entries = entries_of("b", ["large"], etl)
            for at in range(cuts):
                made = made_by(node, etl)
                connections = link.connections_made
                link.cut_after((3 + at) * MiB)
                batch = client.get_batch(entries)
                items = [next(batch)]
                forget_results(node)  # while it is under way
                items += list(batch)
                assert link.connections_made > connections
                data = items[3].tobytes()
                assert len(stamps(data)) == 1 if etl == "fresh" else data == LARGE.upper()
                assert [item.tobytes() for item in items[:3] + items[4:]] == list(SMALL.values())
                assert made_by(node, etl) > made
        link.cut_after(3 * MiB)
        assert len(stamps(client.bucket("b").get("large", etl="fresh"))) == 1
        link.cut_after(3 * MiB)
        with client.bucket("b").open("large", etl="fresh") as file:
            assert len(stamps(file.read())) == 1


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    folder = tmp_path_factory.mktemp("cluster")
    names = [f"l/{at}" for at in range(8)]
    fields = {"etl_code": True, "etl_workers": 1, "etl_cache_bytes": 0, "read_lease_s": 15.0}
    with LocalCluster(folder, 2, copies=2, linked=True, clients_linked=True, spread=names, **fields) as cluster:
        with client_of(cluster) as client:
            client.bucket(BUCKET).put_many([*SMALL.items(), *((name, b"any") for name in names)])
            client.etl.init("fresh", fresh)
        yield cluster


def client_of(cluster: LocalCluster) -> Client:
    return connect(
        "grpc://" + ",".join(link.url.removeprefix("grpc://") for link in cluster.client_links), options=options()
    )


@pytest.mark.slow
@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("assembly", ["direct", "target"])
def test_who_goes_to_another_node_has_each_result_of_one_making(
    cluster: LocalCluster, assembly: Any, ordered: bool
) -> None:
    names = [name for number in range(2) for name in cluster.names_of(number, [f"l/{at}" for at in range(8)])[:2]]
    entries = entries_of(BUCKET, names)
    links = cluster.client_links + cluster.links
    before = sum(link.connections_made for link in links)
    made_before = sum(made_by(node, "fresh") for node in cluster.nodes)
    with client_of(cluster) as client:
        client.get_batch(entries[:3]).tobytes()
        for link in links:
            link.cut_after(4 * MiB)
        made = check(client, entries, assembly=assembly, ordered=ordered)
    assert [len(one) for one in made] == [1] * len(names) and len(set.union(*made)) == len(names)
    assert sum(link.connections_made for link in links) > before + 1
    assert sum(made_by(node, "fresh") for node in cluster.nodes) > made_before + len(names)  # some of them again
    for link in links:
        link.cut_after(1 << 40)
    cluster.settle()


@pytest.mark.slow
def test_a_gathering_node_goes_on_for_its_client_or_begins_again(cluster: LocalCluster) -> None:
    """What it is asked to go on with is of another node; and in the middle of that its own peer is cut off, too."""
    with client_of(cluster) as client:  # of which node 1 alone has any
        once = client.create_bucket("once", copies=1)
        once.put_many([(f"{at}", b"any") for at in range(16)])
    view = cluster.nodes[0].membership.view
    assert view is not None
    name = next(f"{at}" for at in range(16) if view.owners(view.buckets["once"], f"{at}") == [1])

    def request(**fields: Any) -> pb.BatchRequest:
        return request_of(name, "fresh", bucket="once", **fields)

    with RawSession(cluster.nodes[0].url) as session:
        data, version = began(session, 1, request())
        for batch_id, cut in ((2, False), (3, True)):
            made = made_by(cluster.nodes[1], "fresh")
            if cut:
                cluster.links[1].cut_after(3 * MiB)
            frames, end = session.ask(batch_id, request(**going_on(data, version, MiB + 1)))
            again, offsets = joined(frames)
            assert len(stamps(again)) == 1 and stamps(again) != stamps(data)
            assert end.digest == digest(np.zeros(1, np.uint8), np.array([crc32c(again)], np.uint32))
            assert end.payload_bytes == len(again)
            assert made_by(cluster.nodes[1], "fresh") == made + 1 + cut
            assert offsets[0] == 0 and any(later <= before for before, later in pairwise(offsets)) == cut
    cluster.settle()
