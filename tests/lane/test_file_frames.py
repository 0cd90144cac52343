"""Large frames and objects from files: the bytes and their order, whatever lies between; cut, damaged, not taken."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from ais_loader import Client, ClusterOptions, Entry, Status, connect, errors
from ais_loader.testing import eventually, seeded_bytes
from ais_loader.wire.frame import TARGET_PAYLOAD_BYTES
from ais_loader.wire.generated import ais_batch_pb2 as pb
from storage_node.server import NodeServer
from storage_node.store.read import file_frame
from storage_node.store.read.batch import StoreBatch
from storage_node.store.read.file_frame import FileFrame
from storage_node.store.read.frame_plan import FILE_FRAME_BYTES, FrameSpan
from tests.lane.lane_kit import open_lane
from tests.node.node_kit import serving
from tests.store.store_kit import BUCKET, flip_a_byte, object_files, put, store_at
from tests.table import table

MIB = 1 << 20
DATA = {f"{at:02}": seeded_bytes(700_000 + at, seed=at) for at in range(16)}
SMALL = {f"small/{at}": seeded_bytes(900 + at, seed=100 + at) for at in range(3)}
TIMEOUT_S = 180.0


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeServer]:
    with serving(tmp_path_factory.mktemp("files")) as node:
        with connect(node.url) as client:
            bucket = client.create_bucket("b")
            for name, data in (DATA | SMALL).items():
                bucket.put(name, data)
        yield node


@pytest.fixture
def client(node: NodeServer) -> Iterator[Client]:
    with connect(node.url, options=ClusterOptions(lane="auto")) as client:
        yield client


@pytest.fixture(params=[True, False], ids=["cached", "cold"])
def cached(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether frames are sent on the event loop, or by a thread."""
    monkeypatch.setattr(file_frame, "_is_cached", lambda *_: request.param)
    return bool(request.param)


@pytest.fixture
def frames(monkeypatch: pytest.MonkeyPatch) -> list[FileFrame]:
    """Those that were begun."""
    begun: list[FileFrame] = []
    send = FileFrame.send

    def noted(self: FileFrame, sock: socket.socket, patience_ms: int = 5) -> None:
        if self not in begun:
            begun.append(self)
        send(self, sock, patience_ms)

    monkeypatch.setattr(FileFrame, "send", noted)
    return begun


@pytest.mark.usefixtures("cached")
def test_entries_share_large_frames(client: Client, frames: list[FileFrame]) -> None:
    items = client.bucket("b").get_batch(list(DATA), timeout_s=TIMEOUT_S)
    assert [item.tobytes() for item in items] == list(DATA.values())
    assert [len(frame.parts) for frame in frames] == [5, 5, 5, 1]
    assert all(frame.payload_bytes <= FILE_FRAME_BYTES for frame in frames)


def test_only_those_that_may_wait_for_a_drive_are_opened_by_a_thread(
    node: NodeServer, client: Client, cached: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_thread: list[FrameSpan] = []
    read_message = StoreBatch.read_message

    def noted(self: StoreBatch, span: FrameSpan, batch_id: int) -> tuple[bytes | FileFrame, bool]:
        by_thread.append(span)
        return read_message(self, span, batch_id)

    monkeypatch.setattr(StoreBatch, "read_message", noted)
    items = client.bucket("b").get_batch(list(DATA), timeout_s=TIMEOUT_S)
    assert [item.tobytes() for item in items] == list(DATA.values())
    assert len(by_thread) == (1 if cached else 4)


def test_all_that_lies_between_comes_in_its_place(client: Client, frames: list[FileFrame]) -> None:
    names = list(DATA)
    entries = [
        *(Entry("b", name) for name in names[:4]),
        Entry("b", "nothing"),
        *(Entry("b", name) for name in SMALL),
        Entry("b", names[4], start=1000, length=650_000),
        *(Entry("b", name) for name in names[5:]),
    ]
    items = list(client.get_batch(entries, on_error="placeholder", timeout_s=TIMEOUT_S))
    due = [
        *(DATA[name] for name in names[:4]),
        b"",
        *SMALL.values(),
        DATA[names[4]][1000:651_000],
        *(DATA[name] for name in names[5:]),
    ]
    assert [item.tobytes() for item in items] == due
    assert [at for at, item in enumerate(items) if item.status != Status.OK] == [4]
    assert len(frames) < len(DATA) / 2


def test_one_that_is_asked_for_twice_comes_twice(client: Client) -> None:
    names = [*DATA, "03", "04", "03"]
    items = client.bucket("b").get_batch(names, timeout_s=TIMEOUT_S)
    assert [item.tobytes() for item in items] == [DATA[name] for name in names]


@pytest.mark.usefixtures("cached")
@pytest.mark.parametrize("cut_bytes", [0, 2 * MIB])
def test_a_connection_that_breaks_in_the_middle_of_one_costs_nothing_of_the_answer(
    client: Client, monkeypatch: pytest.MonkeyPatch, cut_bytes: int
) -> None:
    cut: list[FileFrame] = []
    send = FileFrame.send

    def cut_second(self: FileFrame, sock: socket.socket, patience_ms: int = 5) -> None:
        if self not in cut and len(cut) < 2:
            cut.append(self)
            if len(cut) == 2:
                left_bytes = cut_bytes
                for part in self.parts:
                    with suppress(BlockingIOError):
                        left_bytes -= os.sendfile(sock.fileno(), part.fd, part.offset, min(left_bytes, part.left_bytes))
                sock.shutdown(socket.SHUT_RDWR)
                raise ConnectionResetError("cut")
        send(self, sock, patience_ms)

    monkeypatch.setattr(FileFrame, "send", cut_second)
    batch = client.bucket("b").get_batch(list(DATA), timeout_s=TIMEOUT_S)
    assert [item.tobytes() for item in batch] == list(DATA.values())
    assert len(cut) == 2


@pytest.mark.slow
@table("credit_bytes", [1, 2 * MIB, 5 * MIB, 8 * MIB])
def test_what_comes_is_within_the_credit_but_for_a_frame_no_larger_than_that(
    node: NodeServer, credit_bytes: int
) -> None:
    with open_lane(node) as lane:
        request = pb.BatchRequest(
            bucket=["b"], name=list(DATA), initial_credit_bytes=credit_bytes, ordered=True, receiver_checks=True
        )
        lane.send(1, request=request)
        came, largest = b"", 0
        most_bytes = max(min(credit_bytes, FILE_FRAME_BYTES), TARGET_PAYLOAD_BYTES + 700_000)
        while len(came) < credit_bytes:
            frame = lane.response().frame
            assert frame is not None
            largest = max(largest, len(frame.payload))
            came += bytes(frame.payload)
        assert largest <= most_bytes
        assert len(came) < credit_bytes + most_bytes
        lane.socket.settimeout(0.2)
        with pytest.raises(TimeoutError):  # no credit is left
            lane.receive()
        lane.socket.settimeout(TIMEOUT_S)
        lane.send(1, credit=pb.Credit(payload_bytes=1 << 40))
        while (response := lane.response()).end is None:
            assert response.frame is not None
            came += bytes(response.frame.payload)
        if response.frame is not None:
            came += bytes(response.frame.payload)
    assert came == b"".join(DATA.values())


# -- one object


@pytest.mark.usefixtures("cached")
def test_one_object_comes_from_its_file(client: Client, frames: list[FileFrame]) -> None:
    assert [client.bucket("b").get(name) for name in DATA] == list(DATA.values())
    assert [frame.payload_bytes for frame in frames] == [len(data) for data in DATA.values()]


def test_one_that_is_cut_off_is_asked_for_again(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_frame, "_is_cached", lambda *_: True)
    assert client.bucket("b").get("00") == DATA["00"]
    cut: list[FileFrame] = []
    send = FileFrame.send

    def cut_first(self: FileFrame, sock: socket.socket, patience_ms: int = 5) -> None:
        if not cut:
            cut.append(self)
            os.sendfile(sock.fileno(), self.parts[0].fd, 0, 300_000)
            sock.shutdown(socket.SHUT_RDWR)
            raise ConnectionResetError("cut")
        send(self, sock, patience_ms)

    monkeypatch.setattr(FileFrame, "send", cut_first)
    assert client.bucket("b").get("01") == DATA["01"]
    assert len(cut) == 1
    eventually(lambda: not cut[0].parts[0].owned)  # closed


@pytest.mark.usefixtures("cached")
def test_one_that_was_damaged_or_cut_short_is_corrupt_and_the_others_are_not(tmp_path: Path) -> None:
    with serving(tmp_path) as node, connect(node.url, options=ClusterOptions(lane="auto")) as client:
        bucket = client.create_bucket("b")
        for at in range(3):
            bucket.put(f"{at}", DATA[f"{at:02}"])
        assert bucket.get("0") == DATA["00"]
        [drive] = [Path(drive) for drive in node._drives]
        files = {path.stat().st_size: path for path in object_files(drive)}
        flip_a_byte(files[len(DATA["00"])], 500_000)
        os.truncate(files[len(DATA["01"])], 400_000)
        for name in ("0", "1"):
            with pytest.raises(errors.CorruptObject):
                bucket.get(name)
        assert bucket.get("2") == DATA["02"]


def test_who_takes_nothing_of_one_holds_up_nobody_else(
    node: NodeServer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_frame, "_is_cached", lambda *_: True)
    assert client.bucket("b").get("00") == DATA["00"]
    with open_lane(node) as deaf:
        for batch_id in range(1, 40):  # more than the buffers of a socket have room for
            deaf.send(batch_id, request=request_of("00"))
        assert [client.bucket("b").get(name) for name in DATA] == list(DATA.values())
        assert node.batches is not None
        eventually(lambda: any(session.stalled_s() > 0 for session in list(node.batches._sessions)))  # type: ignore[union-attr]
        for batch_id in range(1, 40):
            response = deaf.response()
            assert response.batch_id == batch_id
            assert response.frame is not None
            assert response.frame.payload == DATA["00"]
            assert response.end is not None


def test_one_waits_like_a_batch_while_the_node_has_too_much_to_do(
    node: NodeServer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_frame, "_is_cached", lambda *_: True)
    assert node.batches is not None
    metrics, load = node.batches.node.metrics, node.batches.node.load
    before_s = metrics.throttle_s["cpu"]
    monkeypatch.setattr(load, "pause", lambda: (0.0, ""))  # whatever else this machine does
    assert client.bucket("b").get("00") == DATA["00"]
    assert metrics.throttle_s["cpu"] == before_s
    monkeypatch.setattr(load, "pause", lambda: (0.001, "cpu"))
    assert client.bucket("b").get("00") == DATA["00"]
    assert metrics.throttle_s["cpu"] > before_s


def request_of(*names: str) -> pb.BatchRequest:
    return pb.BatchRequest(bucket=["b"], name=names, initial_credit_bytes=1 << 40, receiver_checks=True)


# -- ranges


BLOCK = 256 << 10
WHOLE = seeded_bytes(5 * MIB + 1234, seed=77)


@pytest.fixture(scope="module")
def large(node: NodeServer) -> bytes:
    with connect(node.url) as client:
        client.bucket("b").put("large", WHOLE)
    return WHOLE


@pytest.mark.parametrize(
    ("start", "length", "from_file"),
    [
        (0, BLOCK, True),
        (BLOCK, 3 * BLOCK, True),
        (BLOCK, 4 * MIB, True),
        (4 * MIB, None, True),  # up to the end, in the middle of a block
        (5 * MIB, None, False),  # too little for that
        (0, BLOCK + 1, False),
        (BLOCK - 1, BLOCK + 1, False),
    ],
)
def test_ranges_of_whole_blocks_come_from_their_file_and_others_are_read(
    client: Client, frames: list[FileFrame], large: bytes, start: int, length: int | None, from_file: bool
) -> None:
    [item] = client.get_batch([Entry("b", "large", start=start, length=length)], timeout_s=TIMEOUT_S)
    stop = len(large) if length is None else start + length
    assert item.tobytes() == large[start:stop]
    assert len(frames) == from_file


def test_an_object_that_is_read_as_a_file_is_sent_from_its_file(
    client: Client, frames: list[FileFrame], large: bytes
) -> None:
    with client.bucket("b").open("large") as file:
        assert file.read() == large
    assert sum(frame.payload_bytes for frame in frames) > len(large) / 2


def test_a_range_that_was_damaged_is_corrupt_and_not_what_lies_there_now(
    tmp_path: Path, frames: list[FileFrame]
) -> None:
    with serving(tmp_path) as node, connect(node.url, options=ClusterOptions(lane="auto")) as client:
        bucket = client.create_bucket("b")
        bucket.put("large", WHOLE)
        [drive] = [Path(drive) for drive in node._drives]
        [path] = object_files(drive)
        flip_a_byte(path, 3 * BLOCK + 5)
        entries = [Entry("b", "large", start=at * BLOCK, length=BLOCK) for at in range(6)]
        items = list(client.get_batch(entries, on_error="placeholder", timeout_s=TIMEOUT_S))
        assert [item.status for item in items] == [Status.CORRUPT if at == 3 else Status.OK for at in range(6)]
        good = [WHOLE[at * BLOCK : (at + 1) * BLOCK] for at in range(6) if at != 3]
        assert [item.tobytes() for item in items if item.ok] == good
        assert frames


def test_end_comes_with_an_only_entry_from_a_slow_drive_and_behind_several(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_frame, "_is_cached", lambda *_: False)
    with store_at(tmp_path) as store:
        for name in ("a", "b"):
            put(store, name, bytes(1 << 20))
        for names, comes_with_it in ((["a"], True), (["a", "b"], False)):
            batch = StoreBatch(store, pb.BatchRequest(bucket=[BUCKET], name=names))
            batch.file_frame_bytes = 4 << 20
            (span,) = batch.spans()
            opened = batch.open_message(span, 1)
            assert opened is not None
            with closing(opened[0]) as frame:
                response = pb.SessionResponse.FromString(frame.prefix + bytes(frame.payload_bytes))
            assert (opened[1], response.HasField("end")) == (comes_with_it, comes_with_it)
            assert len(response.frame.index) == len(names)
            batch.close()
