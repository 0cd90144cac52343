"""Check and repair of a store: fixes what can be fixed without losing anything.

`check` never writes and works beside a writer; `repair` and `rebuild` (in `rebuild.py`) need exclusive access. An
object whose bytes are damaged is reported, and removed only with `drop_damaged`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ais_loader.errors import LoaderError, StoreFormatError, StoreNotFound
from storage_node.store import format as fmt
from storage_node.store import store_record as records
from storage_node.store.drive import identity as identities
from storage_node.store.drive.catalog import held_by_this_process
from storage_node.store.drive.drive import Drive
from storage_node.store.drive.identity import DriveIdentity
from storage_node.store.drive.locking import lock_holder
from storage_node.store.format import CatalogEntry
from storage_node.store.fsck.file_identity import keeps_identity, read_checksums, record_of
from storage_node.store.fsck.rebuild import rebuild
from storage_node.store.fsck.report import DriveSummary, Finding, Progress, Report
from storage_node.store.fsck.scan import Scan, Suspect
from storage_node.store.permissions import close_to_others, open_paths
from storage_node.store.pool.open import drive_folders
from storage_node.store.store import Store
from storage_node.store.store_record import StoreRecord, recovered_name

__all__ = ["DriveSummary", "Finding", "Progress", "Report", "check", "compact", "rebuild", "repair"]

DAMAGED = ("missing-file", "wrong-size", "corrupt", "bad-entry")


def check(
    paths: Sequence[str | os.PathLike[str]], *, checksums: bool = False, progress: Progress | None = None
) -> Report:
    """Compare every catalog entry with its file, every file with the catalog, and the drives with each other.

    Reads sizes only or, with `checksums`, every byte. Beside a writer the report is marked `in_motion`, and changes in
    progress are not reported.

    Raises StoreNotFound if there is nothing at `paths`, InvalidRequest for paths that cannot be a store.
    """
    roots = drive_folders(paths)
    known, record, findings = _identify(roots)
    drives: list[DriveSummary] = []
    for root, identity in list(known.items()):
        if record is not None and (how := record.gone.get(identity.drive_uuid)) is not None:
            message = f"drive {identity.drive_uuid} was {how}: the store does without what is on it"
            findings.append(Finding("left-out", str(root), message))
            continue
        summary, found = _check_drive(root, identity, record, checksums=checksums, progress=progress)
        drives.append(summary)
        findings.extend(found)
    if record is not None:
        for drive_uuid in record.drives:
            if drive_uuid not in {identity.drive_uuid for identity in known.values()}:
                message = f"drive {drive_uuid} is not among the folders given, or not mounted"
                findings.append(Finding("drive-missing", "", message))
    in_motion = any(drive.held_by for drive in drives)
    if in_motion:
        holders = ", ".join(sorted({drive.held_by for drive in drives if drive.held_by}))
        message = f"open for writing by {holders}: the figures are those of passing moments"
        findings.append(Finding("in-motion", "", message))
    store_uuid = record.store_uuid if record is not None else next((i.store_uuid for i in known.values()), "")
    return Report("check", store_uuid, tuple(drives), tuple(findings), checksums, in_motion)


def repair(
    paths: Sequence[str | os.PathLike[str]],
    *,
    drop_damaged: bool = False,
    checksums: bool = False,
    progress: Progress | None = None,
) -> Report:
    """Fix the findings of `check` as far as nothing is lost by it. Each finding says what was done.

    Removes files that the catalog does not reference, adds files that are newer than the catalog to it, equalizes the
    drives' copies of the store record, restores block checksums and file identities from intact bytes, and names
    buckets that the record does not know. `drop_damaged` also removes objects whose file is missing, damaged or
    unreadable.

    Raises StoreLocked, and whatever else `Store.open` raises. A catalog that cannot be opened needs `rebuild`.
    """
    roots = _used_folders(paths)
    _, _, before = _identify(roots)
    staged = {root: _staged(root) for root in roots}
    findings: list[Finding] = []
    drives: list[DriveSummary] = []
    with Store.open(roots, mode="a", compact_bytes_per_s=0) as store:  # no object moves while it is looked at
        for finding in before:
            done = None
            if finding.kind == "record-differs":
                done = "written anew"
            elif finding.kind == "open-permissions" and close_to_others(Path(finding.drive, finding.path)):
                done = "closed to them"
            findings.append(replace(finding, repaired=done))
        for state, drive in zip(store.pool.states(), store.drives, strict=True):
            if drive is None:
                drives.append(DriveSummary(state.uuid, state.path, state.problem))
                findings.append(Finding("drive-unusable", state.path, str(state.problem)))
                continue
            if staged[drive.root]:
                message = f"{staged[drive.root]:,} files of uploads that were never finished"
                findings.append(Finding("staging", str(drive.root), message, repaired="removed"))
            summary, found = _repair_drive(store, drive, checksums, drop_damaged, progress)
            drives.append(summary)
            findings.extend(found)
        if any(finding.kind == "misplaced" and finding.repaired for finding in findings):
            _move(store, findings)
        return Report("repair", store.store_uuid, tuple(drives), tuple(findings), checksums, False)


def compact(paths: Sequence[str | os.PathLike[str]], *, progress: Progress | None = None) -> Report:
    """Compact the segments and catalogs of all drives, then check the store.

    Raises StoreNotFound, StoreLocked, and whatever else `Store.open` raises.
    """
    roots = _used_folders(paths)
    with Store.open(roots, mode="a", compact_bytes_per_s=0) as store:  # compacted here, at full speed
        for at, drive in enumerate(store.drives):
            if drive is not None:
                _compact_segments(store, drive, progress)
                drive.compact()
            if progress is not None:
                progress("compacting catalogs", at + 1)
    return check(paths, progress=progress)


def _compact_segments(store: Store, drive: Drive, progress: Progress | None) -> None:
    drive.reap(everything=True)
    drive.note_sparse_segments()
    segments = 0
    while len(drive.sparse):
        done = drive.compact_segments()
        for damaged in done.damaged:
            store.damaged.note(*damaged)
        segments += done.segments
        if progress is not None:
            progress("compacting segments", segments)
    drive.reap(everything=True)


def _used_folders(paths: Sequence[str | os.PathLike[str]]) -> list[Path]:
    """Return the drives' folders. Raises StoreNotFound if all are empty, so that no store is made there."""
    roots = drive_folders(paths)
    if not any(root.is_dir() and any(root.iterdir()) for root in roots):
        raise StoreNotFound(f"no store at {', '.join(map(str, roots))}")
    return roots


# -- identities and records


def _identify(roots: Sequence[Path]) -> tuple[dict[Path, DriveIdentity], StoreRecord | None, list[Finding]]:
    """Return the drives among the folders, the current store record, and findings about both."""
    known: dict[Path, DriveIdentity] = {}
    findings: list[Finding] = []
    for root in roots:
        try:
            if (reason := identities.left(root)) is not None:
                findings.append(Finding("left-out", str(root), reason))
                continue
            found = identities.read(root)
        except (StoreFormatError, OSError) as error:
            findings.append(Finding("identity-lost", str(root), str(error)))
            continue
        if found is not None:
            known[root] = found
    if not known and not findings:
        raise StoreNotFound(f"no store at {', '.join(map(str, roots))}")
    on_drives: dict[Path, StoreRecord] = {}
    for root, identity in known.items():
        findings += open_to_others(root)
        try:
            record = records.read(root)
        except (StoreFormatError, OSError) as error:
            findings.append(Finding("record-differs", str(root), f"its copy of the record cannot be read: {error}"))
            continue
        if record is None:
            findings.append(Finding("record-differs", str(root), "it has no copy of the record"))
        elif record.store_uuid != identity.store_uuid:
            message = f"its record is that of store {record.store_uuid}, the drive is of {identity.store_uuid}"
            findings.append(Finding("record-differs", str(root), message))
        else:
            on_drives[root] = record
    if known and not on_drives:
        message = "no drive has a readable record of the store; `ais-loader doctor --rebuild` makes one"
        findings.append(Finding("record-lost", "", message))
    newest = max(on_drives.values(), key=lambda record: record.order, default=None)
    for root, record in on_drives.items():
        if newest is not None and record != newest:
            mine, other = f"{record.epoch}.{record.revision}", f"{newest.epoch}.{newest.revision}"
            message = f"its copy of the record is revision {mine}, another drive has {other}"
            findings.append(Finding("record-differs", str(root), message))
    return known, newest, findings


def open_to_others(root: Path) -> Iterator[Finding]:
    """Iterate over what other users have access to in a folder."""
    for found in open_paths(root):
        below = "" if found.path == root else os.fspath(found.path.relative_to(root))
        yield Finding("open-permissions", str(root), found.problem, path=below)


def _staged(root: Path) -> int:
    try:
        return len(os.listdir(root / "staging"))
    except OSError:
        return 0


# -- one drive


def _check_drive(
    root: Path, identity: DriveIdentity, record: StoreRecord | None, *, checksums: bool, progress: Progress | None
) -> tuple[DriveSummary, list[Finding]]:
    lock = root / "catalog"
    held_by = "this process" if held_by_this_process(lock) else lock_holder(lock / "LOCK")
    try:
        drive = Drive(root, identity, writable=False)
    except LoaderError as error:
        return (
            DriveSummary(identity.drive_uuid, str(root), str(error), held_by=held_by),
            [Finding("drive-unusable", str(root), str(error))],
        )
    with contextlib.closing(drive):
        exam = Scan(drive, record, checksums=checksums, progress=progress)
        findings: list[Finding] = []
        problem = None
        try:
            findings.extend(suspect.finding for suspect in exam.entries())
            findings.extend(suspect.finding for suspect in exam.strays())
            findings.extend(suspect.finding for suspect in exam.copies())
            findings.extend(suspect.finding for suspect in exam.counts())
        except (LoaderError, OSError) as error:
            problem = str(error)
            findings.append(Finding("drive-unusable", str(root), problem))
        staged = _staged(root)
        if staged and held_by is None:
            message = f"{staged:,} files of uploads that were never finished; the next start removes them"
            findings.append(Finding("staging", str(root), message))
        return _summary(exam, drive, findings, problem=problem, staged=staged, held_by=held_by), findings


def _summary(
    exam: Scan,
    drive: Drive,
    findings: list[Finding],
    *,
    problem: str | None = None,
    staged: int = 0,
    held_by: str | None = None,
) -> DriveSummary:
    keeps = keeps_identity(drive.files)
    if not keeps:
        message = "the file system stores no extended attributes: a lost catalog could not be rebuilt"
        findings.append(Finding("no-xattr", str(drive.root), message))
    counted = exam.survey
    if counted.moving:
        message = f"{counted.moving:,} entries are to move to other drives; they are read from here until then"
        findings.append(Finding("moving", str(drive.root), message))
    return DriveSummary(
        drive.identity.drive_uuid,
        str(drive.root),
        problem,
        counted.objects,
        counted.object_bytes,
        counted.files,
        counted.waiting,
        staged,
        keeps,
        held_by,
    )


# -- repairing


@dataclass(frozen=True, slots=True)
class _Remedies:
    store: Store
    drive: Drive
    drop_damaged: bool

    def treat(self, suspect: Suspect) -> Finding:
        """Repair what is possible. Returns the finding, with what was done."""
        kind = suspect.finding.kind
        treatment: Callable[[Suspect], str | None] | None = getattr(self, "_" + kind.replace("-", "_"), None)
        done = treatment(suspect) if treatment is not None else None
        if done is None and self.drop_damaged and kind in DAMAGED:
            self.drive.changes.replace_entry(suspect.key, None)
            done = "dropped"
        return replace(suspect.finding, repaired=done)

    def _orphan(self, suspect: Suspect) -> str:
        self.drive.files.unlink(suspect.file)
        return "removed"

    def _segment_damaged(self, suspect: Suspect) -> str | None:
        if not self.drop_damaged:
            return None  # a rebuild may have missed its objects
        self.drive.files.drop_untold(suspect.file)
        return "removed"

    def _segment_copy(self, suspect: Suspect) -> str | None:
        with contextlib.suppress(OSError):
            if self.drive.files.mend_segment(suspect.file):
                return "written anew from the other copy"
        return None

    def _recoverable(self, suspect: Suspect) -> str | None:
        identity = suspect.identity
        assert identity is not None
        entry = record_of(self.drive.files, identity, suspect.file)
        if not restore_entry(self.drive, suspect.key, entry):
            return None
        if not self.store.record.current.knows_bucket(identity.bucket_uuid):
            self.store.record.change(lambda record: record.with_recovered_bucket(identity.bucket_uuid))
        return "taken back into the catalog"

    def _missing_blocks(self, suspect: Suspect) -> str | None:
        assert suspect.record is not None
        return "computed from intact bytes" if restore_entry(self.drive, suspect.key, suspect.record) else None

    def _file_identity(self, suspect: Suspect) -> str | None:
        assert suspect.record is not None
        return "written anew" if restore_identity(self.drive, suspect.key, suspect.record) else None

    def _later_epoch(self, suspect: Suspect) -> str | None:
        assert suspect.record is not None
        epoch = fmt.store_epoch(suspect.record.epoch)
        if epoch > self.store.record.current.epoch:
            self.store.record.change(lambda record: record.with_epoch(epoch))
        return f"the record was raised to epoch {epoch}"

    def _not_journaled(self, suspect: Suspect) -> str | None:
        assert suspect.record is not None
        of = fmt.bucket_of_key(suspect.key), fmt.name_of_key(suspect.key)
        is_pending = self.drive.changes.journal.begin(*of, suspect.record.version, b"")
        return "journaled again" if is_pending else None

    def _wrong_count(self, suspect: Suspect) -> str:
        self.drive.changes.usage.start(suspect.key[1:17])
        return "counted anew"

    def _misplaced(self, suspect: Suspect) -> str | None:
        record = self.store.record.current
        if record.snapshots:
            return None  # nothing moves while snapshots exist
        uuid = self.drive.identity.drive_uuid
        if (uuid,) not in record.former:
            with self.store.record.lock, self.store.drive_set.placement_lock.alone():
                self.store.record.commit(record.with_stray(uuid))
        return "it is found again, and moves to its drive"

    def _unknown_bucket(self, suspect: Suspect) -> str:
        bucket_uuid = suspect.key[1:17]
        self.store.record.change(lambda record: record.with_recovered_bucket(bucket_uuid))
        return f"kept, as bucket {recovered_name(bucket_uuid)!r}"


def _repair_drive(
    store: Store, drive: Drive, checksums: bool, drop_damaged: bool, progress: Progress | None
) -> tuple[DriveSummary, list[Finding]]:
    exam = Scan(drive, store.record.current, checksums=checksums, progress=progress)
    remedies = _Remedies(store, drive, drop_damaged)
    findings: list[Finding] = []
    problem = None
    try:
        for suspect in _all(exam):
            findings.append(remedies.treat(suspect))
    except (LoaderError, OSError) as error:
        problem = str(error)
        findings.append(Finding("drive-unusable", str(drive.root), problem))
    return _summary(exam, drive, findings, problem=problem), findings


def _move(store: Store, findings: list[Finding]) -> None:
    """Move entries to the drives that own them, as far as possible."""
    while store.pool.moving:
        moved = store.pool.move_some()
        if moved.problem or not (moved.objects or store.drive_set.all_live()):
            findings.append(Finding("moving", "", f"not all entries could move to their drives: {moved.problem}"))
            return


def _all(exam: Scan) -> Iterator[Suspect]:
    yield from exam.entries()
    yield from exam.strays()
    yield from exam.copies()
    yield from list(exam.counts())


def restore_entry(drive: Drive, key: bytes, entry: CatalogEntry) -> bool:
    """Write an entry, in place of an older version if there is one, and the checksums of its blocks; False if its bytes
    do not match its checksum. Raises OSError, LoaderError."""
    size, whole, blocks = read_checksums(drive.files, entry)
    if (size, whole) != (entry.size_bytes, entry.checksum):
        return False
    drive.changes.replace_entry(key, entry, blocks)
    return True


def restore_identity(drive: Drive, key: bytes, entry: CatalogEntry) -> bool:
    """Write an object's identity to its file; False if the file system cannot store it.

    An object in a segment with a damaged index is moved to a file of its own if its bytes match their checksum. Raises
    OSError, LoaderError.
    """
    ended = fmt.ended_of_retained(key) if key.startswith(fmt.RETAINED_PREFIX) else None
    of = fmt.bucket_of_key(key), fmt.name_of_key(fmt.object_key_of(key))
    is_written = drive.files.own(entry.path, fmt.identity_of_entry(*of, entry))
    if not is_written and entry.offset:
        moved = _own_file(drive, key, entry)
        is_written, entry = moved is not None, moved or entry
    if is_written:
        drive.files.set_ended(entry.path, ended)
    return is_written


def _own_file(drive: Drive, key: bytes, entry: CatalogEntry) -> CatalogEntry | None:
    """Copy an object out of its segment. Returns its new entry, or None if its bytes do not match their checksum."""
    generation = drive.generations.take()
    of = fmt.bucket_of_key(key), fmt.name_of_key(fmt.object_key_of(key))
    own = entry._replace(offset=0, path=fmt.file_path(*of, generation))
    staged = drive.stage()
    try:
        for part in drive.files.read(entry):
            staged.write(part)
        if (staged.size_bytes, staged.checksum) != (entry.size_bytes, entry.checksum):
            return None
        drive.files.set_identity(staged.fd, fmt.identity_of_entry(*of, own))
        staged.sync()
        drive.files.make_lasting_folders([own.path])
        drive.files.publish(staged, own.path)
        drive.files.sync_names([own.path])
    finally:
        staged.discard()
    drive.changes.replace_entry(key, own)
    return own
