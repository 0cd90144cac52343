"""Scan of one drive's catalog against its files, without changing anything.

A drive with a writer is scanned as a reader. Every suspicion is checked again after catching up, so that changes in
progress are not reported.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ais_loader.errors import CorruptObject, StoreFormatError
from storage_node.store import format as fmt
from storage_node.store.drive.block_checksums import read_blocks
from storage_node.store.drive.bucket_usage import wrong_counts
from storage_node.store.drive.catalog import Catalog
from storage_node.store.drive.drive import Drive
from storage_node.store.drive.ended_versions import NamedFiles, is_object_path, named_by
from storage_node.store.files.segment_format import file_of, is_segment, is_slot
from storage_node.store.format import BLOCK_BYTES, CatalogEntry, Identity, Version
from storage_node.store.fsck.file_identity import (
    compare,
    keeps_identity,
    object_key,
    read_identity,
    unreadable,
)
from storage_node.store.fsck.report import PROGRESS_EVERY, Finding, Progress
from storage_node.store.pool.drive_set import DrivePlacement
from storage_node.store.store_record import StoreRecord

_MOVING_OBJECT_ATTEMPTS = 20


@dataclass(slots=True)
class Survey:
    """Counts of one drive. Findings are yielded by `Scan`."""

    objects: int = 0
    object_bytes: int = 0
    files: int = 0
    waiting: int = 0
    newest: Version = field(default_factory=lambda: Version(0, 0))
    unknown_buckets: Counter[bytes] = field(default_factory=Counter)
    moving: int = 0
    """Number of entries that have to move to another drive."""


@dataclass(frozen=True, slots=True)
class Suspect:
    """Finding, with what a repair needs to know about it."""

    finding: Finding
    key: bytes = b""
    record: CatalogEntry | None = None
    identity: Identity | None = None
    file: bytes = b""


def shown(path: bytes) -> str:
    return "objects/" + path.decode(errors="backslashreplace")


class Scan:
    """Comparison of one open drive. Run `entries`, `strays` and `copies` in this order; they yield problems as they
    find them."""

    def __init__(self, drive: Drive, record: StoreRecord | None, *, checksums: bool, progress: Progress | None) -> None:
        self.survey = Survey()
        self._drive = drive
        self._record = record
        self._checksums = checksums
        self._progress = progress
        self._named: NamedFiles | None = None
        self._segments: list[bytes] = []
        self._names: dict[bytes, str] = {}
        self._placement: DrivePlacement | None = None
        if record is not None:
            self._names = {bucket.uuid_bytes: name for name, bucket in record.buckets.items()}
            self._names |= {bytes.fromhex(purged): "" for purged in record.purging}
            self._placement = DrivePlacement(record, {uuid: at for at, uuid in enumerate(record.drives)})

    def _advance(self, doing: str, done: int) -> None:
        if self._progress is not None and done % PROGRESS_EVERY == 0:
            self._progress(f"{self._drive.root}: {doing}", done)

    def _suspect(self, kind: str, message: str, *, key: bytes = b"", record: CatalogEntry | None = None) -> Suspect:
        bucket, name = "", ""
        if key:
            bucket = self._names.get(fmt.bucket_of_key(key), fmt.bucket_of_key(key).hex())
            name = fmt.object_key_of(key)[17:].decode(errors="backslashreplace")
            if key.startswith(fmt.RETAINED_PREFIX):
                message = f"a version retained for snapshots: {message}"
        path = shown(record.path) if record is not None else ""
        return Suspect(Finding(kind, str(self._drive.root), message, path, bucket, name), key, record)

    # -- entries, each against its file

    def entries(self) -> Iterator[Suspect]:
        """Compare each entry with its file. Raises StoreFormatError, DriveFailed if the catalog cannot be read to the
        end."""
        if not self._drive.writable:
            self._drive.catch_up()
        self._named = NamedFiles(self._note_paths())
        scan = self._drive.catalog.scan
        for key, value in itertools.chain(scan(fmt.OBJECT_PREFIX), scan(fmt.RETAINED_PREFIX)):
            if key.startswith(fmt.OBJECT_PREFIX):
                self.survey.objects += not fmt.is_tombstone(value)
            self._advance("comparing objects", self.survey.objects)
            suspect = self._examine(key, value)
            if suspect is not None and not self._drive.writable:
                suspect = self._examine_again(key, value, suspect)
            if suspect is not None:
                yield suspect
        for bucket_uuid, count in self.survey.unknown_buckets.items():
            message = f"{count:,} objects of bucket {bucket_uuid.hex()}, which the store's record does not have"
            yield self._suspect("unknown-bucket", message, key=fmt.OBJECT_PREFIX + bucket_uuid)

    def _examine_again(self, key: bytes, value: bytes, suspect: Suspect) -> Suspect | None:
        """Confirm a suspicion beside a writer: return it if it is about the current entry, else None."""
        for _ in range(_MOVING_OBJECT_ATTEMPTS):
            self._drive.catch_up()
            now = self._drive.catalog.get(key)
            if now is None:
                return None
            if now == value:
                return suspect
            again = self._examine(key, now)
            if again is None:
                return None
            value, suspect = now, again
        return None  # replaced faster than it can be examined, by a healthy writer

    def _note_paths(self) -> Iterator[bytes]:
        for _, value in self._drive.catalog.scan(fmt.OBJECT_PREFIX):
            with contextlib.suppress(StoreFormatError):  # `entries` reports it
                entry = fmt.decode_entry(value)
                self.survey.object_bytes += entry.size_bytes if entry.has_file else 0
                self.survey.newest = max(self.survey.newest, entry.version)
                yield from named_by(entry)
        for _, value in self._drive.catalog.scan(fmt.RETAINED_PREFIX):
            with contextlib.suppress(StoreFormatError):
                yield from named_by(fmt.decode_entry(value))
        for prefix in (fmt.INTENT_PREFIX, fmt.GARBAGE_PREFIX):
            for _, path in self._drive.catalog.scan(prefix):
                self.survey.waiting += 1
                yield path

    def _examine(self, key: bytes, value: bytes) -> Suspect | None:
        try:
            entry = fmt.decode_entry(value)
            fmt.decode_metadata(entry.raw_metadata)
            name = fmt.name_of_key(fmt.object_key_of(key))
        except (StoreFormatError, UnicodeDecodeError) as error:
            return self._suspect("bad-entry", str(error), key=key)
        if key.startswith(fmt.RETAINED_PREFIX):
            # It stays where it was when it ended.
            return self._examine_file(key, entry) if entry.has_file else None
        bucket_uuid = fmt.bucket_of_key(key)
        if self._record is not None:
            if bucket_uuid not in self._names:
                self.survey.unknown_buckets[bucket_uuid] += 1
            # In a cluster, versions contain the number of a node, and the epoch of the cluster map.
            if fmt.store_epoch(entry.epoch) > self._record.epoch and not entry.node:
                message = f"version {entry.version} is of a later epoch than the store's record, {self._record.epoch}"
                return self._suspect("later-epoch", message, key=key, record=entry)
            if self._placement is not None and len(self._record.drives) > 1:
                owners = [self._record.drives[at] for at in self._placement.entry_slots(bucket_uuid, name).slots]
                local = self._drive.identity.drive_uuid
                if local not in owners:
                    message = f"it belongs on drive {owners[0]}, where readers look for it"
                    return self._suspect("misplaced", message, key=key, record=entry)
                self.survey.moving += local != owners[0]
        if fmt.is_pending(entry.raw_metadata) and self._drive.catalog.get(fmt.pending_key(key)) is None:
            message = "it is not uploaded to its remote storage, and will not be: the journal of uploads lacks it"
            return self._suspect("not-journaled", message, key=key, record=entry)
        return self._examine_file(key, entry) if entry.has_file else None

    def _examine_file(self, key: bytes, entry: CatalogEntry) -> Suspect | None:
        problem, computed = compare(self._drive.files, entry, read=self._checksums)
        if problem is None:
            blocks = self._stored_blocks(entry)
            if self._checksums and blocks is not None and blocks != computed:
                problem = "corrupt", "the bytes do not match the checksum"
            elif self._checksums:
                problem = self._identity_problem(key, entry)
            if problem is None and blocks is None:
                problem = "missing-blocks", "the checksums of its blocks are missing: ranges cannot be verified"
        return None if problem is None else self._suspect(*problem, key=key, record=entry)

    def _stored_blocks(self, entry: CatalogEntry) -> list[int] | None:
        if entry.size_bytes <= BLOCK_BYTES:
            return []
        try:
            stored = read_blocks(self._drive.catalog, entry, 0, -(-entry.size_bytes // BLOCK_BYTES))
            return [int(checksum) for checksum in stored]
        except CorruptObject:
            return None

    def _identity_problem(self, key: bytes, entry: CatalogEntry) -> tuple[str, str] | None:
        if not keeps_identity(self._drive.files):
            return None
        ended = None
        if key.startswith(fmt.RETAINED_PREFIX):
            ended = fmt.ended_of_retained(key)
            if self._drive.catalog.get(fmt.generation_key(fmt.MARK_PREFIX, entry.generation)) is not None:
                return None  # will be marked by the writer, or at the next start
        kind, is_of = "file-identity", (fmt.object_key_of(key), entry.version, entry.checksum)
        try:
            found = read_identity(self._drive.files, entry.path)
            if found is None:
                return kind, "the file does not say what it is: rebuilding a lost catalog would miss it"
            if (object_key(found), found.version, found.checksum) != is_of:
                return kind, f"the file says that it is version {found.version} of {found.name!r}"
            if self._drive.files.ended(entry.path) != ended:
                return kind, "the file is wrong about whether the object has ended, and when"
        except OSError as error:
            return unreadable(error)
        return None

    def counts(self) -> Iterator[Suspect]:
        """Compare the counts for quotas with the entries. Call after `entries`, whose repair may change them."""
        return wrong_count(self._drive, self._names)

    # -- files, each against the catalog

    def strays(self) -> Iterator[Suspect]:
        """Yield files that the catalog does not account for. Call after `entries` has ended."""
        assert self._named is not None
        for path in self._named.not_among(self._walk()):
            if not is_object_path(path):
                finding = Finding("foreign-file", str(self._drive.root), "not a file of the store", shown(path))
                yield Suspect(finding, file=path)
            elif (suspect := self._stray(path)) is not None:
                yield suspect

    def _walk(self) -> Iterator[bytes]:
        last = b""
        for path in self._drive.files.walk():
            if (file := file_of(path)) != last:  # objects of one segment are consecutive
                last = file
                self.survey.files += 1
                self._advance("comparing files", self.survey.files)
                if is_segment(file):
                    self._segments.append(file)
            yield path

    def copies(self) -> Iterator[Suspect]:
        """Yield segments that have only one intact copy of their index. Call after `strays` has ended."""
        in_motion = not self._drive.writable
        for file in self._segments:
            with contextlib.suppress(OSError):  # removed, or unreadable, which is reported elsewhere
                # A single check may see a state that is just being written.
                attempts = range(_MOVING_OBJECT_ATTEMPTS if in_motion else 1)
                if all(self._drive.files.is_segment_damaged(file, in_motion=in_motion) for _ in attempts):
                    yield damaged_copy(self._drive.root, file)

    def _stray(self, path: bytes) -> Suspect | None:
        ended = None
        try:
            identity = read_identity(self._drive.files, path)
            ended = self._drive.files.ended(path)
        except OSError:
            identity = None
        self._drive.catch_up()
        catalog = self._drive.catalog
        for named in {path, file_of(path)}:  # a segment being published has one intent
            for prefix in (fmt.INTENT_PREFIX, fmt.GARBAGE_PREFIX):
                if catalog.get(fmt.generation_key(prefix, fmt.generation_of_path(named))) == named:
                    return None
        entry = catalog.get(object_key(identity)) if identity is not None else None
        try:
            record = fmt.decode_entry(entry) if entry is not None else None
        except StoreFormatError:
            return None  # it may be the file of the unreadable entry
        if (record is not None and record.path == path) or not self._drive.files.exists(path):
            return None
        if identity is not None and _may_be_retained(catalog, identity, path):
            return None
        drive = str(self._drive.root)
        purged = identity is not None and self._names.get(identity.bucket_uuid) == ""
        newer = identity is not None and (record is None or record.version < identity.version)
        if identity is not None and newer and ended is None and not purged:
            bucket = self._names.get(identity.bucket_uuid, identity.bucket_uuid.hex())
            message = f"version {identity.version}, newer than what the catalog knows"
            finding = Finding("recoverable", drive, message, shown(path), bucket, identity.name)
            return Suspect(finding, object_key(identity), record, identity, path)
        if self._drive.files.may_hold_objects(path):
            message = "the index of a segment is damaged, and no entry names an object in it; --drop-damaged removes it"
            if is_slot(path):
                message = "no entry names it, and its segment is damaged: it may be alive; --drop-damaged removes it"
            return Suspect(Finding("segment-damaged", drive, message, shown(path)), file=path)
        whose = f"an old version, {identity.version}, of {identity.name!r}" if identity else "it does not say of what"
        finding = Finding("orphan", drive, f"a file that nothing names: {whose}", shown(path))
        return Suspect(finding, identity=identity, file=path)


def wrong_count(drive: Drive, names: Mapping[bytes, str]) -> Iterator[Suspect]:
    """Yield the buckets with a quota whose count on this drive is wrong."""
    for bucket_uuid, stored, found in wrong_counts(drive.catalog):
        message = (
            f"the count for its quota says {stored.objects:,} objects and {stored.size_bytes:,} bytes; there are "
            f"{found.objects:,} and {found.size_bytes:,}"
        )
        bucket = names.get(bucket_uuid, bucket_uuid.hex())
        yield Suspect(Finding("wrong-count", str(drive.root), message, bucket=bucket), fmt.OBJECT_PREFIX + bucket_uuid)


def damaged_copy(root: Path, file: bytes) -> Suspect:
    message = "a copy of a segment's index is damaged: if the other one was as well, a rebuild would miss its objects"
    return Suspect(Finding("segment-copy", str(root), message, shown(file)), file=file)


def _may_be_retained(catalog: Catalog, identity: Identity, path: bytes) -> bool:
    """Whether a retained version of the object names this file, or cannot be read."""
    for _, value in catalog.scan(fmt.retained_prefix(identity.bucket_uuid, identity.name)):
        try:
            if fmt.decode_entry(value).path == path:
                return True
        except StoreFormatError:
            return True
    return False
