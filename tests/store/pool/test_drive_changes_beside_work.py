"""Drives come and go while threads read, list and write: no object is ever missing, old or mixed up."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ais_loader.errors import BucketNotFound, ObjectNotFound
from ais_loader.wire.generated import ais_batch_pb2 as pb
from storage_node.store.pool.membership import DrivePool
from storage_node.store.store import Store
from tests.store.batch_kit import batch
from tests.store.drives_kit import store_with
from tests.store.store_kit import BUCKET, assert_sound, contents, names, put, read

FIXED = {f"fixed/{number:03}": b"fixed %d" % number * 20 for number in range(120)}
KEYS, LISTS_AT_LEAST = 30, 15


class Work:
    """Threads that go on until told to stop, or until one of them fails."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.stop = threading.Event()
        self.failures: list[BaseException] = []
        self.rounds: dict[str, int] = {}
        self.last: dict[str, bytes | None] = {}
        self._threads: list[threading.Thread] = []

    def start(self, name: str, work: Callable[[random.Random], None]) -> None:
        def run() -> None:
            draw = random.Random(name)
            try:
                while not self.stop.is_set():
                    work(draw)
                    self.rounds[name] = self.rounds.get(name, 0) + 1
            except BaseException as error:  # noqa: BLE001 - raised by `finish`
                self.failures.append(error)
                self.stop.set()

        self.rounds[name] = 0
        self._threads.append(threading.Thread(target=run, name=name))
        self._threads[-1].start()

    def finish(self) -> None:
        self.stop.set()
        for thread in self._threads:
            thread.join(180)
            assert not thread.is_alive()
        if self.failures:
            raise self.failures[0]

    # -- what the threads do

    def read_singly(self, draw: random.Random) -> None:
        name = draw.choice(list(FIXED))
        assert read(self.store, name) == FIXED[name]

    def read_batches(self, draw: random.Random) -> None:
        wanted = draw.sample(list(FIXED), 60)
        assert batch(self.store, wanted) == [(pb.OK, FIXED[name]) for name in wanted]

    def list_all(self, draw: random.Random) -> None:
        assert names(self.store, "fixed/") == list(FIXED)

    def write(self, worker: int, draw: random.Random) -> None:
        """One name of its own, of which this thread knows all there is to know."""
        name = f"own/{worker}/{draw.randrange(KEYS)}"
        before = self.last.get(name)
        if before is None:
            try:
                read(self.store, name)
            except ObjectNotFound:
                pass
            else:
                raise AssertionError(f"{name} was deleted, and is there")
        else:
            assert read(self.store, name) == before
            assert batch(self.store, [name]) == [(pb.OK, before)]
        kind = draw.random()
        if kind < 0.25 and before is not None:
            self.store.delete(BUCKET, name, keep_tombstone=kind < 0.1)
            self.last[name] = None
        elif kind < 0.6:
            data = draw.randbytes(draw.randrange(1, 200))
            put(self.store, name, data)
            self.last[name] = data
        else:
            group = {f"own/{worker}/{draw.randrange(KEYS)}": draw.randbytes(9) for _ in range(5)}
            uploads = [self.store.stage(BUCKET, key, [data], {}) for key, data in group.items()]
            assert not [result for result in self.store.commit_many(uploads) if isinstance(result, Exception)]
            self.last.update(group)

    def make_and_delete_a_bucket(self, draw: random.Random) -> None:
        self.store.create_bucket("other")
        for number in range(10):
            put(self.store, f"{number}", b"x", bucket="other")
        assert self.store.delete_bucket("other", force=True) == 10
        try:
            self.store.bucket("other")
        except BucketNotFound:
            return
        raise AssertionError("the bucket is still there")


@pytest.mark.slow
def test_everything_stays_readable_while_drives_come_and_go(tmp_path: Path) -> None:
    with store_with(FIXED, tmp_path / "0", tmp_path / "1") as store:
        work = Work(store)
        work.start("reader", work.read_singly)
        work.start("batches", work.read_batches)
        work.start("lists", work.list_all)
        for worker in range(2):
            work.start(f"writer {worker}", lambda draw, worker=worker: work.write(worker, draw))  # type: ignore[misc]
        work.start("buckets", work.make_and_delete_a_bucket)
        draw = random.Random(7)
        made, changes, deadline_s = 2, 0, time.monotonic() + 180
        try:
            while (changes < 8 or min(work.rounds.values()) < LISTS_AT_LEAST) and not work.stop.is_set():
                assert time.monotonic() < deadline_s, work.rounds
                active, retiring = store.record.current.active, store.record.current.retiring
                kind = draw.random()
                if len(active) < 2 or (kind < 0.35 and len(active) < 4):
                    store.pool.add_drive(tmp_path / f"{made}")
                    made += 1
                elif retiring and kind < 0.5:
                    store.pool.reinstate_drive(draw.choice(retiring))
                else:
                    store.pool.retire_drive(draw.choice(active))
                changes += 1
                for _ in range(draw.choice((1, 4, 60))):
                    store.pool.move_some(10, 1 << 20)
        finally:
            work.finish()
        while store.pool.moving:
            assert not store.pool.move_some(500, 1 << 30).problem
        assert contents(store) == {**FIXED, **{name: data for name, data in work.last.items() if data is not None}}
        used = [drive.root for drive in store.drives if drive is not None]
    assert_sound(*used)


def test_a_drive_that_comes_refuses_uploads_into_a_bucket_deleted_at_that_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change = DrivePool._change_drives
    with store_with({}, tmp_path / "a") as store:
        begun = [store.stage(BUCKET, f"late/{number}", [b"x"], {}) for number in range(40)]

        def delete_then_change(pool: DrivePool, *arguments: object, **options: object) -> None:
            store.delete_bucket(BUCKET, force=True)
            change(pool, *arguments, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(DrivePool, "_change_drives", delete_then_change)
        store.pool.add_drive(tmp_path / "b")
        assert {type(result) for result in store.commit_many(begun)} == {BucketNotFound}
        added = store.drives[1]
        assert added is not None and next(added.entries(), None) is None
    assert_sound(tmp_path / "a", tmp_path / "b")
