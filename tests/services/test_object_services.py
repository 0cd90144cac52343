"""PUT, GET and LIST as any client can speak them, nonsense included: nothing half-stored, every error with its kind."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from ais_loader import Bucket, connect, errors
from ais_loader.testing import eventually, seeded_bytes, throwaway_folder
from ais_loader.wire.checksum import crc32c
from ais_loader.wire.generated import ais_objects_pb2 as pb
from ais_loader.wire.generated import ais_objects_pb2_grpc as rpc
from storage_node.server import NodeServer
from tests.changing_folder import files_below
from tests.node.node_kit import CALL_TIMEOUT_S, bucket_of, serving
from tests.open_files import open_files
from tests.table import table

MiB = 1 << 20
DATA = seeded_bytes(3000)


@pytest.fixture(scope="module")
def node() -> Iterator[NodeServer]:
    with throwaway_folder() as folder, serving(folder) as node:
        yield node


@pytest.fixture
def bucket(node: NodeServer, bucket_name: str) -> Iterator[Bucket]:
    with bucket_of(node, bucket_name) as bucket:
        yield bucket


@pytest.fixture
def objects(node: NodeServer) -> Iterator[rpc.ObjectsStub]:
    with grpc.insecure_channel(node.url.removeprefix("grpc://")) as channel:
        yield rpc.ObjectsStub(channel)


def kind_of(call: Callable[[], Any]) -> str:
    """The kind of the error that a call ends with."""
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return dict(caught.value.trailing_metadata() or ()).get("ais-error-kind", f"none, but {caught.value.code()}")


def header(bucket: Bucket, **fields: Any) -> pb.PutRequest:
    return pb.PutRequest(header=pb.PutHeader(bucket=bucket.name, name="a", **fields))


def data(content: bytes = DATA) -> pb.PutRequest:
    return pb.PutRequest(data=content)


def end(content: bytes = DATA, **changes: int) -> pb.PutRequest:
    return pb.PutRequest(end=pb.PutEnd(**{"size_bytes": len(content), "checksum": crc32c(content), **changes}))


class TestPut:
    def test_a_put_is_header_data_and_end(self, bucket: Bucket, objects: rpc.ObjectsStub) -> None:
        messages = [header(bucket), data(DATA[:10]), data(b""), data(DATA[10:]), end()]
        info = objects.Put(iter(messages), timeout=CALL_TIMEOUT_S)
        assert (info.size_bytes, info.checksum) == (len(DATA), crc32c(DATA))
        assert bucket.get("a") == DATA

    def test_an_object_without_bytes_needs_no_data(self, bucket: Bucket, objects: rpc.ObjectsStub) -> None:
        objects.Put(iter([header(bucket), end(b"")]), timeout=CALL_TIMEOUT_S)
        assert bucket.get("a") == b""

    @table(
        ("messages", "kind"),
        [
            (lambda bucket: [], "invalid-request"),
            (lambda bucket: [data(), end()], "invalid-request"),
            (lambda bucket: [end()], "invalid-request"),
            (lambda bucket: [pb.PutRequest()], "invalid-request"),
            (lambda bucket: [header(bucket)], "invalid-request"),
            (lambda bucket: [header(bucket), data()], "invalid-request"),
            (lambda bucket: [header(bucket), header(bucket), data(), end()], "invalid-request"),
            (lambda bucket: [header(bucket), pb.PutRequest(), end(b"")], "invalid-request"),
            (lambda bucket: [header(bucket), data(), end(size_bytes=1)], "content-mismatch"),
            (lambda bucket: [header(bucket), data(), end(checksum=1)], "content-mismatch"),
            (lambda bucket: [header(bucket, size_bytes=5), data(), end()], "content-mismatch"),
            (lambda bucket: [header(bucket, checksum=5), data(), end()], "content-mismatch"),
            (lambda bucket: [header(bucket, metadata={"k": "x" * 5000}), data(), end()], "invalid-request"),
            (
                lambda bucket: [pb.PutRequest(header=pb.PutHeader(bucket=bucket.name, name="a//b")), end(b"")],
                "invalid-name",
            ),
            (
                lambda bucket: [pb.PutRequest(header=pb.PutHeader(bucket="none", name="a")), end(b"")],
                "bucket-not-found",
            ),
        ],
    )
    def test_anything_else_is_refused_and_the_old_object_stays(
        self, bucket: Bucket, objects: rpc.ObjectsStub, messages: Callable[[Bucket], list[pb.PutRequest]], kind: str
    ) -> None:
        bucket.put("a", b"old")
        assert kind_of(lambda: objects.Put(iter(messages(bucket)), timeout=CALL_TIMEOUT_S)) == kind
        assert bucket.get("a") == b"old"
        assert [info.name for info in bucket.objects()] == ["a"]

    def test_a_client_that_dies_in_the_middle_stores_nothing_and_leaves_no_file(
        self, node: NodeServer, bucket: Bucket, objects: rpc.ObjectsStub
    ) -> None:
        bucket.put("a", b"old")
        sent, over = threading.Event(), threading.Event()

        def messages() -> Iterator[pb.PutRequest]:
            yield header(bucket)
            for _ in range(8):
                yield data(bytes(MiB))
            sent.set()
            over.wait(CALL_TIMEOUT_S)

        drive = Path(bucket.client.describe()["drives"][0]["path"])  # type: ignore[index]

        def staged() -> bool:
            return any(found.st_size >= 8 * MiB for _, found in files_below(drive))

        call = objects.Put.future(messages())
        assert sent.wait(CALL_TIMEOUT_S)
        eventually(staged)
        call.cancel()
        over.set()
        eventually(lambda: not staged())
        assert bucket.get("a") == b"old"


class TestPutMany:
    def test_each_message_is_acknowledged_with_a_result_for_each_object(
        self, bucket: Bucket, objects: rpc.ObjectsStub
    ) -> None:
        small = [
            pb.SmallObject(bucket=bucket.name, name="a", data=b"1"),
            pb.SmallObject(bucket=bucket.name, name="/", data=b"2"),
            pb.SmallObject(bucket="none", name="c", data=b"3"),
            pb.SmallObject(bucket=bucket.name, name="d", data=b"4", checksum=1),
            pb.SmallObject(bucket=bucket.name, name="e", data=b"5", checksum=crc32c(b"5"), metadata={"k": "v"}),
        ]
        groups = [pb.PutManyRequest(object=small), pb.PutManyRequest(), pb.PutManyRequest(object=small[:1])]
        first, empty, last = objects.PutMany(iter(groups), timeout=CALL_TIMEOUT_S)
        assert [result.error.kind or result.info.name for result in first.result] == [
            "a",
            "invalid-name",
            "bucket-not-found",
            "content-mismatch",
            "e",
        ]
        assert (len(empty.result), len(last.result)) == (0, 1)
        assert [(info.name, info.metadata) for info in bucket.objects()] == [("a", {}), ("e", {"k": "v"})]


class TestGet:
    @pytest.fixture(autouse=True)
    def filled(self, bucket: Bucket) -> None:
        bucket.put("a", seeded_bytes(5 * MiB))

    def get(self, bucket: Bucket, objects: rpc.ObjectsStub, **fields: Any) -> tuple[pb.GetHeader, bytes]:
        first, *rest = objects.Get(pb.GetRequest(bucket=bucket.name, name="a", **fields), timeout=CALL_TIMEOUT_S)
        return first.header, b"".join(message.data for message in rest)

    def test_a_get_is_a_header_and_the_bytes(self, bucket: Bucket, objects: rpc.ObjectsStub) -> None:
        expected = seeded_bytes(5 * MiB)
        found, content = self.get(bucket, objects)
        assert (found.length, found.info.size_bytes, found.info.checksum) == (
            len(expected),
            len(expected),
            crc32c(expected),
        )
        assert content == expected
        assert self.get(bucket, objects, start=MiB + 1, length=2 * MiB)[1] == expected[MiB + 1 : 3 * MiB + 1]
        assert self.get(bucket, objects, start=5 * MiB)[1] == b""
        assert self.get(bucket, objects, start=5, verify_range=True)[1] == expected[5:]

    @table(
        ("fields", "kind"),
        [
            ({"start": 5 * MiB + 1}, "range"),
            ({"start": 2**64 - 1}, "range"),
            ({"length": 5 * MiB + 1}, "range"),
            ({"start": 1, "length": 2**64 - 1}, "range"),
            ({"version": "9.9.9"}, "object-not-found"),
            ({"member": "m"}, "not-an-archive"),
        ],
    )
    def test_what_cannot_be_had_is_an_error_before_any_byte(
        self, bucket: Bucket, objects: rpc.ObjectsStub, fields: dict[str, Any], kind: str
    ) -> None:
        assert kind_of(lambda: self.get(bucket, objects, **fields)) == kind

    def test_a_get_goes_on_with_its_version_when_the_object_is_replaced(
        self, bucket: Bucket, objects: rpc.ObjectsStub
    ) -> None:
        call = objects.Get(pb.GetRequest(bucket=bucket.name, name="a"), timeout=CALL_TIMEOUT_S)
        next(call)
        bucket.put("a", b"new")
        assert b"".join(message.data for message in call) == seeded_bytes(5 * MiB)

    def test_a_reader_that_goes_away_leaves_no_file_open(self, bucket: Bucket, objects: rpc.ObjectsStub) -> None:
        drive = bucket.client.describe()["drives"][0]["path"]  # type: ignore[index]

        def open_objects() -> list[str]:
            return [path for path in open_files().values() if path.startswith(f"{drive}/objects/")]

        for _ in range(20):
            call = objects.Get(pb.GetRequest(bucket=bucket.name, name="a"), timeout=CALL_TIMEOUT_S)
            next(call)
            call.cancel()
        eventually(lambda: not open_objects())


class TestLargeDownloads:
    """What a batch refuses as too large is streamed by `get`; the limit is lowered, so that it is quick."""

    @pytest.fixture(autouse=True)
    def small_limit(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("storage_node.store.read.batch_lookup.MAX_ITEM_BYTES", 2 * MiB)

    def test_a_large_object_and_its_ranges_are_read_by_get(self, bucket: Bucket) -> None:
        expected = seeded_bytes(7 * MiB + 1)
        bucket.put("a", expected)
        with pytest.raises(errors.ItemTooLarge):
            list(bucket.get_batch(["a"]))
        assert bucket.get("a") == expected
        assert bucket.get("a", start=MiB, length=5 * MiB, verify=True) == expected[MiB : 6 * MiB]
        assert bucket.get("a", start=7 * MiB) == expected[7 * MiB :]
        with pytest.raises(errors.RangeError):
            bucket.get("a", start=1, length=7 * MiB + 1)

    def test_a_flipped_byte_is_reported_as_corrupt(self, bucket: Bucket, node: NodeServer) -> None:
        bucket.put("a", seeded_bytes(7 * MiB + 11))
        drive = Path(bucket.client.describe()["drives"][0]["path"])  # type: ignore[index]
        [path] = [path for path, found in files_below(drive / "objects") if found.st_size == 7 * MiB + 11]
        flip(path, 5 * MiB)
        with pytest.raises(errors.CorruptObject):
            bucket.get("a")
        assert len(bucket.get("a", start=0, length=3 * MiB, verify=True)) == 3 * MiB


def flip(path: Path, at: int) -> None:
    path.chmod(0o600)
    with open(path, "r+b") as file:
        file.seek(at)
        [byte] = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 0x10]))


class TestListing:
    def test_a_page_says_whether_more_follow(self, bucket: Bucket, objects: rpc.ObjectsStub) -> None:
        bucket.put_many((f"{at}", b"") for at in range(5))

        def page(**fields: Any) -> tuple[list[str], bool]:
            answer = objects.List(pb.ListRequest(bucket=bucket.name, **fields), timeout=CALL_TIMEOUT_S)
            return [info.name for info in answer.object], answer.more

        assert page(page_size=2) == (["0", "1"], True)
        assert page(page_size=2, start_after="2") == (["3", "4"], False)
        assert page() == (["0", "1", "2", "3", "4"], False)
        assert page(page_size=2**32 - 1, prefix="3") == (["3"], False)
        assert page(start_after="9") == ([], False)
        assert page(start_after="not a name//") == ([], False)

    @pytest.mark.slow
    def test_a_list_of_more_than_a_page_of_the_node_is_whole(self, bucket: Bucket) -> None:
        bucket.put_many((f"{at:05d}", b"") for at in range(10_010))
        found = [info.name for info in bucket.objects(page_size=50_000)]
        assert found == [f"{at:05d}" for at in range(10_010)]


def test_an_error_of_a_bucket_call_keeps_its_class_over_the_wire(node: NodeServer, bucket: Bucket) -> None:
    with connect(node.url) as client:
        for call, error in (
            (lambda: client.create_bucket(bucket.name), errors.BucketExists),
            (lambda: client.create_bucket("a/b"), errors.InvalidName),
            (lambda: client.delete_bucket("none"), errors.BucketNotFound),
        ):
            with pytest.raises(error):
                call()
