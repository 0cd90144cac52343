"""Rebuild of a drive's catalog from its files, and of a lost drive.json or record.json from the remaining ones.

Every object file contains the identity of its object (see `format.Identity`). Of several versions of one object the
newest is used. Dead files have lost their identity, so that deleted objects stay deleted. The new catalog is built
beside the old one and replaces it by one rename; the old one is kept as `catalog.lost-<n>`. A crash at any moment
leaves either the old state or one that requires another rebuild.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ais_loader.errors import DriveFailed, StoreFormatError, StoreLocked, StoreNotFound
from ais_loader.wire.placement import Candidate, ranked
from storage_node.store import format as fmt
from storage_node.store import store_record as records
from storage_node.store.drive import identity as identities
from storage_node.store.drive.block_checksums import put_blocks
from storage_node.store.drive.catalog import BINDING_FILE, Catalog, WriteBatch, held_by_this_process
from storage_node.store.drive.drive import objects_missing
from storage_node.store.drive.ended_versions import enter_from_file, is_object_path
from storage_node.store.drive.identity import DriveIdentity
from storage_node.store.drive.locking import hold
from storage_node.store.drive.version_clock import MAX_COUNTER
from storage_node.store.failpoints import failpoint
from storage_node.store.files.growing_file import sync_folder
from storage_node.store.files.object_files import RawFiles, drive_error
from storage_node.store.files.segment_format import file_of, is_segment
from storage_node.store.format import BLOCK_BYTES, Version
from storage_node.store.fsck import file_identity as evidence
from storage_node.store.fsck.report import PROGRESS_EVERY, DriveSummary, Finding, Progress, Report
from storage_node.store.fsck.scan import damaged_copy, shown
from storage_node.store.permissions import FOLDER_MODE
from storage_node.store.pool.open import drive_folders
from storage_node.store.store_record import StoreRecord, recovered_name

_NEW = "catalog.rebuilding"
_ASIDE = "catalog.lost-"
_REPLACED = f"{_ASIDE}now"
"""Old catalog while the new one takes its place. After a crash in between, the next rebuild begins with it again."""


@dataclass(slots=True)
class _DriveContents:
    """Contents of one drive, from an intact catalog or from its files."""

    epoch: int = 0
    """The highest epoch of a store in versions."""
    next_generation: int = 1
    highest_counter: int = 0
    objects: int = 0
    object_bytes: int = 0
    files: int = 0
    buckets: set[bytes] = field(default_factory=set)

    def note(self, version: Version, bucket_uuid: bytes | None = None) -> None:
        self.epoch = max(self.epoch, fmt.store_epoch(version.epoch))
        self.note_counter(version.counter)
        if bucket_uuid is not None:
            self.buckets.add(bucket_uuid)

    def note_counter(self, counter: int) -> None:
        if counter <= MAX_COUNTER:  # no version clock issues others
            self.highest_counter = max(self.highest_counter, counter)


def rebuild(
    paths: Sequence[str | os.PathLike[str]],
    *,
    verify: bool = True,
    all_drives: bool = False,
    progress: Progress | None = None,
) -> Report:
    """Rebuild every catalog that cannot be read to its end (with `all_drives`: every catalog) from the drive's files.

    Sizes are always compared; `verify` also compares the checksum of every object. An object whose file is damaged
    keeps its entry, and reads of it fail as CORRUPT. Buckets are those of the record; objects of a bucket that no
    record contains are kept in one named `recovered-<uuid>`. Versions issued afterwards rank above all that were found.

    Raises StoreNotFound, StoreLocked, DriveFull, DriveFailed, and StoreFormatError if nothing can be rebuilt: no file
    has an identity, or it is unknown which drive of the store a folder is.
    """
    roots = drive_folders(paths)
    for root in roots:
        if not root.is_dir():
            raise StoreNotFound(f"{root}: there is no such folder; mount the drive first")
        if not identities.is_drive_folder(root):
            raise StoreNotFound(f"{root} does not hold a drive of a store")
    with contextlib.ExitStack() as held:
        try:
            for root in roots:
                if held_by_this_process(root / "catalog"):
                    raise StoreLocked(f"{root} is open for writing by this process; close it first")
                if (root / _REPLACED).exists():
                    has_new = (root / "catalog").exists()
                    os.rename(root / _REPLACED, _free_name(root) if has_new else root / "catalog")
                held.enter_context(hold(root / "catalog" / "LOCK"))
                held.callback(shutil.rmtree, root / _NEW, ignore_errors=True)  # what a failure leaves
            return _Rebuild(roots, verify, all_drives, progress).run()
        except OSError as error:
            raise drive_error(error, root, "rebuilding") from error


class _Rebuild:
    def __init__(self, roots: Sequence[Path], verify: bool, all_drives: bool, progress: Progress | None) -> None:
        self._roots = roots
        self._verify = verify
        self._all_drives = all_drives
        self._progress = progress
        self._findings: list[Finding] = []
        self._summaries: list[DriveSummary] = []

    def run(self) -> Report:
        found = {root: _read_record(root, self._findings) for root in self._roots}
        newest = max((r for r in found.values() if r is not None), key=lambda r: r.order, default=None)
        drives = self._identities(newest)
        seen: dict[Path, _DriveContents] = {}
        rebuilt: list[Path] = []
        for root in self._roots:
            healthy = None if self._all_drives else self._read_catalog(root)
            seen[root] = healthy or self._build(root, newest.cuts if newest is not None else {})
            if healthy is None:
                rebuilt.append(root)
        failpoint("rebuild.built")
        record = self._record(newest, drives, seen, bool(rebuilt))
        for root, identity in drives.items():
            with contextlib.suppress(StoreFormatError):
                if identities.read(root) == identity:
                    continue
            identities.write(root, identity)
        for root in self._roots:
            if found[root] != record:
                records.write(root, record)
        for root in rebuilt:
            self._swap(root, seen[root])
        self._summarize(drives, seen)
        return Report("rebuild", record.store_uuid, tuple(self._summaries), tuple(self._findings), self._verify, False)

    # -- identities

    def _identities(self, record: StoreRecord | None) -> dict[Path, DriveIdentity]:
        known: dict[Path, DriveIdentity] = {}
        lost: dict[Path, str] = {}
        for root in self._roots:
            try:
                found = identities.read(root)
                if found is None:
                    raise StoreFormatError(f"{root} has no {identities.FILE_NAME}")
                known[root] = found
            except StoreFormatError as error:
                lost[root] = str(error)
        if not lost:
            return known
        if record is None and len(self._roots) == 1:
            store_uuid = uuid.uuid4().hex
            restored = [DriveIdentity(uuid.uuid4().hex, store_uuid)]
        else:
            claimed = {identity.drive_uuid for identity in known.values()}
            free = [drive_uuid for drive_uuid in record.drives if drive_uuid not in claimed] if record else []
            if record is None or len(free) != 1 or len(lost) != 1:
                raise StoreFormatError(
                    f"{'; '.join(lost.values())}: it cannot be told which drive of the store this is; give all folders "
                    "of the store, of which one at most may have lost its identity while another has the record"
                )
            restored = [DriveIdentity(free[0], record.store_uuid)]
        for root, identity in zip(lost, restored, strict=True):
            known[root] = identity
            self._find("identity-lost", root, lost[root], repaired=f"written anew, as drive {identity.drive_uuid}")
        return {root: known[root] for root in self._roots}

    def _record(
        self,
        newest: StoreRecord | None,
        drives: dict[Path, DriveIdentity],
        seen: dict[Path, _DriveContents],
        rebuilt: bool,
    ) -> StoreRecord:
        record = newest
        if record is None:
            stores = {identity.store_uuid for identity in drives.values()}
            if len(stores) != 1:
                raise StoreFormatError(
                    f"the drives belong to {len(stores)} different stores: {', '.join(map(str, drives))}"
                )
            record = StoreRecord(stores.pop(), tuple(identity.drive_uuid for identity in drives.values()))
            self._require_all_drives(drives)
            message = "no drive had a readable record of the store; the names of its buckets are lost"
            self._find("record-lost", "", message, repaired="written anew")
        if strangers := [str(root) for root, drive in drives.items() if drive.drive_uuid not in record.drives]:
            raise StoreFormatError(f"{', '.join(strangers)}: not among the drives of store {record.store_uuid}")
        for root, on_drive in seen.items():
            for bucket_uuid in sorted(on_drive.buckets):
                if not record.knows_bucket(bucket_uuid) and bucket_uuid.hex() not in record.purging:
                    record = record.with_recovered_bucket(bucket_uuid)
                    message = f"the drive has objects of bucket {bucket_uuid.hex()}, which the record does not have"
                    self._find(
                        "unknown-bucket", root, message, repaired=f"kept, as bucket {recovered_name(bucket_uuid)!r}"
                    )
        epoch = max([record.epoch, *(on_drive.epoch for on_drive in seen.values())])
        if epoch > record.epoch or newest is None:
            record = record.with_epoch(epoch)
        return record.next_epoch() if rebuilt or newest is None else record

    def _require_all_drives(self, drives: dict[Path, DriveIdentity]) -> None:
        """Check the number of drives: without a record it is unknown, but every object's place depends on it."""
        if len(drives) == 1:
            return
        candidates = [Candidate(bytes.fromhex(identity.drive_uuid)) for identity in drives.values()]
        for position, root in enumerate(drives):
            with contextlib.closing(RawFiles(root, writable=False)) as files:
                for path in filter(is_object_path, files.walk()):
                    found = evidence.read_identity(files, path)
                    if found and ranked(found.bucket_uuid, found.name, candidates)[0] != position:
                        raise StoreFormatError(
                            f"{root} holds {found.name!r}, which does not belong there in a store of these "
                            f"{len(drives)} drives; with the record lost, all drives of the store are needed at once"
                        )

    # -- catalogs

    def _read_catalog(self, root: Path) -> _DriveContents | None:
        """Return the contents of an intact catalog, or None if it cannot be read to its end."""
        seen = _DriveContents()
        if not (root / "objects").is_dir():
            self._find("drive-unusable", root, str(objects_missing(root)), repaired="made empty")
            return None
        try:
            with contextlib.closing(Catalog(root / "catalog", writable=False)) as catalog:
                for key, value in catalog.scan(b""):
                    if key.startswith(fmt.OBJECT_PREFIX):
                        entry = fmt.decode_entry(value)
                        seen.note(entry.version, fmt.bucket_of_key(key))
                        seen.objects += not entry.is_tombstone
                        seen.object_bytes += entry.size_bytes
                        self._advance(root, "reading the catalog", seen.objects)
        except (StoreFormatError, DriveFailed) as error:
            self._find("drive-unusable", root, str(error), repaired="the catalog is made anew")
            return None
        self._find("catalog-kept", root, f"the catalog is sound, with {seen.objects:,} objects; it was left alone")
        return seen

    def _build(self, root: Path, cuts: Mapping[bytes, Sequence[int]]) -> _DriveContents:
        """Build a new catalog from files. `cuts` are those of the snapshots whose retained versions are kept."""
        shutil.rmtree(root / _NEW, ignore_errors=True)
        seen = _DriveContents()
        with contextlib.ExitStack() as opened:
            (root / "objects").mkdir(FOLDER_MODE, exist_ok=True)
            files = opened.enter_context(contextlib.closing(RawFiles(root, writable=False)))
            catalog = opened.enter_context(contextlib.closing(Catalog(root / _NEW, writable=True)))
            carried = _carry_over(root, catalog, seen)
            self._collect(root, files, catalog, cuts, seen)
            if seen.files and not seen.epoch and not evidence.keeps_identity(files):
                raise StoreFormatError(
                    f"{root}: none of its {seen.files:,} files says what it is, and its file system stores no extended "
                    "attributes: its catalog cannot be rebuilt"
                )
            for version in carried:
                seen.note(version)
            self._verify_entries(root, files, catalog, seen)
            _journal_uploads(catalog)
            batch = WriteBatch(raw_mode=True)
            batch.put(fmt.COUNTER_KEY, seen.next_generation.to_bytes(8, "big"))
            batch.put(fmt.CLOCK_KEY, (seen.highest_counter + 1).to_bytes(8, "big"))
            catalog.write(batch, sync=True)
            catalog.end_session()
        return seen

    def _collect(
        self, root: Path, files: RawFiles, catalog: Catalog, cuts: Mapping[bytes, Sequence[int]], seen: _DriveContents
    ) -> None:
        """Add entries for the newest file of each object, and for those that snapshots see."""
        last = b""
        for path in files.walk():
            if not is_object_path(path):
                self._find("foreign-file", root, "not a file of the store; left alone", path)
                continue
            if (file := file_of(path)) != last:
                last, seen.files = file, seen.files + 1
                self._advance(root, "reading what files say", seen.files)
                with contextlib.suppress(OSError):  # the same failure is reported below
                    if is_segment(file) and files.is_segment_damaged(path, in_motion=False):
                        self._findings.append(damaged_copy(root, file).finding)
            seen.next_generation = max(seen.next_generation, fmt.generation_of_path(path) + 1)
            try:
                identity = evidence.read_identity(files, path)
                ended = files.ended(path)
            except OSError as error:
                self._find("unreadable", root, f"{error.strerror} (errno {error.errno})", path)
                continue
            if identity is None:
                problem = "the file does not say what it is: a dead one, or one that was"
                if files.may_hold_objects(path):
                    problem = "its index is damaged, or cannot be read: what lies in it cannot be told"
                self._find("no-identity", root, problem, path)
                continue
            key = evidence.object_key(identity)
            before = catalog.get(key)
            other = fmt.decode_entry(before) if before is not None else None
            batch = WriteBatch(raw_mode=True)
            if other is not None and other.is_denied and other.version > identity.version:  # the next start removes it
                batch.put(fmt.generation_key(fmt.GARBAGE_PREFIX, identity.generation), path)
                catalog.write(batch, sync=False)
                continue
            if ended is not None:
                seen.note(identity.version)
                seen.note_counter(ended)
                if not enter_from_file(catalog, cuts, identity, evidence.record_of(files, identity, path), ended):
                    self._superseded(root, path)
                continue
            seen.note(identity.version, identity.bucket_uuid)
            # Of the same version, the later file is the one that a move has left, or a repair.
            if other is not None and other.has_file and other.version == identity.version:
                is_older = other.generation > identity.generation
            else:  # a file is surer than a coded entry of its version, whose group may have been given up since
                is_older = other is not None and other.version > identity.version
            if is_older:
                self._superseded(root, path)
                continue
            if other is not None and other.has_file:
                self._superseded(root, other.path)
            entry = evidence.record_of(files, identity, path)
            if other is not None and other.is_coded and other.version == entry.version:
                entry = entry._replace(raw_metadata=other.raw_metadata, writes=other.writes)
            batch.put(key, fmt.encode_entry(entry))
            catalog.write(batch, sync=False)

    def _superseded(self, root: Path, path: bytes) -> None:
        self._find("orphan", root, "an old version; `ais-loader doctor --repair` removes it", path)

    def _verify_entries(self, root: Path, files: RawFiles, catalog: Catalog, seen: _DriveContents) -> None:
        """Compare each object with its identity, and compute the checksums of its blocks."""
        for entry, value in itertools.chain(catalog.scan(fmt.OBJECT_PREFIX), catalog.scan(fmt.RETAINED_PREFIX)):
            record, key = fmt.decode_entry(value), fmt.object_key_of(entry)
            if key == entry and not record.is_tombstone:
                seen.objects += 1
                seen.object_bytes += record.size_bytes
            if not record.has_file:
                continue
            self._advance(root, "verifying objects", seen.objects)
            problem, blocks = evidence.compare(files, record, read=self._verify or record.size_bytes > BLOCK_BYTES)
            if problem is not None:
                self._find(problem[0], root, problem[1], record.path, key)
            elif blocks:
                batch = WriteBatch(raw_mode=True)
                put_blocks(batch, record.generation, blocks)
                catalog.write(batch, sync=False)
            identity = evidence.read_identity(files, record.path)
            if identity is not None and identity.metadata is None:
                message = "its metadata did not fit into what the file says of itself"
                self._find("metadata-lost", root, message, record.path, key)

    def _swap(self, root: Path, seen: _DriveContents) -> None:
        old, aside = root / "catalog", _free_name(root)
        is_kept = not set(os.listdir(old)) <= {"LOCK", BINDING_FILE}
        os.rename(old, root / _REPLACED)
        failpoint("rebuild.aside")
        os.rename(root / _NEW, old)
        sync_folder(root)
        if is_kept:
            os.rename(root / _REPLACED, aside)
        else:
            shutil.rmtree(root / _REPLACED)
        kept = f"; the old one is kept as {aside.name}" if is_kept else ""
        self._find("catalog-rebuilt", root, f"{seen.objects:,} objects, {seen.object_bytes:,} bytes{kept}")

    def _summarize(self, drives: dict[Path, DriveIdentity], seen: dict[Path, _DriveContents]) -> None:
        for root, found in seen.items():
            with contextlib.closing(RawFiles(root, writable=False)) as files:
                keeps = evidence.keeps_identity(files)
            self._summaries.append(
                DriveSummary(
                    drives[root].drive_uuid,
                    str(root),
                    None,
                    found.objects,
                    found.object_bytes,
                    found.files,
                    keeps_identity=keeps,
                )
            )

    # -- reporting

    def _advance(self, root: Path, doing: str, done: int) -> None:
        if self._progress is not None and done % PROGRESS_EVERY == 0:
            self._progress(f"{root}: {doing}", done)

    def _find(
        self,
        kind: str,
        root: Path | str,
        message: str,
        path: bytes = b"",
        key: bytes = b"",
        *,
        repaired: str | None = None,
    ) -> None:
        finding = Finding(kind, str(root), message, shown(path) if path else "", repaired=repaired)
        if key:
            finding = replace(finding, bucket=fmt.bucket_of_key(key).hex(), name=fmt.name_of_key(key))
        self._findings.append(finding)


def _read_record(root: Path, findings: list[Finding]) -> StoreRecord | None:
    try:
        found = records.read(root)
    except StoreFormatError as error:
        findings.append(Finding("record-differs", str(root), str(error), repaired="written anew"))
        return None
    if found is None:
        message = f"{root / records.FILE_NAME} is missing"
        findings.append(Finding("record-differs", str(root), message, repaired="written anew"))
    return found


def _carry_over(root: Path, catalog: Catalog, seen: _DriveContents) -> list[Version]:
    """Copy the tombstones and coded entries of the old catalog, also of retained versions, as far as it can be read,
    and note the numbers that it had reserved: files contain neither.

    Returns the versions of what was copied.
    """
    carried: list[Version] = []
    batch = WriteBatch(raw_mode=True)
    with (
        contextlib.suppress(StoreFormatError, DriveFailed),
        contextlib.closing(Catalog(root / "catalog", writable=False, salvage=True)) as old,
    ):
        for prefix in (fmt.OBJECT_PREFIX, fmt.RETAINED_PREFIX, fmt.DENIAL_PREFIX):
            for backwards in (False, True):  # from both ends: a scan stops at what is damaged
                with contextlib.suppress(StoreFormatError, DriveFailed):
                    for key, value in old.scan(prefix, backwards=backwards):
                        with contextlib.suppress(StoreFormatError):  # unreadable entries are rebuilt from files
                            entry = None if prefix == fmt.DENIAL_PREFIX else fmt.decode_entry(value)
                            if entry is None or not entry.has_file:
                                batch.put(key, value)
                                carried += [] if entry is None else [entry.version]
                    break
        seen.next_generation = int.from_bytes(old.get(fmt.COUNTER_KEY) or b"\1", "big")
        seen.note_counter(int.from_bytes(old.get(fmt.CLOCK_KEY) or b"", "big"))
    catalog.write(batch, sync=False)
    return carried


def _journal_uploads(catalog: Catalog) -> None:
    """Journal what is to be uploaded to remote storage, by the entries."""
    batch = WriteBatch(raw_mode=True)
    for key, value in catalog.scan(fmt.OBJECT_PREFIX):
        if fmt.is_pending(value):
            batch.put(fmt.pending_key(key), b"")
    catalog.write(batch, sync=False)


def _free_name(root: Path) -> Path:
    names = {entry.name for entry in root.iterdir()}
    return root / next(name for number in range(1, len(names) + 2) if (name := f"{_ASIDE}{number}") not in names)
