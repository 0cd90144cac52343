"""A drive that breaks under an open store: counted, given up, and back when it is well."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ais_loader.errors import DriveFailed, ObjectNotFound
from ais_loader.wire.generated import ais_batch_pb2 as pb
from storage_node.store.files.object_files import drive_error
from storage_node.store.store import Store
from tests.faults.eio_kit import EioShim
from tests.store.batch_kit import batch
from tests.store.drives_kit import store_with
from tests.store.store_kit import BUCKET, assert_sound, contents, drive_of, file_of, flip_a_byte, put, read, store_at

WANTED = {f"{number:03}": b"%d" % number * (1 + number * 100) for number in range(60)}

WORKER = """
import json, sys
from ais_loader.errors import LoaderError
from storage_node.store.store import Store
from tests.store.batch_kit import batch
from tests.store.store_kit import BUCKET, put, read

store = Store.open(sys.argv[2:])
names = json.loads(sys.argv[1])

def kind_of(call, *arguments):
    try:
        call(*arguments)
    except LoaderError as error:
        return error.kind
    return "ok"

def one(order, argument=""):
    if order == "read":
        return [kind_of(read, store, name) for name in names]
    if order == "put":
        return [kind_of(put, store, name, b"new " + name.encode()) for name in names]
    if order == "batch":
        return [int(status) for status, _ in batch(store, names)]
    if order == "disable":
        return store.pool.disable_drive(argument, "it fails")
    if order == "enable":
        return store.pool.enable_drive(argument)
    if order == "forget":
        return store.pool.forget_drive(argument)
    return [[s.uuid, s.status, s.io_errors, s.last_io_error, s.checksum_errors] for s in store.pool.states()]

for line in sys.stdin:
    order = json.loads(line)
    try:
        answer = one(*order)
    except LoaderError as error:
        answer = f"{error.kind}: {error}"
    print(json.dumps(answer), flush=True)
store.close()
"""


class Worker:
    """A process with a store of two drives, of which the second can break."""

    def __init__(self, roots: list[Path], shim: EioShim) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", WORKER, json.dumps(list(WANTED)), *map(str, roots)],
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **shim.environment},
        )

    def ask(self, *order: str) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the worker has ended"
        return json.loads(line)

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate(timeout=180)


@pytest.mark.slow
@pytest.mark.parametrize("what", ["read", "write", "read write"])
def test_a_drive_that_breaks_is_counted_given_up_and_back_when_it_is_well(tmp_path: Path, what: str) -> None:
    roots = [tmp_path / "a", tmp_path / "b"]
    with store_with(WANTED, *roots) as store:
        sound, broken = store.record.current.drives
        here = {name: drive_of(store, name) is store.drives[0] for name in WANTED}
    shim = EioShim(tmp_path, roots[1])
    with Worker(roots, shim) as worker:
        before = {row[0]: row for row in worker.ask("states")}
        assert before[broken][1:] == ["active", 0, "", 0]
        # A PUT looks up what it replaces, and may fail for that where only reads fail: bring the catalog into memory.
        assert worker.ask("read") == ["ok"] * len(WANTED)
        shim.break_drive(what)
        reads, puts = worker.ask("read"), worker.ask("put")
        by_batch = worker.ask("batch")
        counted = {row[0]: row for row in worker.ask("states")}
        assert counted[sound][2:] == [0, "", 0]
        for at, name in enumerate(WANTED):
            if here[name]:
                assert (reads[at], puts[at], by_batch[at]) == ("ok", "ok", pb.OK)
            else:
                assert reads[at] == ("drive-failed" if "read" in what else "ok")
                assert puts[at] == ("drive-failed" if "write" in what else "ok")
                assert by_batch[at] == (pb.UNAVAILABLE if "read" in what else pb.OK)
        assert counted[broken][2] > 0 and "nput/output error" in counted[broken][3]
        assert worker.ask("disable", broken) is None
        shim.break_drive("read write")
        assert worker.ask("read") == ["ok" if here[name] else "drive-failed" for name in WANTED]
        assert [row[1] for row in worker.ask("states")] == ["active", "disabled"]
        shim.mend_drive()
        assert worker.ask("enable", broken) is None
        assert worker.ask("read") == ["ok"] * len(WANTED)
        assert [row[1:] for row in worker.ask("states")] == [["active", 0, "", 0]] * 2
    with Store.open(roots) as store:
        for at, name in enumerate(WANTED):
            assert read(store, name) == (b"new " + name.encode() if puts[at] == "ok" else WANTED[name])
    assert_sound(*roots)


@pytest.mark.slow
def test_a_broken_drive_is_forgotten_and_what_it_held_is_not_there(tmp_path: Path) -> None:
    roots = [tmp_path / "a", tmp_path / "b"]
    with store_with(WANTED, *roots) as store:
        broken = store.record.current.drives[1]
        here = {name: drive_of(store, name) is store.drives[0] for name in WANTED}
    shim = EioShim(tmp_path, roots[1])
    with Worker(roots, shim) as worker:
        assert worker.ask("read") == ["ok"] * len(WANTED)
        shim.break_drive()
        assert str(worker.ask("forget", broken)).startswith("invalid-request")
        worker.ask("disable", broken)
        assert worker.ask("forget", broken) is None
        assert worker.ask("read") == ["ok" if here[name] else "object-not-found" for name in WANTED]
        assert worker.ask("put") == ["ok"] * len(WANTED)
    with Store.open(roots) as store:
        assert contents(store) == {name: b"new " + name.encode() for name in WANTED}
        assert list(store.left_out) == [roots[1]] and "forgotten" in store.left_out[roots[1]]
    assert_sound(roots[0])


@pytest.mark.slow
def test_a_drive_that_is_broken_when_the_store_is_opened_is_a_missing_one_and_can_be_enabled_later(
    tmp_path: Path,
) -> None:
    roots = [tmp_path / "a", tmp_path / "b"]
    with store_with(WANTED, *roots) as store:
        broken = store.record.current.drives[1]
        here = {name: drive_of(store, name) is store.drives[0] for name in WANTED}
    shim = EioShim(tmp_path, roots[1])
    shim.break_drive()
    with Worker(roots, shim) as worker:
        assert worker.ask("read") == ["ok" if here[name] else "drive-failed" for name in WANTED]
        assert [row[1] for row in worker.ask("states")] == ["active", "missing"]
        assert str(worker.ask("enable", broken)).startswith("drive-failed")
        shim.mend_drive()
        assert worker.ask("enable", broken) is None
        assert worker.ask("read") == ["ok"] * len(WANTED)


def test_bytes_that_are_wrong_are_counted_apart(tmp_path: Path) -> None:
    with store_at(tmp_path / "drive") as store:
        put(store, "a", b"some bytes")
        flip_a_byte(file_of(store, "a"))
        drive = drive_of(store)
        assert batch(store, ["a"]) == [(pb.CORRUPT, b"")]
        assert (drive.faults.io_errors, drive.faults.checksum_errors) == (0, 1)
        with pytest.raises(Exception, match="do not match the stored checksum"):
            read(store, "a")
        assert (drive.faults.io_errors, drive.faults.checksum_errors) == (0, 2)
        with pytest.raises(ObjectNotFound):
            read(store, "none")
        os.unlink(file_of(store, "a"))
        assert batch(store, ["a"]) == [(pb.CORRUPT, b"")]
        assert drive.faults.io_errors == 0


def test_a_drive_is_given_up_while_batches_and_readers_have_it_in_hand(tmp_path: Path) -> None:
    """They end with what was stored, or with the reason; descriptors that they use are nobody else's meanwhile."""
    from storage_node.store.read.batch import StoreBatch
    from storage_node.store.read.object_reader import open_object

    roots = [tmp_path / "a", tmp_path / "b"]
    with store_with(WANTED, *roots) as store:
        there = [name for name in WANTED if drive_of(store, name) is store.drives[1]]
        running = StoreBatch(store, pb.BatchRequest(name=list(WANTED), bucket=[BUCKET]))
        reader = open_object(store, BUCKET, there[-1])
        uuid = store.record.current.drives[1]
        store.pool.disable_drive(uuid, "pulled out")
        others = [os.open(tmp_path, os.O_RDONLY) for _ in range(64)]  # take every number that was given back
        frames = [running.read(span) for span in running.spans()]
        assert b"".join(bytes(frame.payload) for frame in frames) == b"".join(WANTED.values())
        assert b"".join(reader) == WANTED[there[-1]]
        with pytest.raises(DriveFailed, match="pulled out"):
            read(store, there[0])
        assert dict(batch(store, there)) == {pb.UNAVAILABLE: b""}
        store.pool.enable_drive(uuid)
        assert contents(store) == WANTED
        for fd in others:
            os.close(fd)
    assert_sound(*roots)


def test_a_folder_that_this_user_may_not_look_into_is_not_told_as_gone(tmp_path: Path) -> None:
    told = drive_error(PermissionError(errno.EACCES, "Permission denied"), tmp_path / "closed", "reading its identity")
    assert str(told) == f"{tmp_path / 'closed'}: reading its identity: Permission denied (errno 13)"
    gone = drive_error(FileNotFoundError(errno.ENOENT, "No such file"), tmp_path / "closed", "reading its identity")
    assert "the folder is gone" in str(gone)
