"""Drives come and go between random changes of objects: whatever the history, the store holds what a dict holds."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ais_loader.errors import DriveFailed, InvalidRequest, ObjectNotFound
from ais_loader.testing import throwaway_folder
from ais_loader.wire.generated import ais_batch_pb2 as pb
from storage_node.store import write
from storage_node.store.drive import identity as identities
from storage_node.store.drive.identity import DriveIdentity
from storage_node.store.format import BLOCK_BYTES, Version
from storage_node.store.pool import rebalance as moving
from storage_node.store.store import Store
from storage_node.store.store_record import BucketRecord
from tests.store.batch_kit import batch
from tests.store.store_kit import BUCKET, assert_sound, contents, names, put, read

NAMES = st.integers(0, 40).map(lambda number: f"{'ab'[number % 2]}/{number}")
SIZES = st.sampled_from([0, 1, 50, BLOCK_BYTES + 1])


class DrivesMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self._held = contextlib.ExitStack()
        self._folder = self._held.enter_context(throwaway_folder())
        self._made = 2
        self.roots = [self._folder / "drive-0", self._folder / "drive-1"]
        self.model: dict[str, bytes] = {}
        self.metadata: dict[str, dict[str, str]] = {}
        self.newest: dict[str, Version] = {}
        self.away: dict[str, Path] = {}
        self._bytes = random.Random(0)
        # Placement follows from uuids: the same history must find the same ones, or it cannot be repeated.
        self._patch = pytest.MonkeyPatch()
        uuids = random.Random(1)
        self._patch.setattr(
            identities, "create", lambda store_uuid: DriveIdentity(uuids.randbytes(16).hex(), store_uuid)
        )

    @initialize()
    def open(self) -> None:
        self.store = Store.open(self.roots)
        self.store.follow_buckets({BUCKET: BucketRecord("0" * 31 + "1")})
        for number in range(0, 40, 2):
            self.put(f"a/{number}", 5, False)

    @contextlib.contextmanager
    def cut_off(self, cut: bool) -> Iterator[None]:
        """As if the process died each time between what is committed on the owner and what goes elsewhere for it."""
        with pytest.MonkeyPatch.context() as patch:
            if cut:
                patch.setattr(write, "_drop", lambda *_, **__: None)
                patch.setattr(moving._Step, "_drop", lambda step, *_: step._fail("cut off"))
            yield

    def _note(self, name: str, data: bytes, metadata: dict[str, str], version: Version) -> None:
        assert name not in self.newest or version > self.newest[name]
        self.model[name], self.metadata[name], self.newest[name] = data, metadata, version

    def whole(self) -> bool:
        return not self.away

    # -- objects

    @precondition(whole)
    @rule(name=NAMES, size=SIZES, cut=st.booleans())
    def put(self, name: str, size: int, cut: bool) -> None:
        data = self._bytes.randbytes(size)
        metadata = {"put": name}
        with self.cut_off(cut):
            self._note(name, data, metadata, put(self.store, name, data, metadata=metadata).version)

    @precondition(whole)
    @rule(chosen=st.lists(st.tuples(NAMES, SIZES), max_size=12), cut=st.booleans())
    def put_many(self, chosen: list[tuple[str, int]], cut: bool) -> None:
        wanted = {name: self._bytes.randbytes(size) for name, size in chosen}
        uploads = [self.store.stage(BUCKET, name, [data], {}) for name, data in wanted.items()]
        with self.cut_off(cut):
            results = self.store.commit_many(uploads)
        for (name, data), record in zip(wanted.items(), results, strict=True):
            assert not isinstance(record, Exception), record
            self._note(name, data, {}, record.version)

    @precondition(whole)
    @rule(heard=st.lists(st.tuples(NAMES, st.integers(-2, 3), st.booleans()), min_size=1, max_size=8))
    def hear_of_copies(self, heard: list[tuple[str, int, bool]]) -> None:
        """Writes of other nodes of a cluster, late or not."""
        for name, ahead, delete in heard:
            self._hear(name, ahead, delete)

    def _hear(self, name: str, ahead: int, delete: bool) -> None:
        before = self.newest.get(name, Version(1, 1 << 20, 3))
        version = Version(before.epoch, max(0, before.counter + ahead), 4)
        if delete:
            self.store.delete(BUCKET, name, version, keep_tombstone=True)
        else:
            with self.store.begin_put(BUCKET, name, {}, version) as upload:
                upload.write(b"copy")
                upload.commit()
        if name not in self.newest or version > self.newest[name]:
            self.newest[name] = version
            self.model.pop(name, None)
            if not delete:
                self.model[name], self.metadata[name] = b"copy", {}

    @precondition(whole)
    @rule(name=NAMES, keep_tombstone=st.booleans())
    def delete(self, name: str, keep_tombstone: bool) -> None:
        try:
            left = self.store.delete(BUCKET, name, keep_tombstone=keep_tombstone)
        except ObjectNotFound:
            assert name not in self.model
        else:
            del self.model[name]
            if left is not None:
                assert left.version > self.newest[name]
                self.newest[name] = left.version
            else:
                del self.newest[name]  # without a trace: an older copy may come back, as it may on one drive

    # -- drives

    @precondition(lambda self: len(self.store.record.current.drives) < 5)
    @rule()
    def add(self) -> None:
        root = self._folder / f"drive-{self._made}"
        self._made += 1
        try:
            uuid = self.store.pool.add_drive(root)
        except DriveFailed:
            assert len(self.away) * 2 >= len(self.store.record.current.drives)
            return
        self.roots.append(root)
        assert uuid in self.store.record.current.active and self.store.pool.moving

    @rule(data=st.data())
    def retire(self, data: st.DataObject) -> None:
        uuid = data.draw(st.sampled_from(self.store.record.current.drives))
        try:
            self.store.pool.retire_drive(uuid)
        except InvalidRequest:
            assert self.store.record.current.active == (uuid,)
        except DriveFailed:
            assert self.away

    @precondition(lambda self: self.store.record.current.retiring)
    @rule(data=st.data())
    def reinstate(self, data: st.DataObject) -> None:
        uuid = data.draw(st.sampled_from(self.store.record.current.retiring))
        try:
            self.store.pool.reinstate_drive(uuid)
        except DriveFailed:
            assert self.away

    @rule(objects=st.integers(1, 20), size=st.sampled_from([1, 1000, 1 << 20]), cut=st.booleans())
    def move(self, objects: int, size: int, cut: bool) -> None:
        with self.cut_off(cut and self.store.pool.moving):
            moved = self.store.pool.move_some(objects, size)
        assert moved.objects <= objects and (cut or (moved.left_estimate > 0) == self.store.pool.moving)

    @precondition(lambda self: not self.away)
    @rule()
    def move_everything(self) -> None:
        for _ in range(200):
            if not self.store.pool.move_some(100, 1 << 30).left_estimate:
                break
        assert not self.store.pool.moving and not self.store.record.current.retiring
        counts = [dict(drive.entries()) for drive in self.store.drives if drive is not None]
        assert sum(map(len, counts)) == len({key for keys in counts for key in keys})

    @precondition(whole)
    @rule(data=st.data())
    def disable(self, data: st.DataObject) -> None:
        at = data.draw(st.integers(0, len(self.store.drives) - 1))
        drive = self.store.drives[at]
        assert drive is not None
        self.away[drive.identity.drive_uuid] = drive.root
        self.store.pool.disable_drive(drive.identity.drive_uuid, "for a test")

    @precondition(lambda self: self.away)
    @rule(say_where=st.booleans())
    def enable(self, say_where: bool) -> None:
        uuid, root = self.away.popitem()
        self.store.pool.enable_drive(uuid, root if say_where else None)

    @precondition(whole)
    @rule(backwards=st.booleans())
    def restart(self, backwards: bool) -> None:
        self.store.close()
        self.store = Store.open(self.roots[::-1] if backwards else self.roots)

    # -- what must hold

    @invariant()
    def everything_is_there_and_nothing_else(self) -> None:
        if not hasattr(self, "store"):
            return
        everything = sorted({*self.model, *(f"{'ab'[number % 2]}/{number}" for number in range(40))})
        answers = batch(self.store, everything)
        for name, (status, data) in zip(everything, answers, strict=True):
            if status == pb.UNAVAILABLE:
                assert self.away
            else:
                assert (status, data) == ((pb.OK, self.model[name]) if name in self.model else (pb.NOT_FOUND, b""))
        if not self.away:
            assert names(self.store) == sorted(self.model)
            for name in list(self.model)[:3]:
                assert read(self.store, name) == self.model[name]
                record = self.store.head(BUCKET, name)
                assert (record.version, record.metadata) == (self.newest[name], self.metadata[name])

    def teardown(self) -> None:
        if hasattr(self, "store"):
            for uuid in self.away:
                self.store.pool.enable_drive(uuid)
            self.away = {}
            assert contents(self.store) == self.model
            self.move_everything()
            assert contents(self.store) == self.model
            used = [drive.root for drive in self.store.drives if drive is not None]
            self.store.close()
            assert_sound(*used)
        self._patch.undo()
        self._held.close()


TestDrivesAgainstADict = DrivesMachine.TestCase
TestDrivesAgainstADict.settings = settings(max_examples=8, stateful_step_count=25, deadline=None)


@pytest.mark.slow
class TestDrivesAgainstADictForLonger(DrivesMachine.TestCase):  # type: ignore[misc]
    settings = settings(max_examples=30, stateful_step_count=40, deadline=None)


@pytest.mark.exhaustive
class TestDrivesAgainstADictForLong(DrivesMachine.TestCase):  # type: ignore[misc]
    settings = settings(max_examples=240, stateful_step_count=40, deadline=None)
