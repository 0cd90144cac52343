"""Opening of a pool: finds the drives among folders, selects the current store record, and opens the drives.

A drive that is missing or cannot be opened is left out with the reason, as long as another one works; operations that
need it fail with that reason. A probable mistake of the caller (a drive of another store, a folder with foreign files,
a store that is already open for writing) makes opening fail.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ais_loader.errors import (
    DriveFailed,
    DriveFull,
    InvalidRequest,
    LoaderError,
    StoreFormatError,
    StoreLocked,
    StoreNotFound,
    StoreReadOnly,
)
from storage_node.store import store_record as records
from storage_node.store.archives.open_archives import ShardLimits
from storage_node.store.drive import identity as identities
from storage_node.store.drive.drive import Drive, Durability
from storage_node.store.drive.identity import DriveIdentity, not_a_folder
from storage_node.store.drive.upkeep import Upkeep
from storage_node.store.drive.version_clock import VersionClock
from storage_node.store.failpoints import failpoint
from storage_node.store.files.growing_file import sync_folder
from storage_node.store.files.object_files import drive_error
from storage_node.store.permissions import FOLDER_MODE, close_to_others
from storage_node.store.quotas import Quotas
from storage_node.store.store_record import StoreRecord

log = logging.getLogger(__name__)

_MAY_BE_MISSING = (DriveFailed, DriveFull, StoreFormatError, StoreReadOnly)


@dataclass(frozen=True, slots=True)
class OpenDrives:
    """Result of opening. `drives` and `problems` are in the order of `record.drives`; one of the two is None at each
    position."""

    record: StoreRecord
    drives: list[Drive | None]
    problems: list[str | None]
    left_out: dict[Path, str]
    """Folders that are no longer, or not yet, part of the store, each with the reason."""


@dataclass(frozen=True, slots=True)
class DriveOptions:
    """Options that are common to all drives of one store."""

    writable: bool
    upkeep: Upkeep
    """Upkeep of the store, if it is open for writing."""
    durability: Durability = "process"
    shard_limits: ShardLimits | None = None
    """Limits of each drive."""
    clock: VersionClock = field(default_factory=VersionClock)
    """Version clock of the store, if it is open for writing."""
    quotas: Quotas = field(default_factory=Quotas)
    """Quotas of the store's buckets, if it is open for writing."""

    def open(self, root: Path, identity: DriveIdentity, record: StoreRecord) -> Drive:
        """Open a drive. Raises what `Drive` raises."""
        drive = Drive(
            root,
            identity,
            writable=self.writable,
            new=record.is_unchanged or identity.drive_uuid not in record.drives,
            durability=self.durability,
            epoch=record.epoch,
            shard_limits=self.shard_limits,
            clock=self.clock,
            wake=self.upkeep.wake,
        )
        if self.writable:
            try:
                self.count(drive, record)
            except BaseException:
                drive.close()
                raise
            self.upkeep.add(drive)
        return drive

    def count(self, drive: Drive, record: StoreRecord) -> None:
        """Have a drive that has no commits yet count the buckets with a quota, and no others. Raises LoaderError."""
        with_quota = {bucket.uuid_bytes for bucket in record.buckets.values() if bucket.has_quota}
        drive.changes.usage.join(self.quotas, drive.identity.drive_uuid, with_quota)


def drive_folders(paths: Sequence[str | os.PathLike[str]]) -> list[Path]:
    """Return absolute paths, all different. Raises InvalidRequest."""
    roots = [Path(os.path.abspath(os.fspath(path))) for path in paths]
    if not roots or len(set(roots)) != len(roots):
        raise InvalidRequest(f"need one or more different drive folders, got {[str(root) for root in roots]}")
    return roots


def open_drives(roots: Sequence[Path], options: DriveOptions) -> OpenDrives:
    """Open the drives of the store in these folders. A writer creates a store if there is none.

    Raises StoreNotFound, StoreLocked, StoreReadOnly, StoreFormatError, DriveFull, DriveFailed.
    """
    if not options.writable:
        folders = _look(roots)
        if _never_used(folders.roots, folders.known):
            raise StoreNotFound(f'no store at {_listed(roots)}; look at the path, or mode="a" creates one')
        return _open_known(folders, options)
    with _only_opener(roots):
        folders = _look(roots)
        if _never_used(folders.roots, folders.known):
            folders.known = _create(folders.roots)
        for root in folders.known:
            close_to_others(root)
        return _open_known(folders, options)


@dataclass(slots=True)
class _Folders:
    roots: list[Path]
    """Folders that are readable and not left out."""
    known: dict[Path, DriveIdentity]
    """Those of them that are drives already."""
    left_out: dict[Path, str]
    unreadable: list[str]
    """Error messages of the folders that cannot be read."""


def _look(roots: Sequence[Path]) -> _Folders:
    """Classify the folders. Raises StoreFormatError, and DriveFailed if no folder can be read."""
    found = _Folders([], {}, {}, [])
    problem: LoaderError | None = None
    for root in roots:
        try:
            reason = identities.left(root)
            identity = identities.read(root) if reason is None else None
        except OSError as error:
            problem = drive_error(error, root, "reading its identity")
            found.unreadable.append(str(problem))
            continue
        if reason is not None:
            found.left_out[root] = reason
            continue
        found.roots.append(root)
        if identity is not None:
            found.known[root] = identity
    if problem is not None and not found.known:
        raise problem
    if not found.roots:
        raise StoreFormatError("; ".join(found.left_out.values()))
    return found


def _open_known(folders: _Folders, options: DriveOptions) -> OpenDrives:
    roots, known, left_out = folders.roots, folders.known, folders.left_out
    record = newest_record(known)
    left_out = {**left_out, **_strangers(known, record, mend=options.writable)}
    known = {root: identity for root, identity in known.items() if root not in left_out}
    roots = [root for root in roots if root not in left_out]
    by_uuid = _by_uuid(roots, known, record)
    drives: list[Drive | None] = []
    problems: list[str | None] = []
    first_error: LoaderError | None = None
    try:
        for drive_uuid in record.drives:
            drive, problem = None, None
            if drive_uuid not in by_uuid:
                problem = f"drive {drive_uuid} is not among the folders given, or not mounted"
                if folders.unreadable:
                    problem = f"drive {drive_uuid} is not among the folders that can be read; {folders.unreadable[0]}"
            else:
                root = by_uuid[drive_uuid]
                try:
                    drive = options.open(root, known[root], record)
                except _MAY_BE_MISSING as error:
                    first_error, problem = first_error or error, str(error)
            drives.append(drive)
            problems.append(problem)
        if first_error is not None and not any(drives):
            raise first_error
    except BaseException:
        for drive in drives:
            if drive is not None:
                drive.close()
        raise
    return OpenDrives(record, drives, problems, left_out)


def _strangers(known: dict[Path, DriveIdentity], record: StoreRecord, *, mend: bool) -> dict[Path, str]:
    """Return drives that have left the store, and folders whose addition was interrupted, with reasons."""
    found: dict[Path, str] = {}
    for root, identity in known.items():
        how = record.gone.get(identity.drive_uuid)
        if identity.store_uuid != record.store_uuid or identity.drive_uuid in record.drives:
            continue
        if how is not None:
            found[root] = f"{root} is drive {identity.drive_uuid}, which was {how}; empty the folder to use it again"
            if how == "retired" and mend:
                with contextlib.suppress(OSError):  # the store record has it as well
                    identities.mark_left(root, identity)
        elif is_blank(root):
            found[root] = f"{root} was only about to be added to the store; add it again"
    return found


def is_blank(root: Path) -> bool:
    """Whether a drive contains no objects and never did."""
    objects = root / "objects"
    return not objects.is_dir() or not any(objects.iterdir())


def new_drive_folder(root: Path, record: StoreRecord) -> DriveIdentity | None:
    """Return the identity of a folder from an interrupted addition; None for an empty or missing folder.

    Raises StoreFormatError, DriveFailed, and InvalidRequest for a drive of this store.
    """
    try:
        found = identities.read(root)
    except OSError as error:
        raise drive_error(error, root, "reading its identity") from error
    if found is None:
        return None
    if found.store_uuid != record.store_uuid:
        raise StoreFormatError(f"{root} is a drive of another store, {found.store_uuid}; give an empty or new folder")
    if found.drive_uuid in record.drives:
        raise InvalidRequest(f"{root} is a drive of this store already, {found.drive_uuid}")
    if found.drive_uuid in record.gone or not is_blank(root):
        how = record.gone.get(found.drive_uuid, "in use")
        raise StoreFormatError(
            f"{root} is drive {found.drive_uuid}, which was {how}, with what it held then; empty the folder to add it"
        )
    return found


def find_drive(roots: Sequence[Path], drive_uuid: str, *, beside: bool = False) -> Path | None:
    """Return the folder of a drive among these or, with `beside`, also among their sibling folders."""
    folders = list(roots)
    if beside:
        for parent in dict.fromkeys(root.parent for root in roots):
            with contextlib.suppress(OSError):
                folders += sorted(parent.iterdir())
    for folder in dict.fromkeys(folders):
        with contextlib.suppress(StoreFormatError, OSError):
            found = identities.read(folder) if (folder / identities.FILE_NAME).exists() else None
            if found is not None and found.drive_uuid == drive_uuid:
                return folder
    return None


def open_beside(record: StoreRecord, before: StoreRecord, roots: Sequence[Path], options: DriveOptions) -> list[Drive]:
    """Open drives that a writer has added beside the others. For readers."""
    found: list[Drive] = []
    for drive_uuid in record.drives:
        if drive_uuid not in before.drives:
            root = find_drive(roots, drive_uuid, beside=True)
            with contextlib.suppress(LoaderError):  # its names raise DriveFailed
                if root is not None:
                    found.append(options.open(root, DriveIdentity(drive_uuid, record.store_uuid), record))
    return found


def newest_record(known: dict[Path, DriveIdentity]) -> StoreRecord:
    """Return the record with the highest epoch and revision. Raises StoreFormatError if no drive has a readable one."""
    found: list[StoreRecord] = []
    faults: list[str] = []
    for root, identity in known.items():
        try:
            record = records.read(root)
        except (StoreFormatError, OSError) as error:
            faults.append(str(error))
            continue
        if record is None:
            faults.append(f"{root}: no record")
        elif record.store_uuid != identity.store_uuid:
            faults.append(f"{root}: the record is that of another store")
        else:
            found.append(record)
    if not found:
        raise StoreFormatError(
            f"no drive has a readable record of the store ({'; '.join(faults)}); `ais-loader doctor --rebuild` makes "
            "one from what the drives hold"
        )
    return max(found, key=lambda record: record.order)


def _by_uuid(roots: Sequence[Path], known: dict[Path, DriveIdentity], record: StoreRecord) -> dict[str, Path]:
    stores = {identity.store_uuid for identity in known.values()}
    if len(stores) > 1:
        raise StoreFormatError(f"the drives belong to {len(stores)} different stores: {', '.join(map(str, known))}")
    if strangers := [str(root) for root, identity in known.items() if identity.drive_uuid not in record.drives]:
        raise StoreFormatError(f"{', '.join(strangers)}: not among the drives of store {record.store_uuid}")
    for root in roots:
        # A folder that does not exist is a drive that is not mounted; so may be an empty one.
        if root not in known and len(known) == len(record.drives):
            raise StoreFormatError(f"{root} is new, but store {record.store_uuid} has its {len(known)} drives already")
    by_uuid = {identity.drive_uuid: root for root, identity in known.items()}
    if len(by_uuid) != len(known):
        raise StoreFormatError(f"two of these folders are copies of the same drive: {', '.join(map(str, known))}")
    return by_uuid


def _never_used(roots: Sequence[Path], known: dict[Path, DriveIdentity]) -> bool:
    """Whether nothing was ever stored. Records are written after all identities, and folders after all records."""
    return not any(
        (root / name).exists()
        for root in {*roots, *known}
        for name in (records.FILE_NAME, "catalog", "objects", "staging")
    )


def _create(roots: Sequence[Path]) -> dict[Path, DriveIdentity]:
    """Create a store in empty folders."""
    store_uuid = uuid.uuid4().hex
    known = {root: identities.create(store_uuid) for root in roots}
    record = StoreRecord(store_uuid, tuple(identity.drive_uuid for identity in known.values()))
    try:
        for root, identity in known.items():
            make_folder(root)
            identities.write(root, identity)
            failpoint("create.identity")
        for root in roots:
            records.write(root, record)
    except OSError as error:
        raise drive_error(error, root, "creating a store") from error
    log.warning("made a new store at %s", _listed(roots))  # visible without logging set up: the path may be mistyped
    return known


def _listed(roots: Sequence[Path]) -> str:
    return ", ".join(map(str, roots))


def make_folder(root: Path) -> None:
    """Create a folder with all its parents, durably. It is closed to other users; its parents follow the umask."""
    missing = [folder for folder in (root, *root.parents) if not folder.exists()]
    root.mkdir(FOLDER_MODE, parents=True, exist_ok=True)
    for folder in missing:
        sync_folder(folder.parent)


@contextlib.contextmanager
def _only_opener(roots: Sequence[Path]) -> Iterator[None]:
    """Let one of several processes that open a store for writing at once examine it.

    All lock the same folder, the first one in order that exists. Whoever creates the store makes the first one before
    the others, so the choice is made again with the lock.
    """
    in_order, root = sorted(roots), None
    with contextlib.ExitStack() as held:
        while (chosen := next((one for one in in_order if one.is_dir()), in_order[0])) != root:
            held.close()
            root = chosen
            held.enter_context(_opening(root))
        yield


@contextlib.contextmanager
def _opening(root: Path) -> Iterator[None]:
    try:
        make_folder(root)
        fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except (NotADirectoryError, FileExistsError):
        raise not_a_folder(root) from None
    except OSError as error:
        raise drive_error(error, root, "opening a store") from error
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            message = f"{root} is just being opened for writing by somebody else; one writer at a time"
            raise StoreLocked(message) from None
        yield
    finally:
        os.close(fd)
