"""Clients of `node:///`: what they read without the node, and that nobody can tell by the results.

A node that stands still answers nothing, so that what comes from a client then was read from the folder.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from ais_loader import Bucket, Client, ClusterOptions, Entry, connect, errors
from ais_loader.testing import NodeProcess, eventually, seeded_bytes, throwaway_folder
from ais_loader.wire.node_folder import NodeFolder
from tests.changing_folder import bytes_of, files_below
from tests.patience import PATIENT_CLIENT
from tests.table import table
from tests.tar_kit import packed_tar

pytestmark = pytest.mark.slow

TIMEOUT_S = 180.0
SILENT_S = 0.3
OBJECTS = {f"{at:03}": seeded_bytes(1000 + at, seed=at) for at in range(200)}
LARGE = seeded_bytes(9_000_000, seed=7)
MEMBERS = {"x": b"first", "y": seeded_bytes(3000, seed=2)}


def stop(drive: Path, number: int = signal.SIGKILL) -> None:
    """Stop the node of a drive, if there is one. Returns when it has ended."""
    folder = NodeFolder([drive])

    def lock() -> int | None:
        if (found := folder.lock()) is None and (pid := folder.pid()) is not None:
            os.kill(pid, number)
        return found

    found = eventually(lock, TIMEOUT_S, interval_s=0.02)
    assert found is not None
    os.close(found)


def thread_states(pid: int) -> Iterator[str]:
    """The letter of each thread of a process, without threads that end meanwhile."""
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        with suppress(OSError):
            yield stat.read_text().rpartition(")")[2].split()[0]


@contextmanager
def still(drive: Path) -> Iterator[None]:
    """The node of a drive stands still meanwhile."""
    pid = NodeFolder([drive]).pid()
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        # One thread takes the signal. Until it is scheduled, which a busy machine delays, the others go on.
        eventually(lambda: set(thread_states(pid)) == {"T"})
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.fixture
def drive(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A folder whose node is stopped at the end."""
    with throwaway_folder() as folder:
        drive = (tmp_path if request.node.get_closest_marker("on_disk") else folder) / "drive"
        yield drive
        if (drive / "node").exists():
            stop(drive)


@pytest.fixture
def client(drive: Path) -> Iterator[Client]:
    with connect(f"node://{drive}", options=PATIENT_CLIENT) as client:
        client.create_bucket("b").put_many(OBJECTS.items())
        yield client


@pytest.fixture
def bucket(client: Client) -> Bucket:
    bucket = client.bucket("b")
    bucket.put("large", LARGE)
    bucket.put("s.tar", packed_tar(MEMBERS))
    bucket.snapshot("cut")
    settle(bucket)
    return bucket


def settle(bucket: Bucket) -> None:
    """Wait until the client reads by itself: not right after a write, nor before compaction has ended."""
    client = bucket.client

    def reads_here() -> bool:
        transport = client._transport
        return transport._reader_of([bucket.name]) is not None  # type: ignore[attr-defined]

    eventually(reads_here, TIMEOUT_S)


def test_what_is_stored_is_read_while_the_node_stands_still(drive: Path, bucket: Bucket) -> None:
    parts = [Entry("b", "large", start=4_000_000, length=300_000), Entry("b", "s.tar", member="y")]
    with connect(bucket.client.url) as other:
        assert bytes(other.bucket("b").get("000")) == OBJECTS["000"]  # it finds the node
        settle(other.bucket("b"))
        with still(drive):
            for each in (bucket, other.bucket("b")):
                assert {name: bytes(each.get(name)) for name in list(OBJECTS)[:5]} == dict(list(OBJECTS.items())[:5])
                assert [bytes(item.data) for item in each.get_batch(list(OBJECTS))] == list(OBJECTS.values())
                assert each.get_batch(list(OBJECTS)).tobytes() == list(OBJECTS.values())
                assert bytes(each.get("large")) == LARGE
                assert bytes(each.get("large", start=5, length=70)) == LARGE[5:75]
                assert [item.tobytes() for item in each.client.get_batch(parts)] == [
                    LARGE[4_000_000:4_300_000],
                    MEMBERS["y"],
                ]
                with each.open("large") as file:
                    file.seek(8_000_000)
                    assert file.read() == LARGE[8_000_000:]
                assert bytes(each.client.bucket("b", snapshot="cut").get("000")) == OBJECTS["000"]


def test_what_is_not_stored_is_for_the_node_to_tell(drive: Path, bucket: Bucket) -> None:
    names = [*list(OBJECTS)[:150], "missing", *list(OBJECTS)[150:]]
    expected = [*list(OBJECTS.values())[:150], None, *list(OBJECTS.values())[150:]]
    batch = bucket.get_batch(names, on_error="placeholder")
    assert batch.tobytes() == expected
    assert isinstance(batch.failures[150], errors.ObjectNotFound)
    items = list(bucket.get_batch(names, on_error="placeholder"))
    assert [item.tobytes() if item.ok else None for item in items] == expected
    assert sorted(item.index for item in bucket.get_batch(names, on_error="placeholder", ordered=False)) == list(
        range(201)
    )
    with pytest.raises(errors.ObjectNotFound, match="entry 150"):
        list(bucket.get_batch(names))
    with pytest.raises(errors.BucketNotFound):
        bucket.client.bucket("none").get("a")
    with still(drive), pytest.raises(errors.SilenceTimeout):
        bucket.get("missing", timeout_s=SILENT_S)


def test_damage_is_for_the_node_to_tell(drive: Path, client: Client) -> None:
    bucket = client.bucket("b")
    large = {f"l{at}": seeded_bytes(200_000 + at, seed=at) for at in range(20)}
    bucket.put_many(large.items())
    settle(bucket)
    [file] = [path for path, _ in files_below(drive / "objects") if bytes_of(path) == large["l15"]]
    file.chmod(0o600)
    with file.open("r+b") as opened:
        opened.seek(1000)
        opened.write(b"damage")
    batch = bucket.get_batch(list(large), on_error="placeholder")
    found = [item.tobytes() if item.ok else item.error for item in batch]
    assert isinstance(found[15], errors.CorruptObject)
    assert found[:15] + found[16:] == [large[name] for name in large if name != "l15"]
    with pytest.raises(errors.CorruptObject):
        bucket.get("l15")


_WRITER = """
import ais_loader, sys
with ais_loader.connect(sys.argv[1]) as client:
    bucket = client.bucket("b")
    for number in range(1, int(sys.argv[2])):
        name = f"w{number % 3}"
        if number % 7 == 0:
            bucket.delete("gone") if "gone" in list(bucket.objects(prefix="gone")) else None
        bucket.put(name, b"%06d" % number + bytes(number % 3 * 40_000))
        print(name, number, flush=True)
"""


@pytest.mark.parametrize("way", ["get", "batch", "mixed", pytest.param("cached", marks=pytest.mark.on_disk)])
def test_reads_are_never_behind_an_acknowledged_write_and_never_go_back(
    drive: Path, client: Client, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    if way != "mixed":
        monkeypatch.setattr("storage_node.store.drive.drive.FOLLOW_INTERVAL_S", 0.0)
    bucket, count, from_memory = client.bucket("b"), 240, 0

    def cached(name: str) -> bytes:
        nonlocal from_memory
        found = client._transport.open_cached("b", name, 1 << 20)
        from_memory += found is not None
        return bytes(bucket.get(name) if found is None or found.content is None else found.content())

    for at in range(3):
        bucket.put(f"w{at}", b"%06d" % 0)
    acknowledged = {f"w{at}": 0 for at in range(3)}
    failures: list[str] = []
    ended = threading.Event()
    writer = subprocess.Popen(
        [sys.executable, "-c", _WRITER, client.url, str(count)], stdout=subprocess.PIPE, text=True
    )

    def read() -> None:
        seen = dict.fromkeys(acknowledged, 0)
        try:
            while not ended.is_set():
                least = {name: max(seen[name], number) for name, number in acknowledged.items()}
                names = list(least)
                if way == "get":
                    found = [bytes(bucket.get(name)) for name in names]
                elif way == "cached":
                    found = [cached(name) for name in names]
                else:
                    found = [item.tobytes() for item in bucket.get_batch(names)]
                for name, data in zip(names, found, strict=True):
                    seen[name] = int(data[:6])
                    if seen[name] < least[name] or len(data) != 6 + seen[name] % 3 * 40_000:
                        failures.append(f"{name}: read {seen[name]} after {least[name]}")
        except errors.LoaderError as error:
            failures.append(repr(error))

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        with writer:
            for line in writer.stdout or ():
                name, number = line.split()
                acknowledged[name] = int(number)
        assert writer.returncode == 0
        if way == "cached":
            assert eventually(lambda: from_memory, TIMEOUT_S)
    finally:
        ended.set()
        for thread in threads:
            thread.join(TIMEOUT_S)
    assert failures == []
    assert sorted(acknowledged.values()) == [count - 3, count - 2, count - 1]


def test_deletions_and_buckets_are_seen_at_once(client: Client) -> None:
    script = """
import ais_loader, sys
with ais_loader.connect(sys.argv[1]) as client:
    for line in sys.stdin:
        exec(line)
        print("done", flush=True)
"""
    command = [sys.executable, "-c", script, client.url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdin is not None and other.stdout is not None

        def does(line: str) -> None:
            print(line, file=other.stdin, flush=True)
            assert other.stdout is not None and other.stdout.readline() == "done\n"

        bucket = client.bucket("b")
        for number in range(12):
            settle(bucket)
            assert bytes(bucket.get("007")) == OBJECTS["007"]
            does("client.bucket('b').delete('007')")
            with pytest.raises(errors.ObjectNotFound):
                bucket.get("007")
            does(f"client.create_bucket('n{number}').put('a', b'new')")
            assert bytes(client.bucket(f"n{number}").get("a")) == b"new"
            does(f"client.delete_bucket('n{number}', force=True)")
            with pytest.raises(errors.BucketNotFound):
                client.bucket(f"n{number}").get("a")
            bucket.put("007", OBJECTS["007"])
        other.stdin.close()


def test_a_node_that_is_killed_or_stopped_does_not_end_reads(drive: Path, bucket: Bucket) -> None:
    for number in (signal.SIGKILL, signal.SIGTERM):
        with bucket.get_batch(list(OBJECTS) * 50) as batch:
            first = next(batch)
            stop(drive, number)
            assert [item.tobytes() for item in (first, *batch)] == list(OBJECTS.values()) * 50
        assert bytes(bucket.get("003")) == OBJECTS["003"]
        bucket.put("003", b"by the next node")
        assert bytes(bucket.get("003")) == b"by the next node"
        settle(bucket)
        assert bytes(bucket.get("003")) == b"by the next node"
        bucket.put("003", OBJECTS["003"])
        settle(bucket)


def test_a_node_killed_while_it_writes_loses_nothing_that_was_read(drive: Path, client: Client) -> None:
    bucket = client.bucket("b")
    for _ in range(4):
        settle(bucket)
        seen = [0]
        ended = threading.Event()

        def read(seen: list[int] = seen, ended: threading.Event = ended) -> None:
            while not ended.is_set():
                seen.append(int(bucket.get("n")))

        bucket.put("n", b"0")
        reading = threading.Thread(target=read)
        reading.start()
        pid = NodeFolder([drive]).pid()
        assert pid is not None
        threading.Timer(0.15, os.kill, (pid, signal.SIGKILL)).start()
        for number in range(1, 60):
            try:
                bucket.put("n", b"%d" % number)
            except errors.OutcomeUnknown:
                bucket.put("n", b"%d" % number)
            assert int(bucket.get("n")) == number
        ended.set()
        reading.join(TIMEOUT_S)
        assert seen == sorted(seen)
        assert int(bucket.get("n")) == 59


def test_segments_are_compacted_under_a_reader(drive: Path, client: Client) -> None:
    bucket = client.create_bucket("small")
    objects = {f"{at:05}": seeded_bytes(4000, seed=at) for at in range(4000)}
    bucket.put_many(objects.items())
    kept = list(objects)[::7]
    segments = drive / "objects" / "segments"

    def size_bytes() -> int:
        return sum(found.st_blocks * 512 for path, found in files_below(segments) if path.name.startswith("segment."))

    settle(bucket)
    before, failures, ended = size_bytes(), list[str](), threading.Event()

    def read() -> None:
        while not ended.is_set():
            try:
                if bucket.get_batch(kept).tobytes() != [objects[name] for name in kept]:
                    failures.append("other bytes")
            except errors.LoaderError as error:
                failures.append(repr(error))

    reading = threading.Thread(target=read)
    reading.start()
    try:
        for name in objects:
            if name not in kept:
                bucket.delete(name)
            if name.endswith("999"):
                assert failures == []
        eventually(lambda: size_bytes() < before / 3, TIMEOUT_S, interval_s=0.1)
    finally:
        ended.set()
        reading.join(TIMEOUT_S)
    assert failures == []
    settle(bucket)
    with still(drive):
        assert bucket.get_batch(kept).tobytes() == [objects[name] for name in kept]


def test_a_folder_that_is_removed_or_replaced_is_not_read_any_more(drive: Path, bucket: Bucket) -> None:
    stop(drive)
    assert bytes(bucket.get("001")) == OBJECTS["001"]
    drive.rename(drive.with_name("elsewhere"))
    with connect(f"node://{drive}") as other:
        other.create_bucket("b").put("001", b"of another store")
        assert bytes(bucket.get("001")) == b"of another store"
        with pytest.raises(errors.ObjectNotFound):
            bucket.get("002")
        settle(bucket)
        assert bytes(bucket.get("001")) == b"of another store"
    stop(drive)
    shutil.rmtree(drive)
    with pytest.raises(errors.NotFound):
        bucket.get("001", timeout_s=5.0)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_folder_that_is_given_to_another_user_is_left_to_the_node(drive: Path, bucket: Bucket) -> None:
    def give(user: int) -> None:
        for parent, folders, files in os.walk(drive):
            for name in (".", *folders, *files):
                with suppress(FileNotFoundError):  # the node removes files meanwhile
                    os.chown(os.path.join(parent, name), user, user, follow_symlinks=False)

    give(65534)
    assert bytes(bucket.get("001")) == OBJECTS["001"]
    with still(drive), pytest.raises(errors.SilenceTimeout):
        bucket.get("001", timeout_s=SILENT_S)
    give(0)
    bucket.put("001", b"new")
    assert bytes(bucket.get("001")) == b"new"
    settle(bucket)
    with still(drive):
        assert bytes(bucket.get("001")) == b"new"


@table(
    ("arguments", "options"),
    [
        (("--set", "audit_level=reads"), ClusterOptions()),
        (("--metrics-port", "0"), ClusterOptions()),
        (("--set", "tenant_requests_per_s=1000000"), ClusterOptions()),
        (("--set", "tenant_bytes_per_s=1000000000"), ClusterOptions()),
        ((), ClusterOptions(lane="grpc")),
        ((), ClusterOptions(tenant="somebody")),
        ((), ClusterOptions(token="eyJhbGciOiJFZERTQSJ9.e30.AA")),
    ],
)
def test_a_node_that_has_to_see_reads_is_asked(arguments: tuple[str, ...], options: ClusterOptions) -> None:
    with ExitStack() as held:
        folder = held.enter_context(throwaway_folder())
        node = held.enter_context(NodeProcess(folder / "drive", arguments=arguments))
        client = held.enter_context(connect(f"node://{folder / 'drive'}", options=options))
        client.create_bucket("b").put("a", b"data")
        time.sleep(0.1)
        assert bytes(client.bucket("b").get("a")) == b"data"
        node.pause()
        held.callback(node.resume)
        with pytest.raises(errors.SilenceTimeout):
            client.bucket("b").get("a", timeout_s=SILENT_S)


def test_remote_buckets_are_read_by_the_node(drive: Path, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"remote")
    other, arguments = drive.with_name("other"), ["--set", f"remote_file_roots={tmp_path}"]
    with NodeProcess(other, arguments=arguments), connect(f"node://{other}") as near:
        near.create_bucket("stored").put("a", b"stored")
        bucket = near.create_bucket("r", remote=f"file://{tmp_path}")
        assert [bytes(bucket.get("a")) for _ in range(2)] == [b"remote"] * 2
        settle(near.bucket("stored"))
        with still(other):
            assert bytes(near.bucket("stored").get("a")) == b"stored"
            with pytest.raises(errors.SilenceTimeout):
                bucket.get("a", timeout_s=SILENT_S)


def test_without_rocksdb_the_node_is_asked(client: Client) -> None:
    script = (
        "import sys; sys.modules['rocksdict'] = None\n"
        "import ais_loader\n"
        "with ais_loader.connect(sys.argv[1]) as client:\n"
        "    bucket = client.bucket('b')\n"
        "    for _ in range(5):\n"
        "        found = [len(item.data) for item in bucket.get_batch(['000', '001'])]\n"
        "    print(found, bucket.get('002') is not None)"
    )
    done = subprocess.run([sys.executable, "-c", script, client.url], capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.stdout == "[1000, 1001] True\n", done.stderr


@pytest.mark.fresh_process
def test_forked_children_read_by_themselves(drive: Path, bucket: Bucket) -> None:
    assert bytes(bucket.get("004")) == OBJECTS["004"]
    child = os.fork()
    if not child:
        code = 1
        try:
            found = [item.tobytes() for item in bucket.get_batch(list(OBJECTS))]
            code = int(found != list(OBJECTS.values()) or bytes(bucket.get("004")) != OBJECTS["004"])
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert bytes(bucket.get("005")) == OBJECTS["005"]
