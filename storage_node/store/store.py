"""Several drives as one store: buckets, placement of objects on drives, and everything that is not a batch.

A drive that is missing or broken takes its own objects with it and no others: they are answered with DriveFailed until
it is back. Thread-safe. Belongs to the process that opened it.
"""

from __future__ import annotations

import heapq
import itertools
import os
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from protos.placement import Candidate, ranked
from storage_node.store import record as records
from storage_node.store.drive import (
    READER_STALENESS_S,
    Drive,
    DriveIdentity,
    Durability,
    PendingObject,
    read_identity,
    write_identity,
)
from storage_node.store.errors import (
    BucketExists,
    BucketNotEmpty,
    BucketNotFound,
    DriveFailed,
    FormatError,
    InvalidRequest,
    ObjectNotFound,
    StoreError,
    StoreNotFound,
    StoreReadOnly,
)
from storage_node.store.format import Record
from storage_node.store.names import check_bucket_name, check_object_name, object_name_fault
from storage_node.store.raw_files import drive_error
from storage_node.store.record import BucketRecord, ClusterRecord

MAX_METADATA_BYTES = 4096
_PURGE_AT_ONCE = 1000


@dataclass(frozen=True, slots=True)
class DriveState:
    """One drive as an operator sees it. `problem` is None while it works."""

    uuid: str
    path: str
    problem: str | None
    objects_estimate: int = 0
    free_bytes: int = 0
    size_bytes: int = 0


class Store:
    """Open with `Store.open`; close it, or use it as a context manager."""

    def __init__(
        self, record: ClusterRecord, drives: Sequence[Drive | None], problems: Sequence[str | None], *, writable: bool
    ) -> None:
        self._record = record
        self._drives = list(drives)
        self._problems = list(problems)
        self.writable = writable
        self._candidates = [Candidate(bytes.fromhex(drive_uuid)) for drive_uuid in record.drives]
        self._record_lock = threading.Lock()
        self._record_read_at = time.monotonic()

    # -- opening and closing

    @classmethod
    def open(
        cls, paths: Sequence[str | os.PathLike[str]], *, mode: Literal["a", "r"] = "a", durability: Durability = "process"
    ) -> Store:
        """Open the store on these drives; mode "a" creates it where there is none, mode "r" never locks or writes.

        Raises StoreNotFound, StoreLocked, FormatError, DriveFailed, InvalidRequest.
        """
        if mode not in ("a", "r"):
            raise InvalidRequest(f'mode {mode!r}: "a" opens for reading and writing and creates, "r" only reads')
        if durability not in ("process", "power"):
            raise InvalidRequest(f'durability {durability!r}: "process" or "power"')
        roots = [Path(os.path.abspath(os.fspath(path))) for path in paths]
        if not roots or len(set(roots)) != len(roots):
            raise InvalidRequest(f"need one or more different drive folders, got {[str(root) for root in roots]}")
        identities = {root: read_identity(root) for root in roots}
        known = {root: identity for root, identity in identities.items() if identity is not None}
        if not known or _creation_was_interrupted(roots, known):
            if mode == "r":
                raise StoreNotFound(f'no store at {", ".join(map(str, roots))}; mode="a" creates one')
            known = _create(roots)
        return cls._open_known(roots, known, writable=mode == "a", durability=durability)

    @classmethod
    def _open_known(
        cls, roots: Sequence[Path], known: dict[Path, DriveIdentity], *, writable: bool, durability: Durability
    ) -> Store:
        stores = {identity.store_uuid for identity in known.values()}
        if len(stores) > 1:
            raise FormatError(f"the drives belong to {len(stores)} different stores: {', '.join(map(str, known))}")
        record = _newest_record(known)
        if strangers := [str(root) for root, identity in known.items() if identity.drive_uuid not in record.drives]:
            raise FormatError(f"{', '.join(strangers)}: not among the drives of store {record.store_uuid}")
        for root in roots:
            # A folder that does not exist is a drive that is not mounted; an empty one could be that too.
            if root not in known and len(known) == len(record.drives):
                raise FormatError(f"{root} is new, but store {record.store_uuid} has its {len(known)} drives already")
        by_uuid = {identity.drive_uuid: root for root, identity in known.items()}
        if len(by_uuid) != len(known):
            raise FormatError(f"two of these folders are copies of the same drive: {', '.join(map(str, known))}")
        drives: list[Drive | None] = []
        problems: list[str | None] = []
        try:
            for drive_uuid in record.drives:
                root_or_none = by_uuid.get(drive_uuid)
                if root_or_none is None:
                    drives.append(None)
                    problems.append(f"drive {drive_uuid} is not among the folders given, or not mounted")
                    continue
                root = root_or_none
                drives.append(
                    Drive(root, known[root], writable=writable, durability=durability, epoch=record.epoch)
                )
                problems.append(None)
        except BaseException:
            for drive in drives:
                if drive is not None:
                    drive.close()
            raise
        store = cls(record, drives, problems, writable=writable)
        if writable:
            store._settle()
        return store

    def _settle(self) -> None:
        """Bring every drive to the newest record, and finish deleting what was being deleted."""
        for drive in self._live():
            on_drive = records.read(drive.root)
            if on_drive is None or on_drive.order < self._record.order:
                records.write(drive.root, self._record)
        for bucket_uuid in self._record.purging:
            self._purge(bucket_uuid)

    def close(self) -> None:
        for drive in self._live():
            drive.close()
        self._drives = []

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- what the store is

    @property
    def store_uuid(self) -> str:
        return self._record.store_uuid

    @property
    def record(self) -> ClusterRecord:
        return self._record

    @property
    def drives(self) -> Sequence[Drive | None]:
        """In placement order; None for a drive that is missing."""
        return self._drives

    def _live(self) -> list[Drive]:
        return [drive for drive in self._drives if drive is not None]

    def states(self) -> list[DriveState]:
        found = []
        for drive_uuid, drive, problem in zip(self._record.drives, self._drives, self._problems, strict=True):
            if drive is None:
                found.append(DriveState(drive_uuid, "", problem))
                continue
            try:
                space = os.statvfs(drive.root)
            except OSError as error:
                found.append(DriveState(drive_uuid, str(drive.root), f"{error.strerror}"))
                continue
            found.append(
                DriveState(
                    drive_uuid, str(drive.root), problem, drive.catalog.estimated_keys(),
                    space.f_bavail * space.f_frsize, space.f_blocks * space.f_frsize,
                )
            )  # fmt: skip
        return found

    # -- buckets

    def bucket(self, name: str) -> BucketRecord:
        """Raises BucketNotFound."""
        found = self.find_bucket(name)
        if found is None:
            raise BucketNotFound(f"bucket {name!r} does not exist; create_bucket makes it")
        return found

    def find_bucket(self, name: str) -> BucketRecord | None:
        if not self.writable:
            self._refresh_record(only_if_stale=name in self._record.buckets)
        return self._record.buckets.get(name)

    def buckets(self) -> dict[str, BucketRecord]:
        if not self.writable:
            self._refresh_record(only_if_stale=False)
        return dict(self._record.buckets)

    def _refresh_record(self, *, only_if_stale: bool) -> None:
        now = time.monotonic()
        if only_if_stale and now - self._record_read_at < READER_STALENESS_S:
            return
        newest = _newest_record({drive.root: drive.identity for drive in self._live()})
        with self._record_lock:
            if newest.order > self._record.order:
                self._record = newest
            self._record_read_at = now

    def create_bucket(self, name: str, *, copies: int = 1, exist_ok: bool = False) -> BucketRecord:
        """Raises InvalidName, BucketExists, InvalidRequest, StoreReadOnly."""
        check_bucket_name(name)
        if copies != 1:
            raise InvalidRequest(f"copies={copies}: a store on one host keeps one copy of each object")
        with self._record_lock:
            if name in self._record.buckets:
                if exist_ok:
                    return self._record.buckets[name]
                raise BucketExists(f"bucket {name!r} exists; pass exist_ok=True to use it")
            self._require_writable()
            self._commit_record(self._record.with_bucket(name, copies))
            return self._record.buckets[name]

    def delete_bucket(self, name: str, *, force: bool = False) -> int:
        """Delete an empty bucket, or with `force` its objects too; returns how many objects went."""
        self._require_writable()
        bucket = self.bucket(name)
        if not force and next(iter(self.objects(name, page_size=1)), None) is not None:
            raise BucketNotEmpty(f"bucket {name!r} holds objects; pass force=True to delete them with it")
        with self._record_lock:
            if self._record.buckets.get(name) != bucket:
                raise BucketNotFound(f"bucket {name!r} was deleted meanwhile")
            self._commit_record(self._record.without_bucket(name))
        return self._purge(bucket.uuid)

    def _purge(self, bucket_uuid: str) -> int:
        """Delete the objects of a bucket that is no longer in the record."""
        purged = 0
        for drive in self._live():
            found = drive.scan(bytes.fromhex(bucket_uuid), "", "")
            while names := [name for name, _ in itertools.islice(found, _PURGE_AT_ONCE)]:
                purged += sum(drive.delete(bytes.fromhex(bucket_uuid), names))
        if all(drive is not None for drive in self._drives):
            with self._record_lock:
                self._commit_record(self._record.purged(bucket_uuid))
        return purged

    def _commit_record(self, record: ClusterRecord) -> None:
        """Put the record on every drive; the caller holds _record_lock. Counts once a majority has it."""
        written = 0
        problem: OSError | None = None
        for drive in self._live():
            try:
                records.write(drive.root, record)
                written += 1
            except OSError as error:
                problem = error
        if written * 2 <= len(self._drives):
            root = self._live()[0].root if self._live() else Path()
            raise drive_error(problem, root, "writing the record of buckets") if problem else DriveFailed(
                f"only {written} of {len(self._drives)} drives can be written; a change of buckets needs a majority"
            )
        self._record = record

    def _require_writable(self) -> None:
        if not self.writable:
            raise StoreReadOnly('the store is open for reading only; connect with mode="a" to write')

    # -- objects

    def drive_index(self, bucket_uuid: bytes, name: str) -> int:
        """Position in `drives` of the drive that owns the object."""
        if len(self._candidates) == 1:
            return 0
        return ranked(bucket_uuid, name, self._candidates)[0]

    def drive_at(self, index: int) -> Drive:
        """Raises DriveFailed for a drive that is missing."""
        drive = self._drives[index]
        if drive is None:
            raise DriveFailed(f"{self._problems[index]}")
        return drive

    def _drive_of(self, bucket_uuid: bytes, name: str) -> Drive:
        return self.drive_at(self.drive_index(bucket_uuid, name))

    def begin_put(self, bucket: str, name: str, metadata: dict[str, str] | None = None) -> Upload:
        """Begin to write an object; nothing is visible before `Upload.commit`.

        Raises InvalidName, BucketNotFound, StoreReadOnly, DriveFailed, DriveFull, InvalidRequest.
        """
        self._require_writable()
        check_object_name(name)
        bucket_uuid = self.bucket(bucket).uuid_bytes
        metadata = _checked_metadata(metadata)
        drive = self._drive_of(bucket_uuid, name)
        return Upload(f"{bucket}/{name}", drive, PendingObject(bucket_uuid, name, drive.stage(), metadata))

    def commit_many(self, uploads: Sequence[Upload | StoreError]) -> list[Record | StoreError]:
        """Commit many uploads with few catalog writes; each succeeds or fails on its own drive. Order is kept."""
        results: list[Record | StoreError] = [
            StoreError("not committed") if isinstance(upload, Upload) else upload for upload in uploads
        ]
        by_drive: dict[Drive, list[int]] = {}
        for at, upload in enumerate(uploads):
            if isinstance(upload, Upload):
                by_drive.setdefault(upload.drive, []).append(at)
        for drive, positions in by_drive.items():
            group = [upload.take() for at in positions if isinstance(upload := uploads[at], Upload)]
            try:
                outcome: Iterable[Record | StoreError] = drive.commit(group)
            except StoreError as error:
                outcome = [error] * len(group)
            for at, result in zip(positions, outcome, strict=True):
                results[at] = result
        return results

    def head(self, bucket: str, name: str) -> Record:
        """Raises BucketNotFound, ObjectNotFound, DriveFailed."""
        bucket_uuid = self.bucket(bucket).uuid_bytes
        found = self._drive_of(bucket_uuid, name).lookup(bucket_uuid, [name])[0]
        if found is None:
            raise ObjectNotFound(not_found_message(bucket, name))
        return found

    def delete(self, bucket: str, name: str) -> None:
        """Raises ObjectNotFound when there is no such object, and what `head` raises."""
        self._require_writable()
        bucket_uuid = self.bucket(bucket).uuid_bytes
        if not self._drive_of(bucket_uuid, name).delete(bucket_uuid, [name])[0]:
            raise ObjectNotFound(not_found_message(bucket, name))

    def objects(
        self, bucket: str, prefix: str = "", start_after: str = "", page_size: int | None = None
    ) -> Iterator[tuple[str, Record]]:
        """Objects in name order (by the bytes of their UTF-8 form), `page_size` of them at most.

        Raises DriveFailed when a drive is missing: a list that silently lacks names would be worse.
        """
        bucket_uuid = self.bucket(bucket).uuid_bytes
        scans = [
            self.drive_at(index).scan(bucket_uuid, prefix, start_after) for index in range(len(self._drives))
        ]
        merged = scans[0] if len(scans) == 1 else heapq.merge(*scans, key=_by_name_bytes)
        yield from itertools.islice(merged, page_size)


def _by_name_bytes(pair: tuple[str, Record]) -> bytes:
    return pair[0].encode()


def not_found_message(bucket: str, name: str) -> str:
    fault = object_name_fault(name)
    return f"no object {name!r} in bucket {bucket!r}" + (f" (nor can there be: {fault})" if fault else "")


def _checked_metadata(metadata: dict[str, str] | None) -> dict[str, str]:
    metadata = metadata or {}
    for key, value in metadata.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise InvalidRequest(f"metadata maps str to str, got {key!r}: {value!r}")
    size_bytes = sum(len(key.encode()) + len(value.encode()) for key, value in metadata.items())
    if size_bytes > MAX_METADATA_BYTES:
        raise InvalidRequest(f"metadata has {size_bytes:,} bytes, {MAX_METADATA_BYTES:,} are allowed")
    return metadata


class Upload:
    """One object on its way in. Belongs to one thread; `commit` or `abort` ends it, leaving the block aborts it."""

    def __init__(self, label: str, drive: Drive, pending: PendingObject) -> None:
        self.label = label
        self.drive = drive
        self._pending: PendingObject | None = pending

    @property
    def _open(self) -> PendingObject:
        if self._pending is None:
            raise InvalidRequest("this upload has been committed or aborted")
        return self._pending

    @property
    def size_bytes(self) -> int:
        return self._open.file.size_bytes

    @property
    def checksum(self) -> int:
        """CRC-32C of the bytes written so far."""
        return self._open.file.checksum

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Append. Raises DriveFull or DriveFailed, and the upload is aborted."""
        try:
            self._open.file.write(data)
        except OSError as error:
            self.abort()
            raise drive_error(error, self.drive.root, "writing an object") from error

    def commit(self) -> Record:
        """Make the object visible, whole, replacing one of the same name."""
        return self.drive.commit([self.take()])[0]

    def take(self) -> PendingObject:
        """Hand the staged object over to whoever commits it."""
        pending, self._pending = self._open, None
        return pending

    def abort(self) -> None:
        if self._pending is not None:
            self._pending.file.discard()
            self._pending = None

    def __enter__(self) -> Upload:
        return self

    def __exit__(self, *_: object) -> None:
        self.abort()


def _create(roots: Sequence[Path]) -> dict[Path, DriveIdentity]:
    """Make a new store on empty folders."""
    store_uuid = uuid.uuid4().hex
    identities: dict[Path, DriveIdentity] = {}
    for root in roots:
        try:
            root.mkdir(parents=True, exist_ok=True)
            identities[root] = write_identity(root, store_uuid)
        except OSError as error:
            raise drive_error(error, root, "creating a store") from error
    record = ClusterRecord(store_uuid, tuple(identity.drive_uuid for identity in identities.values()))
    for root in roots:
        records.write(root, record)
    return identities


def _creation_was_interrupted(roots: Sequence[Path], known: dict[Path, DriveIdentity]) -> bool:
    """Records are written after all identities, folders after all records: without either, nothing was ever stored."""
    return not any(
        (root / name).exists() for root in {*roots, *known} for name in (records.FILE_NAME, "catalog", "objects")
    )


def _newest_record(known: dict[Path, DriveIdentity]) -> ClusterRecord:
    found: list[ClusterRecord] = []
    faults: list[str] = []
    for root, identity in known.items():
        try:
            record = records.read(root)
        except (FormatError, OSError) as error:
            faults.append(str(error))
            continue
        if record is None:
            faults.append(f"{root}: no record")
        elif record.store_uuid != identity.store_uuid:
            faults.append(f"{root}: the record is that of another store")
        else:
            found.append(record)
    if not found:
        raise FormatError(f"no drive has a readable record of the store: {'; '.join(faults)}")
    return max(found, key=lambda record: record.order)


