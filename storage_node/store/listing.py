"""Merged listing of several drives: every name once, with its newest entry.

A listing reads each drive as of one moment, and the moments differ. While objects move, an object that moves from a
drive that is read later to one that was read earlier would be missed. Every drive is then scanned twice, and all first
scans begin before the first second one. An object that exists all the time is in one of the two.

An entry on a drive that look-ups of its name do not search is not listed either; the doctor reports it.
"""

from __future__ import annotations

import functools
import heapq
import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

from ais_loader.errors import DriveFailed, LoaderError
from ais_loader.wire.names_block import after_folder
from storage_node.store.drive.drive import Drive
from storage_node.store.format import CatalogEntry
from storage_node.store.names import HIDDEN
from storage_node.store.pool.drive_set import DrivePlacement, DriveSet

Named = tuple[str, CatalogEntry]
T = TypeVar("T")
PAGE_BYTES = 1 << 20
"""Size of names and metadata after which a page of any listing ends, whatever the number of names: encoding it as a
message blocks a node's event loop for about a millisecond."""


_PASSED_NAMES = 32
"""Names of a folder that are passed over before a scan begins anew behind it, which takes about as long."""


def within(most_bytes: int, names: Iterable[str]) -> int:
    """Return how many of these names fit on a page of about `most_bytes` bytes: at least one, if there is one."""
    count = size_bytes = 0
    for count, name in enumerate(names, 1):  # noqa: B007 - the last one counts
        size_bytes += len(name)
        if size_bytes >= most_bytes:
            break
    return count


class CatalogPage(NamedTuple):
    """Page of a listing in name order: of objects, of names alone, or of the objects and folders of one level."""

    objects: Sequence[Named] = ()
    next: str | None = None
    """Name after which the next page begins; None if this is the last one."""
    in_doubt: Sequence[str] = ()
    """Names within the page that other nodes have to be asked for."""
    names: Sequence[bytes] = ()
    """In UTF-8, in place of `objects`."""
    folders: Sequence[tuple[str, str]] = ()
    """Each with the first name in it."""


def names_page(
    drives: DriveSet, bucket_uuid: bytes, prefix: str, start_after: str, most_bytes: int, *, skip_missing: bool
) -> CatalogPage | None:
    """Return names of about `most_bytes` bytes, as `merged` lists them without a cut; None while objects move between
    drives. Raises DriveFailed if a drive is missing, unless `skip_missing`, StoreFormatError, Closed."""

    def scanned(
        placement: DrivePlacement, found: Sequence[tuple[int, Drive]]
    ) -> list[tuple[int, list[bytes], bytes | None]]:
        each_bytes = max(1, most_bytes // max(1, len(found)))
        of_slots = () if placement.moving else found
        return [(slot, *drive.names(bucket_uuid, prefix, start_after, each_bytes)) for slot, drive in of_slots]

    placement, scans = _by_one_placement(drives, scanned, skip_missing=skip_missing)
    if placement.moving:
        return None
    end = min((last for _, _, last in scans if last is not None), default=None)
    found = []
    for slot, names, _ in scans:
        names = names if end is None else names[: bisect_right(names, end)]
        if len(placement.slots) > 1:
            owners = placement.owners(bucket_uuid, names)
            names = [name for name, owner in zip(names, owners, strict=True) if owner == slot]
        found.append(names)
    listed = found[0] if len(found) == 1 else sorted(itertools.chain(*found))
    if not prefix.startswith("/"):
        hidden = HIDDEN.encode()
        del listed[bisect_left(listed, hidden) : bisect_left(listed, hidden[:-1] + bytes([hidden[-1] + 1]))]
    return CatalogPage(next=None if end is None else end.decode(), names=listed)


def level_page(
    scan: Callable[..., Iterator[Named]], prefix: str, start_after: str, *, most: int, most_bytes: int
) -> CatalogPage:
    """Return the objects without a slash after the prefix's last one, and the folders of the others.

    `scan` begins after a name. It begins again behind a folder with many names, which `again` says.
    """
    objects: list[Named] = []
    folders: list[tuple[str, str]] = []
    top, after, size_bytes = prefix.rfind("/") + 1, start_after, 0
    for again in itertools.chain([False], itertools.repeat(True)):
        folder, passed = "", 0
        for name, entry in scan(after, again=again):
            if folder and name.startswith(folder):
                passed += 1
                if passed == _PASSED_NAMES:
                    break
                continue
            if len(objects) + len(folders) >= most or size_bytes >= most_bytes:
                return CatalogPage(objects, after, folders=folders)
            slash = name.find("/", top)
            if slash < 0:
                folder, after = "", name
                objects.append((name, entry))
                size_bytes += len(name) + len(entry.raw_metadata)
            else:
                folder, passed = name[: slash + 1], 0
                after = after_folder(folder)
                folders.append((folder, name))
                size_bytes += len(folder)
        else:
            break
    return CatalogPage(objects, folders=folders)


def merged(
    drives: DriveSet,
    bucket_uuid: bytes,
    prefix: str,
    start_after: str,
    *,
    tombstones: bool,
    cut: int | None = None,
    skip_missing: bool = False,
    again: bool = False,
) -> Iterator[Named]:
    """Iterate over entries in name order. Hidden objects are included only if `prefix` or `tombstones` ask for
    them.

    With a `cut`, iterate over what a snapshot sees; nothing moves while there are snapshots. Raises DriveFailed if a
    drive is missing, unless `skip_missing`, StoreFormatError, Closed.
    """

    def begun(placement: DrivePlacement, found: Sequence[tuple[int, Drive]]) -> list[Iterator[Named]]:
        everything, passes = tombstones or placement.moving, 2 if placement.moving else 1
        start = functools.partial(_start, everything=everything, cut=cut, again=again)
        return [
            _where_looked_for(placement, slot, bucket_uuid, start(drive, bucket_uuid, prefix, start_after))
            for _ in range(passes)
            for slot, drive in found
        ]

    placement, started = _by_one_placement(drives, begun, skip_missing=skip_missing)
    scans = started[0] if len(started) == 1 else heapq.merge(*started, key=_by_name_bytes)
    if not tombstones and not prefix.startswith("/"):
        scans = (pair for pair in scans if not pair[0].startswith(HIDDEN))
    if not placement.moving:
        yield from scans
        return
    for _, same in itertools.groupby(scans, key=_by_name_bytes):
        newest = max(same, key=lambda pair: pair[1].version)
        if tombstones or not newest[1].is_tombstone:
            yield newest


def _by_one_placement(
    drives: DriveSet, look: Callable[[DrivePlacement, Sequence[tuple[int, Drive]]], T], *, skip_missing: bool
) -> tuple[DrivePlacement, T]:
    """Return a placement of objects, and what `look` makes of its open drives, with their slots, while it holds."""
    while True:
        placement = drives.placement
        try:
            found = look(placement, _open_drives(drives, placement.slots, skip_missing=skip_missing))
        except LoaderError:
            if drives.still(placement):
                raise
            continue
        if drives.still(placement):
            return placement, found


def _open_drives(drives: DriveSet, slots: Iterable[int], *, skip_missing: bool) -> list[tuple[int, Drive]]:
    """Return the open drives with their slots. Raises DriveFailed, Closed."""
    drives.require_open()
    found: list[tuple[int, Drive]] = []
    for slot in slots:
        try:
            found.append((slot, drives.at(slot)))
        except DriveFailed as error:
            if not skip_missing:
                raise DriveFailed(
                    f'{error}; a listing would lack its objects. Bucket.objects(on_missing_drive="skip") and '
                    "`ais-loader ls --skip-missing-drives` list those of the other drives"
                ) from error
    return found


def _start(
    drive: Drive, bucket_uuid: bytes, prefix: str, start_after: str, *, everything: bool, cut: int | None, again: bool
) -> Iterator[Named]:
    """Begin a scan of the drive. The first entry has been read, which fixes the scan's snapshot."""
    if cut is not None:
        return drive.scan_at(bucket_uuid, prefix, start_after, cut)  # it does not change, so the moment does not matter
    scan = (drive.scan_all if everything else drive.scan)(bucket_uuid, prefix, start_after, again=again)
    return itertools.chain(list(itertools.islice(scan, 1)), scan)


def _where_looked_for(
    placement: DrivePlacement, slot: int, bucket_uuid: bytes, scan: Iterator[Named]
) -> Iterator[Named]:
    if len(placement.slots) == 1:
        return scan
    if placement.moving:
        return (pair for pair in scan if slot in placement.entry_slots(bucket_uuid, pair[0]).slots)
    return (pair for pair in scan if placement.owner(bucket_uuid, pair[0]) == slot)


def _by_name_bytes(pair: Named) -> bytes:
    return pair[0].encode()
