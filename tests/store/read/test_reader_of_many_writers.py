"""A reader that outlives its writers: it follows each process that opens the store after the one before has ended."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ais_loader.testing import eventually
from ais_loader.wire.generated import ais_batch_pb2 as pb
from storage_node.store.drive.catalog import Catalog
from storage_node.store.store import Store
from tests.store.batch_kit import batch
from tests.store.store_kit import BUCKET, contents, drive_of, names, put, read, store_at

NAMES = [f"{number:03}" for number in range(120)]

WRITER = """
import sys
from storage_node.store.store import Store
from tests.store.store_kit import BUCKET, put
root, turn, snapshot = sys.argv[1], int(sys.argv[2]), sys.argv[3]
with Store.open([root]) as store:
    store.create_bucket(BUCKET, exist_ok=True)
    there = {name for name, _ in store.objects(BUCKET)}
    for number in range(120):
        name = f"{number:03}"
        if (number + turn) % 4 == 0 and name in there:
            store.delete(BUCKET, name)
        elif not turn or (number + turn) % 4 == 1:
            put(store, name, b"%d of %d" % (number, turn))
    if snapshot:
        store.snapshots.create(BUCKET, snapshot)
    for drive in store.drives:
        drive.reap(everything=True)
    print("done", flush=True)
    sys.stdin.readline()
"""


class Expected:
    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}

    def after(self, turn: int) -> dict[str, bytes]:
        for number, name in enumerate(NAMES):
            if (number + turn) % 4 == 0 and name in self.objects:
                del self.objects[name]
            elif not turn or (number + turn) % 4 == 1:
                self.objects[name] = b"%d of %d" % (number, turn)
        return self.objects


def work(root: Path, turn: int, end: str, snapshot: str = "") -> subprocess.Popen[str]:
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(root), str(turn), snapshot],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert writer.stdout is not None and writer.stdout.readline() == "done\n"
    if end == "kill":
        writer.kill()
    if end != "stays":
        writer.communicate("\n" if end == "close" else None, timeout=180)
    return writer


@pytest.fixture
def ends() -> Iterator[list[subprocess.Popen[str]]]:
    writers: list[subprocess.Popen[str]] = []
    yield writers
    for writer in writers:
        writer.kill()
        writer.communicate()


@pytest.mark.slow
@pytest.mark.parametrize("end", ["kill", "close"])
def test_a_reader_sees_what_each_of_its_writers_did(
    tmp_path: Path, ends: list[subprocess.Popen[str]], end: str
) -> None:
    root, expected = tmp_path / "drive", Expected()
    work(root, 0, end, "first")
    first = dict(expected.after(0))
    with Store.open([root], mode="r") as reader:
        assert contents(reader) == first == contents(reader, f"{BUCKET}@first")
        for turn in range(1, 6):
            last = turn == 5
            ends.append(work(root, turn, "stays" if last else end, "" if turn % 2 else f"s{turn}"))
            wanted = expected.after(turn)
            answers = [(pb.OK, wanted[name]) if name in wanted else (pb.NOT_FOUND, b"") for name in NAMES]
            # Of each, at once: what is there, or, for no longer than a reader may lag, what was there.
            assert all(status != pb.CORRUPT for status, _ in batch(reader, NAMES))
            eventually(lambda answers=answers: batch(reader, NAMES) == answers)
            assert contents(reader) == wanted
            assert contents(reader, f"{BUCKET}@first") == first
            assert names(reader) == sorted(wanted)


def test_a_reader_that_cannot_follow_any_more_begins_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a RocksDB secondary that misses a file: it stays where it was, and says nothing."""

    class Stuck:
        def __init__(self, handle: object) -> None:
            self._handle = handle

        def try_catch_up_with_primary(self) -> None:
            pass

        def __getattr__(self, name: str) -> object:
            return getattr(self._handle, name)

    with store_at(tmp_path / "drive") as writer:
        put(writer, "a", b"old")
        with Store.open([tmp_path / "drive"], mode="r") as reader:
            assert read(reader, "a") == b"old"
            catalog: Catalog = drive_of(reader).catalog
            monkeypatch.setattr(catalog, "_db", Stuck(catalog._db))
            put(writer, "a", b"new")
            put(writer, "b", b"b")
            assert names(reader) == ["a", "b"] and contents(reader) == {"a": b"new", "b": b"b"}
