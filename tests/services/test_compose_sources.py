"""What a node makes objects of when the bytes are elsewhere: any holder goes on where another one failed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import google_crc32c
import pytest

from ais_loader import connect, errors
from ais_loader.errors import CorruptObject, DriveFailed, LoaderError, ObjectNotFound, RangeError
from ais_loader.testing import eventually
from ais_loader.wire.generated import ais_compose_pb2 as wire
from ais_loader.wire.generated import ais_objects_pb2 as pb
from storage_node.cluster.repair.source_reader import SourceRange
from storage_node.context.errors import ReplicaLost, TooFewCopies
from storage_node.store.buckets import ReplicaStale
from storage_node.store.store import Store
from tests.node.cluster_kit import BUCKET, LocalCluster
from tests.node.loop_kit import run
from tests.node.write_kit import cluster_of, staged_files
from tests.patience import PATIENT_CLIENT
from tests.store.store_kit import file_of, flip_a_byte, read
from tests.table import table

DATA = bytes(range(256)) * 4000


class FakeStream:
    """A node that has the object, and fails after so many pieces."""

    def __init__(
        self, failure: Exception | None = None, *, after: int = 0, version: str = "1.5.0", data: bytes = DATA
    ) -> None:
        self.info = pb.ObjectInfo(size_bytes=len(DATA), version=version, checksum=google_crc32c.value(DATA))
        self.length = 0
        self.asked: list[tuple[int, str]] = []
        self.closed = False
        self._failure, self._after, self._data = failure, after, data

    async def open(self, request: pb.GetRequest) -> None:
        self.asked.append((request.start, request.version))
        if self._failure is not None and not self._after:
            raise self._failure
        self._at = request.start
        self.length = request.length if request.HasField("length") else len(DATA) - request.start

    async def next(self) -> bytes:
        if self._failure is not None:
            self._after -= 1
            if not self._after:
                raise self._failure
        piece = self._data[self._at : self._at + 100_000]
        self._at += len(piece)
        return piece

    async def close(self) -> None:
        self.closed = True


async def taken(*streams: FakeStream, start: int = 0) -> bytes:
    source = SourceRange(wire.ComposeRange(bucket="b", name="n", start=start), iter(streams))
    pieces = []
    try:
        await source.open()
        while piece := await source.next():
            pieces.append(piece)
        assert source.size_bytes == len(DATA) - start
        assert source.checksum == google_crc32c.value(DATA[start:])
    finally:
        await source.close()
        assert all(stream.closed for stream in streams if stream.asked)
    return b"".join(pieces)


@table("failure", [ReplicaLost("gone"), CorruptObject("x"), DriveFailed("x"), ObjectNotFound("x")], ids=repr)
def test_the_next_holder_goes_on_from_the_last_byte_in_the_same_version(failure: Exception) -> None:
    async def check() -> None:
        first, second, third = FakeStream(failure), FakeStream(failure, after=4), FakeStream()
        assert await taken(first, second, third, start=1000) == DATA[1000:]
        assert (first.asked, second.asked) == ([(1000, "")], [(1000, "")])
        assert third.asked == [(301_000, "1.5.0")]

    run(check())


def test_what_all_holders_fail_with_is_told_by_what_weighs_most() -> None:
    lost, missing, corrupt, drive = ReplicaLost("gone"), ObjectNotFound("x"), CorruptObject("x"), DriveFailed("x")
    refused = ReplicaLost("far away", CorruptObject("x"))
    is_stale = ReplicaLost("far away", LoaderError("this copy may be old"))

    async def check() -> None:
        for failures, error in [
            ((lost,), TooFewCopies),
            ((missing, lost), TooFewCopies),
            ((missing, missing), ObjectNotFound),
            ((lost, corrupt, missing), CorruptObject),
            ((missing, drive, lost), DriveFailed),
            ((refused,), CorruptObject),
            ((is_stale, missing), TooFewCopies),
            ((), TooFewCopies),
            ((RangeError("x"), lost), RangeError),
        ]:
            with pytest.raises(LoaderError) as raised:
                await taken(*map(FakeStream, failures))
            assert type(raised.value) is error

    run(check())


def test_bytes_that_changed_on_their_way_are_found() -> None:
    async def check() -> None:
        with pytest.raises(CorruptObject):
            await taken(FakeStream(data=DATA[:-1] + b"?"))
        with pytest.raises(TooFewCopies, match="another length"):
            await taken(FakeStream(data=DATA[:-1]))

    run(check())


# -- in a cluster


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with cluster_of(tmp_path) as running:
        yield running


def intact(store: Store, name: str, version: str | None = None) -> bool:
    """False also while the node does not know whether its copy is the newest one."""
    try:
        return read(store, name, BUCKET, version=version) == DATA
    except (CorruptObject, ReplicaStale):
        return False


@pytest.mark.slow
def test_a_damaged_copy_is_passed_over_and_never_becomes_a_sound_object(cluster: LocalCluster) -> None:
    with connect(cluster.nodes[0].url, options=PATIENT_CLIENT) as client:
        bucket = client.bucket(BUCKET)
        for number in range(4):
            name = f"n{number}"
            bucket.put(name, DATA)
            owners = cluster.owners(name)
            flip_a_byte(file_of(cluster.batches(owners[0]).node.store, name, BUCKET), 500_000)
            made = bucket.copy(name, f"to/{name}")
            for owner in cluster.owners(made.name):
                store = cluster.batches(owner).node.store
                eventually(lambda store=store, made=made: intact(store, made.name, made.version))  # type: ignore[misc]
            first = cluster.batches(owners[0]).node.store
            eventually(lambda first=first, name=name: intact(first, name))  # a copy that is found damaged is mended
            for owner in owners:
                flip_a_byte(file_of(cluster.batches(owner).node.store, name, BUCKET), 500_000)
            with pytest.raises(errors.CorruptObject):
                bucket.copy(name, f"never/{name}")
            with pytest.raises(errors.ObjectNotFound):
                bucket.head(f"never/{name}")
    eventually(lambda: staged_files(cluster) == 0)  # the copies that nobody can mend are tried again now and then


@pytest.mark.slow
def test_a_copy_is_made_from_the_holders_that_are_left(cluster: LocalCluster) -> None:
    with connect(cluster.nodes[0].url, options=PATIENT_CLIENT) as client:
        bucket = client.bucket(BUCKET)
        names = [f"n{number}" for number in range(8)]
        for name in names:
            bucket.put(name, DATA)
        cluster.nodes[3].stop(grace_s=0)
        for name in names:
            with contextlib.closing(bucket.open(bucket.copy(name, f"to/{name}").name)) as file:
                assert file.read() == DATA
