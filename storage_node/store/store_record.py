"""Store record (superblock): the drives that form the store, and its buckets. Small, and stored whole on every drive.

A change is committed once a majority of the drives has it; opening uses the highest (epoch, revision) found. It is one
growing file per drive, of lines in JSON, each with a checksum of its own.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import compress, filterfalse
from operator import is_not
from pathlib import Path
from typing import Any

from ais_loader.errors import StoreFormatError
from ais_loader.wire.bucket_settings import BucketSettings
from ais_loader.wire.remote import Remote
from storage_node.store.checksum import decode_checked, encode_checked
from storage_node.store.failpoints import failpoint
from storage_node.store.files.growing_file import GrowingFile, whole_lines
from storage_node.store.files.segment_format import SEGMENT_FORMAT
from storage_node.store.names import SNAPSHOT_MARK

FILE_NAME = "record.json"
RECORD_VERSION = 12


@dataclass(frozen=True, slots=True)
class BucketRecord:
    """Durable settings of a bucket. A bucket that is deleted and created again gets another uuid."""

    uuid: str
    copies: int = 1
    remote: Remote | None = None
    """Place of a remote bucket's objects. In a cluster this is in the map."""
    quota_bytes: int = 0
    """Maximum size of its objects; 0: none."""
    quota_objects: int = 0
    """Maximum number of its objects; 0: none."""

    @property
    def has_quota(self) -> bool:
        return bool(self.quota_bytes or self.quota_objects)

    @property
    def uuid_bytes(self) -> bytes:
        return bytes.fromhex(self.uuid)

    def with_settings(self, settings: BucketSettings) -> BucketRecord:
        """Return the bucket with these settings. The copies are the cluster's to change, in its map."""
        return replace(
            self,
            remote=self.remote if settings.remote is None else settings.remote or None,
            quota_bytes=self.quota_bytes if settings.quota_bytes is None else settings.quota_bytes,
            quota_objects=self.quota_objects if settings.quota_objects is None else settings.quota_objects,
        )

    @property
    def cut(self) -> int | None:
        """Cut of a snapshot of the bucket, see `drive.ended_versions`; None for the bucket itself."""
        return None


@dataclass(frozen=True, slots=True)
class FrozenBucket(BucketRecord):
    """Bucket at one of its snapshots. Never written to a record."""

    at: int = 0

    @property
    def cut(self) -> int | None:
        return self.at


@dataclass(frozen=True, slots=True)
class SnapshotRecord:
    cut: int
    """Its cut: it sees versions with this number or a lower one that ended after it."""
    created_ns: int
    objects: int = -1
    """-1: not counted yet."""
    size_bytes: int = -1
    of_cluster: bool = False
    """Whether all nodes of a cluster created it, so that it is in the cluster's map."""


@dataclass(frozen=True, slots=True)
class AuditEnd:
    """End of an audit log that is known to be on its drive."""

    oldest: int = 0
    """Number of the oldest file that is kept; 0: none is known."""
    seq: int = 0
    """Number of a line, the last one of its time."""
    sum: str = "0" * 64
    """Digest of that line."""


@dataclass(frozen=True, slots=True)
class StoreRecord:
    """Immutable record of a store. Every change is a new record with a higher revision."""

    store_uuid: str
    drives: tuple[str, ...]
    """Uuids (hex) of all drives; placement does not depend on their order."""
    epoch: int = 1
    revision: int = 1
    buckets: Mapping[str, BucketRecord] = field(default_factory=dict)
    purging: tuple[str, ...] = ()
    """Uuids of deleted buckets that may still have objects."""
    retiring: tuple[str, ...] = ()
    """Drives that no longer own names: their contents move to the others."""
    former: tuple[tuple[str, ...], ...] = ()
    """Sets of drives that owned the names before, oldest first; empty when everything is where it belongs."""
    gone: Mapping[str, str] = field(default_factory=dict)
    """Uuids of drives that have left the store, with the reason: "retired" or "forgotten"."""
    snapshots: Mapping[str, Mapping[str, SnapshotRecord]] = field(default_factory=dict)
    """Snapshots by uuid of the bucket, then by name. Buckets without any are not included."""
    trimming: tuple[str, ...] = ()
    """Uuids of buckets that may have retained versions that no snapshot sees any more."""
    etl: str = ""
    """Transforms and jobs of a standalone store: an EtlRecord (ais_etl.proto) in base64, read and written by the code
    that runs them."""
    revoked_tokens: Mapping[str, int] = field(default_factory=dict)
    """Ids of clients' tokens that are valid no longer, with the times of their expiry in seconds since the epoch. In a
    cluster they are in its map."""
    denied: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Denied contents by uuid of the bucket, with the reason of each; see `ais_loader.wire.denied`. In a cluster, the
    buckets without any are those of which names were denied."""
    audit: Mapping[str, AuditEnd] = field(default_factory=dict)
    """Ends of audit logs, by the uuid of the drive that has the log, or by a folder elsewhere."""

    @property
    def active(self) -> tuple[str, ...]:
        """Drives that own names."""
        return tuple(drive for drive in self.drives if drive not in self.retiring)

    def changed(self, **fields: Any) -> StoreRecord:
        """Replace these fields in the next revision."""
        return replace(self, revision=self.revision + 1, **fields)

    def with_drive(self, drive_uuid: str) -> StoreRecord:
        return self._placed((*self.drives, drive_uuid), self.retiring)

    def with_retiring(self, drive_uuid: str) -> StoreRecord:
        return self._placed(self.drives, (*self.retiring, drive_uuid))

    def with_reinstated(self, drive_uuid: str) -> StoreRecord:
        return self._placed(self.drives, tuple(other for other in self.retiring if other != drive_uuid))

    def _placed(self, drives: tuple[str, ...], retiring: tuple[str, ...]) -> StoreRecord:
        changed = self.changed(drives=drives, retiring=retiring)
        return replace(changed, former=_eras((*self.former, self.active), changed.active))

    def without_drive(self, drive_uuid: str) -> StoreRecord:
        """Remove a drive that is given up, with its contents."""
        left = self._left((drive_uuid,), "forgotten")
        former = (tuple(drive for drive in era if drive != drive_uuid) for era in self.former)
        return replace(left, former=_eras(tuple(era for era in former if era), left.active))

    def with_stray(self, drive_uuid: str) -> StoreRecord:
        """Add a drive with entries of names that it never owned: they are found there until they have moved."""
        changed = self.changed()
        return replace(changed, former=_eras(((drive_uuid,), *self.former), self.active))

    def settled(self) -> StoreRecord:
        """Complete a move: everything is where it belongs, and retiring drives are empty and leave."""
        return replace(self._left(self.retiring, "retired"), former=())

    def _left(self, drives: tuple[str, ...], how: str) -> StoreRecord:
        return self.changed(
            drives=tuple(drive for drive in self.drives if drive not in drives),
            retiring=tuple(drive for drive in self.retiring if drive not in drives),
            gone={**self.gone, **dict.fromkeys(drives, how)},
        )

    @property
    def order(self) -> tuple[int, int]:
        return self.epoch, self.revision

    @property
    def is_unchanged(self) -> bool:
        """Whether it is the record with which the store was created: no bucket has ever existed."""
        return self.order == (1, 1)

    def with_buckets(self, buckets: Mapping[str, BucketRecord]) -> StoreRecord:
        """Add buckets, or replace them by ones with other settings."""
        return self.changed(buckets={**self.buckets, **buckets})

    def without_bucket(self, name: str) -> StoreRecord:
        left = {other: bucket for other, bucket in self.buckets.items() if other != name}
        uuid = self.buckets[name].uuid
        return self.changed(
            buckets=left,
            purging=(*self.purging, uuid),
            snapshots={other: found for other, found in self.snapshots.items() if other != uuid},
            denied={other: found for other, found in self.denied.items() if other != uuid},
        )

    def purged(self, bucket_uuid: str) -> StoreRecord:
        left = tuple(other for other in self.purging if other != bucket_uuid)
        return self.changed(purging=left)

    def knows_bucket(self, bucket_uuid: bytes) -> bool:
        return any(bucket.uuid == bucket_uuid.hex() for bucket in self.buckets.values())

    def with_recovered_bucket(self, bucket_uuid: bytes) -> StoreRecord:
        """Add a bucket whose objects exist but whose name is lost."""
        bucket = BucketRecord(bucket_uuid.hex())
        return self.changed(buckets={**self.buckets, recovered_name(bucket_uuid): bucket})

    # -- snapshots

    def bucket(self, name: str) -> BucketRecord | None:
        """Return a bucket by its name, or one of its snapshots by bucket@snapshot."""
        found = self.buckets.get(name)
        if found is None and SNAPSHOT_MARK in name:
            of, _, snapshot = name.partition(SNAPSHOT_MARK)
            bucket = self.buckets.get(of)
            frozen = self.snapshots.get(bucket.uuid, {}).get(snapshot) if bucket is not None else None
            if bucket is not None and frozen is not None:
                return FrozenBucket(bucket.uuid, bucket.copies, at=frozen.cut)
        return found

    @property
    def cuts(self) -> dict[bytes, list[int]]:
        """Cuts of all snapshots, by uuid of the bucket."""
        return {bytes.fromhex(uuid): [one.cut for one in named.values()] for uuid, named in self.snapshots.items()}

    def with_snapshot(self, bucket_uuid: str, name: str, snapshot: SnapshotRecord) -> StoreRecord:
        named = {**self.snapshots.get(bucket_uuid, {}), name: snapshot}
        return self.changed(snapshots={**self.snapshots, bucket_uuid: named})

    def with_snapshots_of(self, found: Mapping[str, Mapping[str, SnapshotRecord]]) -> StoreRecord:
        """Replace the snapshots of the buckets with these uuids."""
        snapshots = {of: named for of, named in {**self.snapshots, **found}.items() if named}
        changed = self.changed(snapshots=snapshots)
        for of in found:
            left = {one.cut for one in snapshots.get(of, {}).values()}
            if any(one.cut not in left for one in self.snapshots.get(of, {}).values()):
                changed = changed.with_trimming(of)
        return changed

    def without_snapshot(self, bucket_uuid: str, name: str) -> StoreRecord:
        named = {other: one for other, one in self.snapshots[bucket_uuid].items() if other != name}
        left = {other: found for other, found in self.snapshots.items() if other != bucket_uuid}
        snapshots = {**left, bucket_uuid: named} if named else left
        return self.changed(snapshots=snapshots).with_trimming(bucket_uuid)

    def with_trimming(self, bucket_uuid: str) -> StoreRecord:
        return replace(self, trimming=(*(other for other in self.trimming if other != bucket_uuid), bucket_uuid))

    def trimmed(self, bucket_uuid: str) -> StoreRecord:
        left = tuple(other for other in self.trimming if other != bucket_uuid)
        return self.changed(trimming=left)

    def with_epoch(self, epoch: int) -> StoreRecord:
        return self.changed(epoch=epoch)

    def next_epoch(self) -> StoreRecord:
        """Increase the epoch after a catalog was lost: versions issued from now on rank above all earlier ones."""
        return self.changed(epoch=self.epoch + 1)


def recovered_name(bucket_uuid: bytes) -> str:
    return f"recovered-{bucket_uuid.hex()}"


def _eras(former: tuple[tuple[str, ...], ...], active: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    """Omit sets that are equal to the next one."""
    following = (*former, active)[1:]
    return tuple(era for era, after in zip(former, following, strict=True) if set(era) != set(after))


_FIELDS = [one.name for one in fields(StoreRecord)]
_MAPPINGS = ("buckets", "gone", "snapshots", "revoked_tokens", "denied", "audit")


def encode(record: StoreRecord, before: StoreRecord | None = None) -> bytes:
    """Encode a record as a line; with the record `before`, only what has changed since."""
    found: dict[str, Any] = {} if before is not None else {"segments": SEGMENT_FORMAT}
    for name in _FIELDS:
        value, known = getattr(record, name), None if before is None else getattr(before, name)
        if value == known:
            continue
        if known is not None and name in _MAPPINGS:
            is_new = map(is_not, value.values(), map(known.get, value))  # no loop of Python over all buckets
            value = dict(compress(value.items(), is_new)) | dict.fromkeys(filterfalse(value.__contains__, known))
        found[name] = value
    return encode_checked("record", RECORD_VERSION, found) + b"\n"


def decode(data: bytes, source: Path) -> StoreRecord:
    """Decode a record. Raises StoreFormatError for anything that `encode` did not write."""
    try:
        found: dict[str, Any] = {name: {} for name in _MAPPINGS}
        for line in whole_lines(data):
            for name, value in decode_checked("record", RECORD_VERSION, line, source).items():
                if name not in _MAPPINGS:
                    found[name] = value
                    continue
                found[name].update(value)
                for key in [key for key, one in value.items() if one is None]:
                    del found[name][key]
        if (segments := found.pop("segments")) != SEGMENT_FORMAT:
            raise StoreFormatError(
                f"{source}: segments of format {segments}; this version reads format {SEGMENT_FORMAT}"
            )
        for bucket in found["buckets"].values():
            bucket["remote"] = None if bucket["remote"] is None else Remote(**bucket["remote"])
        found["buckets"] = {name: BucketRecord(**bucket) for name, bucket in found["buckets"].items()}
        for name in ("drives", "purging", "retiring", "trimming"):
            found[name] = tuple(found[name])
        found["former"] = tuple(map(tuple, found["former"]))
        found["snapshots"] = {
            bucket_uuid: {name: SnapshotRecord(**one) for name, one in named.items()}
            for bucket_uuid, named in found["snapshots"].items()
        }
        found["audit"] = {place: AuditEnd(**end) for place, end in found["audit"].items()}
        record = StoreRecord(**found)
        if not 0 < record.epoch < 1 << 32 or any(cut >> 62 for cuts in record.cuts.values() for cut in cuts):
            raise ValueError("an epoch, or a snapshot's cut, that there cannot be")
        return record
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreFormatError(f"{source}: not a cluster record: {error}") from error


class CommitMark:
    """Mark of the last commit in one folder, to the record or to a catalog, by any writer of this process.

    A reader beside a writer in another process checks for changes once a second. A reader in the same process compares
    a mark before each look-up, which costs almost nothing, so that it never returns what this process has already
    replaced or deleted.
    """

    def __init__(self) -> None:
        self.latest = object()
        """A new object after each commit. Comparing it with an earlier one shows whether there was a commit."""
        self.file = GrowingFile(encode, lambda: failpoint("record.staged"))
        """The record in this folder."""

    def committed(self) -> None:
        self.latest = object()


_marks: dict[tuple[int, int], CommitMark] = {}


def commit_mark(folder: Path) -> CommitMark:
    """Return the mark of a folder, under any path. Raises OSError if there is none."""
    found = os.stat(folder)
    return _marks.setdefault((found.st_dev, found.st_ino), CommitMark())


def write(folder: Path, record: StoreRecord) -> None:
    """Write the record of one drive, atomically and durably. Raises OSError."""
    mark = commit_mark(folder)
    mark.file.write(folder / FILE_NAME, record)
    mark.committed()
    failpoint("record.one_drive")


def read(folder: Path) -> StoreRecord | None:
    """Return the record on one drive, or None if there is none yet."""
    path = folder / FILE_NAME
    try:
        return decode(path.read_bytes(), path)
    except FileNotFoundError:
        return None
