"""Denied objects of a store: denies and allows names and contents, and lists what is denied.

Names are denied on their drives (drive/denied_names.py). Denied contents are in the store record: whoever writes one
gets ObjectDenied, and objects that have one are denied by name when the content is denied, also those that only
snapshots see. That comes before the record, so that a crash leaves either everything or a call to repeat.
"""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ais_loader.errors import InvalidName, LoaderError
from ais_loader.wire.denied import checked_contents, checked_reason, content_of, with_contents
from ais_loader.wire.generated import ais_contents_pb2 as pb
from ais_loader.wire.reserved import ALLOWED, DENIED, DENIED_CONTENT
from storage_node.store import format as fmt
from storage_node.store.buckets import Buckets
from storage_node.store.drive.denied_names import denied_after
from storage_node.store.drive.drive import Drive
from storage_node.store.format import CatalogEntry
from storage_node.store.names import HIDDEN, check_object_name
from storage_node.store.pool.drive_set import DriveSet
from storage_node.store.record_keeper import RecordKeeper
from storage_node.store.write import WriteRouter

MAX_LISTED = 1000
"""Maximum number of names on a page."""
_DENIED_AT_ONCE = 1000

if TYPE_CHECKING:
    from storage_node.store.store import Store


class DeniedName(NamedTuple):
    name: str
    entry: CatalogEntry
    """Tombstone, whose metadata says why."""
    drive: Drive
    row: pb.DeniedOnDrive
    """Where the bytes were on the drive."""


class DeniedObjects:
    def __init__(self, drives: DriveSet, record: RecordKeeper, buckets: Buckets, changes: WriteRouter) -> None:
        self._drives, self._record, self._buckets, self._changes = drives, record, buckets, changes
        self.content_error = changes.content_error
        self._lock = threading.Lock()  # held during a change of contents
        self._follow(record.current.denied)

    def deny(self, bucket: str, names: Sequence[str], reason: str) -> list[LoaderError | None]:
        """Deny names, of objects that exist or not. Returns None or the error for each, in order.

        Raises InvalidName, InvalidRequest, BucketNotFound, SnapshotReadOnly, StoreReadOnly, Closed.
        """
        return self._write(bucket, names, {DENIED: checked_reason(reason)})

    def allow(self, bucket: str, names: Sequence[str], _: str = "") -> list[LoaderError | None]:
        """End the denials of names; those that are not denied stay as they are. Returns and raises as `deny`."""
        return self._write(bucket, names, {ALLOWED: ""})

    def _write(self, bucket: str, names: Sequence[str], metadata: dict[str, str]) -> list[LoaderError | None]:
        check_denied_names(names)
        self._drives.require_writable()
        bucket_uuid, different = self._buckets.to_change(bucket).uuid_bytes, list(dict.fromkeys(names))
        done: dict[str, LoaderError | None] = {}
        for at in range(0, len(different), _DENIED_AT_ONCE):
            some = different[at : at + _DENIED_AT_ONCE]
            found = self._changes.write_tombstones(
                bucket_uuid, [(name, None, b"") for name in some], fmt.encode_metadata(metadata)
            )
            errors = (result if isinstance(result, LoaderError) else None for result in found)
            done.update(zip(some, errors, strict=True))
        return [done[name] for name in names]

    def knows(self, bucket_uuid: bytes, name: str) -> bool:
        """Whether a drive has anything of a name, even if only snapshots see it. Raises DriveFailed, StoreFormatError,
        Closed."""
        retained = fmt.retained_prefix(bucket_uuid, name)
        return any(
            drive.newest(bucket_uuid, [name])[0] is not None or next(drive.catalog.scan(retained), None) is not None
            for drive in self._drives.live()
        )

    # -- contents

    def contents(self, bucket: str) -> Mapping[str, str]:
        """Return the denied contents of a bucket, with their reasons. Raises BucketNotFound."""
        return self._record.current.denied.get(self._buckets.get(bucket).uuid, {})

    def change_contents(self, bucket: str, denied: Sequence[str], allowed: Sequence[str], reason: str) -> None:
        """Deny contents, and the objects that have one of them, or allow contents again; their objects stay denied.

        Raises InvalidRequest, BucketNotFound, SnapshotReadOnly, StoreReadOnly, Closed, DriveFull, DriveFailed.
        """
        denied, allowed = checked_contents(denied), checked_contents(allowed)
        uuid = self._buckets.to_change(bucket).uuid
        known = self._record.current.denied.get(uuid, {})
        self.follow({uuid: with_contents(known, denied, allowed, reason)})

    def follow(self, wanted: Mapping[str, Mapping[str, str]], *, of_cluster: bool = False) -> None:
        """Deny exactly these contents from now on, by uuid of the bucket, and the objects that have them.

        Raises LoaderError; repeat it then.
        """
        with self._lock:
            before = self._record.current
            if all(before.denied.get(uuid) == contents for uuid, contents in wanted.items()):
                return
            self._drives.require_writable()
            with self._drives.placement_lock.alone():  # whoever writes one of them has ended, and is found below
                self._follow({**before.denied, **wanted})
            for uuid, contents in wanted.items():
                new = {one: why for one, why in contents.items() if one not in before.denied.get(uuid, {})}
                self._deny_objects(bytes.fromhex(uuid), new)
            with self._record.lock:
                current = self._record.current
                self._record.commit(current.changed(denied={**current.denied, **wanted}), whoever=of_cluster)

    def _follow(self, denied: Mapping[str, Mapping[str, str]]) -> None:
        found = {bytes.fromhex(uuid): frozenset(contents) for uuid, contents in denied.items() if contents}
        self._changes.denied_contents = found

    def _deny_objects(self, bucket_uuid: bytes, contents: Mapping[str, str]) -> None:
        found: dict[str, list[str]] = {content: [] for content in contents}
        for drive in self._drives.live() if contents else ():
            for name, value in drive.values(bucket_uuid):
                content = content_of(*fmt.content_of_value(value))
                if content in found and fmt.is_object(value):
                    found[content].append(name)
        for content, names in found.items():
            metadata = fmt.encode_metadata({DENIED: contents[content], DENIED_CONTENT: content})
            tombstones = [(name, None, b"") for name in dict.fromkeys(names)]
            for result in self._changes.write_tombstones(bucket_uuid, tombstones, metadata):
                if isinstance(result, LoaderError):
                    raise result

    # -- listing

    def names(self, bucket: str, start_after: str = "") -> Iterator[DeniedName]:
        """Iterate over the denied names of a bucket after `start_after`, in the order of their UTF-8 bytes. While
        objects move between drives, a name may be there twice.

        Raises BucketNotFound, DriveFailed, StoreFormatError, Closed.
        """
        self._drives.require_open()
        bucket_uuid = self._buckets.get(bucket).uuid_bytes
        found: list[Iterator[DeniedName]] = []
        for drive in self._drives.live():
            drive.catch_up()
            of_drive = denied_after(drive.catalog, bucket_uuid, start_after)
            found.append(DeniedName(name, entry, drive, row) for name, entry, row in of_drive)
        return heapq.merge(*found, key=lambda one: one.name.encode())


def check_denied_names(names: Iterable[str]) -> None:
    """Raise InvalidName unless all of these are names that clients give to objects."""
    for name in names:
        check_object_name(name)
        if name.startswith(HIDDEN):
            raise InvalidName(f"object name {name!r}: it is the store's own; deny the object that it belongs to")


def denied_page(store: Store, request: pb.ListDeniedRequest) -> pb.ListDeniedResponse:
    """Return what is denied in a bucket, as far as this store knows. Raises as `DeniedObjects.names`."""
    limit, last = min(request.limit or MAX_LISTED, MAX_LISTED), ""
    answer = pb.ListDeniedResponse()
    if not request.start_after:
        answer.content.update(store.denied.contents(request.bucket))
    # A page has all drives of a name, or none.
    found = itertools.groupby(store.denied.names(request.bucket, request.start_after), lambda one: one.name)
    for at, (name, of_drives) in enumerate(found):
        if at == limit:
            answer.next = last
            break
        last = name
        for _, entry, drive, row in of_drives:
            metadata = entry.metadata
            one = answer.name.add(name=name, reason=metadata.get(DENIED, ""), content=metadata.get(DENIED_CONTENT, ""))
            one.denied_ns = entry.modified_ns
            one.version.epoch, one.version.counter, one.version.node = entry.version
            one.drive.add(drive="" if store.hides_places else str(drive.root)).MergeFrom(row)
    return answer
