"""What the children of a crash server do."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from ais_loader.errors import LoaderError
from ais_loader.values.entry import Entry
from ais_loader.values.entry_table import EntryTable
from ais_loader.wire.bucket_settings import BucketSettings
from storage_node.store import failpoints
from storage_node.store.drive import clean_shutdown as session
from storage_node.store.format import BLOCK_BYTES
from storage_node.store.fsck import fsck as doctor
from storage_node.store.store import Store
from tests.faults import power_kit
from tests.faults.crash_kit import (
    Expected,
    Journal,
    State,
    assert_counted,
    assert_tidy,
    content,
    holdings,
    state_of,
)
from tests.store.store_kit import names, read

BUCKETS = ("main", "other")
SIZES = (64, 300, 5_000, BLOCK_BYTES, BLOCK_BYTES + 70, 3 * BLOCK_BYTES)
MANY = tuple(f"many/{number}" for number in range(20))  # so many that both drives have some
QUOTA_BYTES = 1 << 40
Durability = Literal["process", "power"]


def _stage(store: Store, name: str, number: int, size: int, *, grouped: bool = False):  # type: ignore[no-untyped-def]
    bucket, _, rest = name.partition("/")
    data = content(name, number, size)
    return store.stage(bucket, rest, [data], {"number": f"{number}"}, grouped=grouped)


class Worker:
    """One thread's operations on names of its own, each announced and acknowledged."""

    def __init__(self, store: Store, journal: Journal, worker: int, sure: dict[str, State], seed: int) -> None:
        self.store, self.journal, self.worker = store, journal, worker
        self.draw = random.Random(seed)
        self.states = {name: state for name, state in sure.items() if self._is_mine(name)}
        self.sure_now = {name for name, state in sure.items() if state is not None}
        self.number = max((state or 0 for state in sure.values()), default=0)

    def _is_mine(self, name: str) -> bool:
        return name.startswith(f"main/{self.worker}-")

    def _next(self) -> int:
        self.number += 1
        return self.number

    def put(self, name: str, size: int) -> None:
        number = self._next()
        self.journal.begin(self.worker, {name: number}, [[name]])
        _stage(self.store, name, number, size).commit()
        self._acknowledge({name: number})

    def put_many(self, wanted: Sequence[str], sizes: Sequence[int]) -> None:
        changes: dict[str, State] = {name: self._next() for name in wanted}
        drives: dict[object, list[str]] = {}
        for name in changes:
            bucket, _, rest = name.partition("/")
            index = self.store.drive_set.placement.owner(self.store.bucket(bucket).uuid_bytes, rest)
            drives.setdefault(index, []).append(name)
        self.journal.begin(self.worker, changes, list(drives.values()))
        uploads = [
            _stage(self.store, name, number or 0, size, grouped=True)
            for (name, number), size in zip(changes.items(), sizes, strict=True)
        ]
        for result in self.store.commit_many(uploads):
            if isinstance(result, Exception):
                raise result
        self._acknowledge(changes)

    def delete(self, name: str, *, keep_tombstone: bool = False) -> None:
        self.journal.begin(self.worker, {name: None}, [[name]])
        bucket, _, rest = name.partition("/")
        self.store.delete(bucket, rest, keep_tombstone=keep_tombstone)
        self._acknowledge({name: None})

    def create_bucket(self, bucket: str) -> None:
        self.journal.begin(self.worker, {f"{bucket}/": 1}, [[f"{bucket}/"]])
        self.store.create_bucket(bucket, BucketSettings(quota_bytes=0 if bucket == "other" else QUOTA_BYTES))
        self._acknowledge({f"{bucket}/": 1})

    def delete_bucket(self, bucket: str, holding: Sequence[str]) -> None:
        changes: dict[str, State] = {f"{bucket}/": None, **dict.fromkeys(holding)}
        self.journal.begin(self.worker, changes, [list(changes)])
        self.store.delete_bucket(bucket, force=True)
        self._acknowledge(changes)

    def deny(self, name: str) -> None:
        """Deny an object, and allow it again, so that it can be put once more."""
        bucket, _, rest = name.partition("/")
        self.journal.begin(self.worker, {name: None}, [[name]])
        assert self.store.denied.deny(bucket, [rest], "why") == [None]
        assert self.store.denied.allow(bucket, [rest]) == [None]
        self._acknowledge({name: None})

    def _acknowledge(self, changes: dict[str, State]) -> None:
        self.states.update(changes)
        self.journal.done(self.worker)

    def anything(self) -> None:
        """One random operation on the names `main/<worker>-...`."""
        name = f"main/{self.worker}-{self.draw.randrange(12)}"
        kind = self.draw.random()
        if kind < 0.06:
            compact(self.store)
        elif kind < 0.1:
            self.deny(name)
        elif kind < 0.45:
            self.put(name, self.draw.choice(SIZES))
        elif kind < 0.7 and self.states.get(name) is not None:
            self.delete(name, keep_tombstone=self.draw.random() < 0.5)
        else:
            wanted = sorted({f"main/{self.worker}-{self.draw.randrange(12)}" for _ in range(6)})
            self.put_many(wanted, [self.draw.choice(SIZES) for _ in wanted])


def allow_all(store: Store) -> None:
    """End the denials that a worker left when it was killed between denying and allowing."""
    for bucket in store.buckets():
        store.denied.allow(bucket, [one.name for one in store.denied.names(bucket)])


def make_sparse(store: Store, worker: Worker) -> None:
    """Leave a segment that is mostly dead on each drive."""
    names = [f"main/sparse/{number}" for number in range(100)]
    for wanted in (names, [name for at, name in enumerate(names) if at % 5]):
        worker.put_many(wanted, [500] * len(wanted))
    for drive in store.drives:
        assert drive is not None
        drive.reap(everything=True)
        assert len(drive.sparse)


def compact(store: Store) -> None:
    """Move what is alive out of segments that are mostly dead."""
    for drive in store.drives:
        assert drive is not None
        drive.reap(everything=True)
        drive.compact_segments()
        drive.reap(everything=True)


def create(roots: list[str], durability: Durability, journal: str, point: str) -> None:
    """A store with its main bucket; announced, so that a crash within is judged too."""
    worker_journal = Journal(Path(journal))
    failpoints.arm(point)
    with Store.open(roots, durability=durability) as store:
        if "main" not in store.buckets():
            Worker(store, worker_journal, 0, {}, 0).create_bucket("main")


def work_until_killed(
    roots: list[str], durability: Durability, journal: str, sure: dict[str, State], seed: int, threads: int
) -> None:
    """Random operations in several threads, for ever."""
    store = Store.open(roots, durability=durability)
    for drive in store.drives:
        assert drive is not None
        drive._garbage._grace_s = 0.01  # so that removing dead files is among what is interrupted
    allow_all(store)
    shared = Journal(Path(journal))
    workers = [Worker(store, shared, number, sure, seed * 100 + number) for number in range(threads)]

    def run(worker: Worker) -> None:
        while True:
            worker.anything()

    running = [threading.Thread(target=run, args=(worker,)) for worker in workers]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()


def operate(
    roots: list[str], durability: Durability, journal: str, sure: dict[str, State], operation: str, point: str
) -> None:
    """One operation that a fail point ends; or that is simply done, when the point is not on its way."""
    with Store.open(roots, durability=durability, compact_bytes_per_s=0) as store:
        for drive in store.drives:
            assert drive is not None
            drive._garbage._grace_s = 0.0
        worker = Worker(store, Journal(Path(journal)), 0, sure, 0)
        if operation == "compact":
            make_sparse(store, worker)
        failpoints.arm(point)
        if operation == "put":
            worker.put("main/new", 3 * BLOCK_BYTES)
        elif operation == "overwrite":
            worker.put("main/old", 700)
        elif operation == "delete":
            worker.delete("main/old")
        elif operation == "bury":
            worker.delete("main/old", keep_tombstone=True)
        elif operation == "deny":
            worker.deny("main/old")
        elif operation == "put_many":
            worker.put_many([f"main/{name}" for name in ("old", "large", *MANY)], [500] * (2 + len(MANY)))
        elif operation == "compact":
            compact(store)
        elif operation == "set_quota":
            store.set_bucket("other", BucketSettings(quota_objects=1000))
        elif operation == "remove_quota":
            store.set_bucket("main", BucketSettings(quota_bytes=0))
        elif operation == "create_bucket":
            worker.create_bucket("created")
        elif operation == "delete_bucket":
            worker.delete_bucket("other", [name for name in sure if name.startswith("other/") and name != "other/"])
        else:
            raise ValueError(operation)


def prepare(roots: list[str], journal: str) -> None:
    """A store with something to overwrite and to delete in two buckets."""
    restore(roots, journal, {})


def restore(roots: list[str], journal: str, sure: dict[str, State]) -> None:
    """Bring back what `operate` needs, and take away what it makes."""
    with Store.open(roots, compact_bytes_per_s=0) as store:
        worker = Worker(store, Journal(Path(journal)), 0, sure, 0)
        allow_all(store)
        for bucket in BUCKETS:
            if f"{bucket}/" not in worker.sure_now:
                worker.create_bucket(bucket)
            for name, size in (("old", 400), ("large", 2 * BLOCK_BYTES + 5), ("kept", 64)):
                if f"{bucket}/{name}" not in worker.sure_now:
                    worker.put(f"{bucket}/{name}", size)
        store.set_bucket("main", BucketSettings(quota_bytes=QUOTA_BYTES))
        store.set_bucket("other", BucketSettings(quota_objects=0))
        worker.put_many([f"other/{name}" for name in MANY], [90] * len(MANY))
        if "created/" in worker.sure_now:
            worker.delete_bucket("created", [])
        if "main/new" in worker.sure_now:
            worker.delete("main/new")


def judge(roots: list[str], journals: list[str], out: str, machine_went_down: bool = False) -> None:
    """Open what is left, compare it with what was acknowledged, and write down the state that counts from now on."""
    if machine_went_down:
        session.boot_id = lambda: b"another start of the machine"
    expected = Expected()
    for journal in journals:
        expected.learn(Path(journal))
    with Store.open(roots, compact_bytes_per_s=0) as store:
        found = holdings(store, [*BUCKETS, "created"])
        assert not store.record.current.purging, "a deleted bucket was not finished"
        assert_counted(store)
        assert not [name for root in roots for name in os.listdir(Path(root, "staging"))], "leftover staging"
    expected.judge(found)
    assert_tidy([Path(root) for root in roots])
    Path(out).write_text(json.dumps({"sure": expected.sure, "acknowledged": expected.acknowledged}))


def rebuild(roots: list[str], point: str) -> None:
    failpoints.arm(point)
    doctor.rebuild(roots, all_drives=True)


def work_until_the_power_fails(
    top: str, shadow: str, roots: list[str], durability: Durability, journal: str, sure: dict[str, State], seed: int
) -> None:
    """As `work_until_killed`, with every sync noted. The store is made within, when it is not there yet."""
    power_kit.begin(shadow, top)
    with Store.open(roots, durability=durability) as store:
        made = "main" in store.buckets()
        if not made:
            Worker(store, Journal(Path(journal)), 9, sure, 0).create_bucket("main")
    work_until_killed(roots, durability, journal, {**sure, "main/": 1}, seed, threads=2)


def make_sparse_store(roots: list[str], journal: str) -> None:
    """A new store with segments that are mostly dead."""
    with Store.open(roots, compact_bytes_per_s=0) as store:
        worker = Worker(store, Journal(Path(journal)), 0, {}, 0)
        worker.create_bucket("main")
        make_sparse(store, worker)


def compact_until_the_power_fails(top: str, shadow: str, roots: list[str], point: str) -> None:
    """Compact with every sync noted, and die at a fail point, or at the end. Nothing is promised to survive the machine
    but what was on the disk before."""
    power_kit.begin(shadow, top)
    with Store.open(roots, durability="process", compact_bytes_per_s=0) as store:
        failpoints.arm(point)
        compact(store)
        os.kill(os.getpid(), signal.SIGKILL)


def survivors(roots: list[str], out: str) -> None:
    """What a store holds after a power cut, whether or not that is what was acknowledged."""
    session.boot_id = lambda: b"another start of the machine"
    found: dict[str, State] = {}
    with contextlib.suppress(LoaderError, AssertionError), Store.open(roots) as store:
        for name in names(store, bucket="main"):
            with contextlib.suppress(LoaderError, AssertionError):
                found[f"main/{name}"] = state_of(f"main/{name}", read(store, name, "main"))
    Path(out).write_text(json.dumps(found))


def save_tables(path: str, journal: str, top: str, shadow: str) -> None:
    """Save one table after the other under the same name, each acknowledged; with a `shadow`, every sync is noted."""
    if shadow:
        power_kit.begin(shadow, top)
    notes = Journal(Path(journal))
    for number in itertools.count(1):
        notes.begin(0, {"table": number}, [["table"]])
        numbered_table(number).save(path)
        notes.done(0)


def numbered_table(number: int) -> EntryTable:
    """The table that `save_tables` saves as this one."""
    table = EntryTable.of([Entry("b", f"{number}/{at:04}") for at in range(1000 + number)])
    assert table is not None
    return table


def run_code(code: str, arguments: list[str]) -> None:
    """A script of a test's own, with its arguments."""
    sys.argv = ["", *arguments]
    exec(code, {"__name__": "__main__"})
