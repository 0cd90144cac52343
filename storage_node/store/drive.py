"""One drive: its identity, its catalog, its files, and the protocol that keeps the two in step.

A PUT stages a file, then, holding the object's stripe: notes the intent to publish, renames the file to its final
name, and commits the catalog entry, which is the only moment at which anything changes for readers. The same commit
removes the intent and notes the file of the previous version as garbage. Garbage goes after a grace period; a reader
that meets a vanished file looks the entry up again. After a crash, intents and garbage name every file that may have
to go, so that opening a drive costs what was in flight, not what is stored.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import threading
import time
import uuid
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
import xxhash

from storage_node.store import format as fmt
from storage_node.store.catalog import Catalog, WriteBatch
from storage_node.store.errors import FormatError, StoreError, StoreReadOnly
from storage_node.store.failpoints import failpoint
from storage_node.store.format import Record, Version
from storage_node.store.raw_files import RawFiles, StagedFile, drive_error
from storage_node.store.record import write_atomically
from storage_node.store.record_cache import RecordCache

Durability: TypeAlias = Literal["process", "power"]

IDENTITY_FILE = "drive.json"
GRACE_S = 5.0
"""How long the file of a replaced or deleted object stays for readers that looked it up before."""
MAX_GARBAGE_BYTES = 1 << 30
"""Above this much waiting garbage, the oldest goes before its time."""
READER_STALENESS_S = 1.0
"""A reader beside a writer sees a commit after at most this time; a miss is always looked up anew."""
_COUNTERS_RESERVED = 1 << 16
_STRIPES = 64


@dataclass(frozen=True, slots=True)
class DriveIdentity:
    """Written once, when the drive joins a store."""

    drive_uuid: str
    store_uuid: str


@dataclass(slots=True)
class PendingObject:
    """A staged file and the name under which it is to become visible."""

    bucket_uuid: bytes
    name: str
    file: StagedFile
    metadata: dict[str, str]


def read_identity(root: Path) -> DriveIdentity | None:
    """Who this drive is; None when the folder is missing, empty, or was left by an interrupted creation.

    Raises FormatError when the folder belongs to somebody else.
    """
    path = root / IDENTITY_FILE
    try:
        fields = json.loads(path.read_bytes())
        if fields["format"] != fmt.FORMAT_VERSION:
            raise FormatError(f"{path}: format {fields['format']}; this version reads format {fmt.FORMAT_VERSION}")
        return DriveIdentity(fields["drive_uuid"], fields["store_uuid"])
    except FileNotFoundError:
        pass
    except NotADirectoryError:
        raise FormatError(f"{root} is not a folder") from None
    except (ValueError, KeyError, TypeError) as error:
        raise FormatError(f"{path}: not a drive identity: {error}") from error
    if root.is_dir():
        ours = {"catalog", "objects", "staging", "record.json", "record.json.new", IDENTITY_FILE + ".new", "lost+found"}
        if foreign := {entry.name for entry in root.iterdir()} - ours:
            shown = ", ".join(sorted(foreign)[:3])
            raise FormatError(f"{root} is not a store, and not empty either ({shown}); give an empty or new folder")
    return None


def write_identity(root: Path, store_uuid: str) -> DriveIdentity:
    identity = DriveIdentity(uuid.uuid4().hex, store_uuid)
    fields = {"format": fmt.FORMAT_VERSION, "drive_uuid": identity.drive_uuid, "store_uuid": store_uuid}
    write_atomically(root / IDENTITY_FILE, json.dumps(fields).encode())
    return identity


class Drive:
    """An open drive. Thread-safe. The caller has made sure of its identity."""

    def __init__(
        self,
        root: Path,
        identity: DriveIdentity,
        *,
        writable: bool,
        durability: Durability = "process",
        epoch: int = 1,
        grace_s: float = GRACE_S,
    ) -> None:
        self.root = root
        self.identity = identity
        self.writable = writable
        self._sync = durability == "power"
        self._epoch = epoch
        self._grace_s = grace_s
        try:
            self.files = RawFiles(root, writable=writable)
        except OSError as error:
            raise drive_error(error, root, "opening its folders") from error
        try:
            self.catalog = Catalog(root / "catalog", writable=writable)
        except BaseException:
            self.files.close()
            raise
        self._cache = RecordCache()
        self._stripes = [threading.Lock() for _ in range(_STRIPES)]
        self._counter_lock = threading.Lock()
        self._next_counter = self._reserved = 0  # guarded by _counter_lock
        self._staging_names = itertools.count()
        self._reap_lock = threading.Lock()
        self._garbage: deque[tuple[float, int, bytes, int]] = deque()  # (due, counter, path, bytes); by _reap_lock
        self._garbage_bytes = 0  # guarded by _reap_lock
        self._caught_up_at = time.monotonic()
        if writable:
            try:
                self._recover()
            except BaseException:
                self.close()
                raise

    def _recover(self) -> None:
        """Remove what earlier writers left behind, in time proportional to what they had in flight."""
        try:
            self.files.clear_staging()
            for key, path in list(self.catalog.scan(fmt.INTENT_PREFIX)):
                self.files.unlink(path)
                self._forget(key, int.from_bytes(key[1:], "big"))
            for key, path in list(self.catalog.scan(fmt.GARBAGE_PREFIX)):
                self.files.unlink(path)
                self._forget(key, int.from_bytes(key[1:], "big"))
        except OSError as error:
            raise drive_error(error, self.root, "recovering") from error
        stored = self.catalog.get(fmt.COUNTER_KEY)
        self._next_counter = self._reserved = int.from_bytes(stored or b"\1", "big")

    def _forget(self, key: bytes, counter: int) -> None:
        batch = WriteBatch(raw_mode=True)
        batch.delete(key)
        batch.delete_range(fmt.generation_key(fmt.BLOCKS_PREFIX, counter), fmt.generation_key(fmt.BLOCKS_PREFIX, counter + 1))
        self.catalog.write(batch, sync=False)

    # -- reading

    def lookup(self, bucket_uuid: bytes, names: Sequence[str]) -> list[Record | None]:
        """What the catalog knows of each name; a reader beside a writer looks twice before it says None."""
        keys = [fmt.object_key(bucket_uuid, name) for name in names]
        if not self.writable and time.monotonic() - self._caught_up_at > READER_STALENESS_S:
            self.catch_up()
        records = self._cache.get_many(keys)
        unknown = [at for at, record in enumerate(records) if record is None]
        if unknown:
            unknown = self._look_up(keys, records, unknown)
            if unknown and not self.writable:
                self.catch_up()
                self._look_up(keys, records, unknown)
        return records

    def _look_up(self, keys: Sequence[bytes], records: list[Record | None], unknown: Sequence[int]) -> list[int]:
        """Fill in the `unknown` positions of `records` from the catalog; returns those that are not there."""
        generation = self._cache.generation
        values = self.catalog.get_many([keys[at] for at in unknown])
        found = {
            at: fmt.decode_record(value) for at, value in zip(unknown, values, strict=True) if value is not None
        }
        for at, record in found.items():
            records[at] = record
        self._cache.add(((keys[at], record) for at, record in found.items()), generation)
        return [at for at in unknown if at not in found]

    def catch_up(self) -> None:
        """See what the writer in another process has committed; nothing to do for the writer itself."""
        if not self.writable:
            before = self.catalog.sequence_number()
            self.catalog.catch_up()
            if self.catalog.sequence_number() != before:
                self._cache.forget()
        self._caught_up_at = time.monotonic()

    def scan(self, bucket_uuid: bytes, prefix: str, start_after: str) -> Iterator[tuple[str, Record]]:
        """Names with this prefix after `start_after`, by the bytes of their UTF-8 form."""
        if not self.writable:
            self.catch_up()
        after = fmt.object_key(bucket_uuid, start_after) if start_after else None
        for key, value in self.catalog.scan(fmt.object_key(bucket_uuid, prefix), after):
            yield fmt.name_of_key(key), fmt.decode_record(value)

    def block_checksums(self, record: Record, first: int, stop: int) -> list[int]:
        """Stored checksums of blocks first .. stop-1 of an object larger than one block."""
        counter = fmt.counter_of_path(record.path)
        chunks = range(first // fmt.BLOCKS_PER_CHUNK, (stop - 1) // fmt.BLOCKS_PER_CHUNK + 1)
        values = self.catalog.get_many([fmt.blocks_key(counter, chunk) for chunk in chunks])
        found = np.frombuffer(b"".join(value or b"" for value in values), "<u4")
        skipped = chunks.start * fmt.BLOCKS_PER_CHUNK
        checksums: list[int] = found[first - skipped : stop - skipped].tolist()
        if len(checksums) != stop - first:
            raise FormatError(f"{self.root}: block checksums of {record.path!r} are missing from the catalog")
        return checksums

    # -- writing

    def stage(self) -> StagedFile:
        """A new invisible file for an object's bytes."""
        self._require_writable()
        try:
            return self.files.stage(f"{next(self._staging_names):x}", self._make_room)
        except OSError as error:
            if self._make_room():
                return self.stage()
            raise drive_error(error, self.root, "staging an object") from error

    def _require_writable(self) -> None:
        if not self.writable:
            raise StoreReadOnly(f'{self.root} is open for reading only; connect with mode="a" to write')

    def commit(self, objects: Sequence[PendingObject]) -> list[Record]:
        """Make staged files visible, all in one catalog commit; returns their records in order.

        A name that occurs twice ends with the later object. On an error none of them is visible and the staged files
        are gone. Raises DriveFull, DriveFailed, StoreReadOnly.
        """
        try:
            return self._commit(objects)
        except OSError as error:
            raise drive_error(error, self.root, "publishing an object") from error
        finally:
            for pending in objects:
                pending.file.discard()

    def _commit(self, objects: Sequence[PendingObject]) -> list[Record]:
        failpoint("put.staged")
        now = time.time_ns()
        records: list[Record] = []
        for pending in objects:
            records.append(self._identify(pending, now))
            if self._sync:
                os.fsync(pending.file.fd)
        keys = [fmt.object_key(pending.bucket_uuid, pending.name) for pending in objects]
        with self._striped(keys):
            previous: dict[bytes, Record] = {}
            for key, value in zip(keys, self.catalog.get_many(keys), strict=True):
                if value is not None:
                    previous[key] = fmt.decode_record(value)
            for at, (key, pending) in enumerate(zip(keys, objects, strict=True)):
                # Counters are given before the stripe is held; somebody may have overtaken us since.
                while key in previous and previous[key].version >= records[at].version:
                    records[at] = self._identify(pending, now)
                    if self._sync:
                        os.fsync(pending.file.fd)
            intents = WriteBatch(raw_mode=True)
            for record in records:
                intents.put(fmt.generation_key(fmt.INTENT_PREFIX, record.version.counter), record.path)
            self.catalog.write(intents, sync=False)
            failpoint("put.intended")
            try:
                dead = self._publish(keys, objects, records, previous)
            except (OSError, StoreError):
                # Nothing was committed; the intents name these files too, should this process die here.
                for record in records:
                    self.files.unlink(record.path)
                raise
            self._cache.forget(keys)
            failpoint("put.committed")
        self._bury(dead)
        return records

    def _publish(
        self,
        keys: Sequence[bytes],
        objects: Sequence[PendingObject],
        records: Sequence[Record],
        previous: dict[bytes, Record],
    ) -> list[Record]:
        """Rename the files, then commit; returns the records that were replaced."""
        commit = WriteBatch(raw_mode=True)
        dead: list[Record] = []
        for key, pending, record in zip(keys, objects, records, strict=True):
            self.files.publish(pending.file, record.path, sync=self._sync)
            if key in previous:
                dead.append(previous[key])
            previous[key] = record
            commit.put(key, fmt.encode_record(record))
            commit.delete(fmt.generation_key(fmt.INTENT_PREFIX, record.version.counter))
            self._put_blocks(commit, record.version.counter, pending.file.block_checksums())
        failpoint("put.published")
        for record in dead:
            commit.put(fmt.generation_key(fmt.GARBAGE_PREFIX, record.version.counter), record.path)
        self.catalog.write(commit, sync=self._sync)
        return dead

    def _identify(self, pending: PendingObject, now_ns: int) -> Record:
        """Give the staged file a version, and write on it what it is."""
        version = Version(self._epoch, self._take_counter())
        file = pending.file
        identity = fmt.Identity(
            pending.bucket_uuid, pending.name, version, file.size_bytes, file.checksum, now_ns, pending.metadata
        )
        self.files.set_identity(file.fd, fmt.encode_identity(identity))
        path = fmt.file_path(pending.bucket_uuid, pending.name, version.counter)
        raw_metadata = fmt.encode_metadata(pending.metadata)
        return Record(
            version.epoch, version.counter, version.node, file.size_bytes, file.checksum, now_ns, 0, path, raw_metadata
        )

    @staticmethod
    def _put_blocks(batch: WriteBatch, counter: int, checksums: list[int]) -> None:
        for chunk, at in enumerate(range(0, len(checksums), fmt.BLOCKS_PER_CHUNK)):
            part = np.array(checksums[at : at + fmt.BLOCKS_PER_CHUNK], "<u4")
            batch.put(fmt.blocks_key(counter, chunk), part.tobytes())

    def _take_counter(self) -> int:
        with self._counter_lock:
            if self._next_counter >= self._reserved:
                # Always synced, whatever the durability: a counter that came back would name two files alike.
                batch = WriteBatch(raw_mode=True)
                self._reserved = self._next_counter + _COUNTERS_RESERVED
                batch.put(fmt.COUNTER_KEY, self._reserved.to_bytes(8, "big"))
                self.catalog.write(batch, sync=True)
            self._next_counter += 1
            return self._next_counter - 1

    @contextlib.contextmanager
    def _striped(self, keys: Sequence[bytes]) -> Iterator[None]:
        with contextlib.ExitStack() as held:
            for stripe in sorted({xxhash.xxh3_64_intdigest(key) % _STRIPES for key in keys}):
                held.enter_context(self._stripes[stripe])
            yield

    def delete(self, bucket_uuid: bytes, names: Sequence[str]) -> list[bool]:
        """Remove objects, all in one catalog commit; False for a name that did not exist."""
        self._require_writable()
        keys = [fmt.object_key(bucket_uuid, name) for name in names]
        with self._striped(keys):
            dead: dict[bytes, Record] = {}
            batch = WriteBatch(raw_mode=True)
            for key, value in zip(keys, self.catalog.get_many(keys), strict=True):
                if value is not None and key not in dead:
                    dead[key] = fmt.decode_record(value)
                    batch.delete(key)
                    counter = dead[key].version.counter
                    batch.put(fmt.generation_key(fmt.GARBAGE_PREFIX, counter), dead[key].path)
            self.catalog.write(batch, sync=self._sync)
            self._cache.forget(keys)
            failpoint("delete.committed")
        self._bury(list(dead.values()))
        return [key in dead for key in keys]

    # -- garbage

    def _bury(self, dead: Sequence[Record]) -> None:
        """Let the files of replaced objects go, after the grace period."""
        due = time.monotonic() + self._grace_s
        for record in dead:
            self.files.disown(record.path)
            with self._reap_lock:
                self._garbage.append((due, record.version.counter, record.path, record.size_bytes))
                self._garbage_bytes += record.size_bytes
        self.reap()

    def reap(self, *, everything: bool = False) -> int:
        """Remove dead files whose time has come (or all of them); returns how many went."""
        reaped = 0
        now = time.monotonic()
        while True:
            with self._reap_lock:
                if not self._garbage or not (
                    everything or self._garbage[0][0] <= now or self._garbage_bytes > MAX_GARBAGE_BYTES
                ):
                    return reaped
                _, counter, path, size_bytes = self._garbage.popleft()
                self._garbage_bytes -= size_bytes
            try:
                self.files.unlink(path)
            except OSError as error:
                raise drive_error(error, self.root, "removing a dead file") from error
            failpoint("reap.unlinked")
            self._forget(fmt.generation_key(fmt.GARBAGE_PREFIX, counter), counter)
            reaped += 1

    def _make_room(self) -> bool:
        return self.reap(everything=True) > 0

    def close(self) -> None:
        if self.writable:
            with contextlib.suppress(StoreError):  # what cannot be removed now is removed at the next start
                self.reap(everything=True)
        self.catalog.close()
        self.files.close()
