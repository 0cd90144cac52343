"""Upload plan: the next step of a pending upload, given what the remote storage has. Pure.

A pending upload goes through these states, of which the catalog keeps the first two:

- *recorded*: a put or a deletion was committed, with its `Base`, the remote state that it may replace.
- *begun*: the remote object was looked at, and a request is about to replace what was seen (`Attempt`).
- *stamped*: the remote object has the stamp of this version. It is seen by the next look if the answer was lost.
- *done*, *conflict*, *replaced* or *obsolete*: see `Step`.

Each upload begins with a look, and replaces only what was seen. So of two nodes that upload versions of one name, the
older never replaces the newer, and what others write meanwhile is noticed. The stamp names the bucket and the version:
an older version of this bucket may always be replaced, whatever the base says, because the store has ordered the two.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from typing import NamedTuple

from ais_loader.wire.reserved import REMOTE_ETAG, REMOTE_PENDING
from storage_node.remote.copies.object_metadata import STAMP_KEY
from storage_node.store.format import CatalogEntry, Version


class Base(NamedTuple):
    """Remote states that an upload may replace; any if neither is given."""

    etag: str = ""
    is_absent: bool = False

    @property
    def is_any(self) -> bool:
        return not self.etag and not self.is_absent

    def encode(self) -> str:
        """Return the value of the REMOTE_PENDING metadata."""
        return json.dumps([self.etag, self.is_absent], separators=(",", ":"))

    @classmethod
    def decode(cls, text: str) -> Base:
        """Return the base of a pending entry; any for a text that cannot be read."""
        try:
            etag, is_absent = json.loads(text)
        except ValueError:
            return ANY
        return cls(str(etag), bool(is_absent))


ANY = Base()


def base_of(entry: CatalogEntry | None) -> Base:
    """Return the base of a conditional write that replaces this entry of the catalog, whose condition holds."""
    if entry is None:
        return Base(is_absent=True)
    metadata = entry.metadata
    if REMOTE_PENDING in metadata:
        base = Base.decode(metadata[REMOTE_PENDING])
        # A pending deletion may be done before this write is uploaded.
        return base if base.is_any or not entry.is_tombstone else base._replace(is_absent=True)
    if entry.is_tombstone:
        return Base(is_absent=True)
    return Base(metadata.get(REMOTE_ETAG, ""))


class Stamp(NamedTuple):
    """Mark of an upload in the remote object's metadata."""

    bucket_uuid: bytes
    version: Version

    def encode(self) -> str:
        return f"{self.bucket_uuid.hex()}:{self.version}"

    @classmethod
    def decode(cls, metadata: Mapping[str, str]) -> Stamp | None:
        """Return the stamp of a remote object; None if it has none."""
        bucket, _, version = next((value for key, value in metadata.items() if key.lower() == STAMP_KEY), "").partition(
            ":"
        )
        try:
            epoch, counter, node = version.split(".")
            return cls(bytes.fromhex(bucket), Version(int(epoch), int(counter), int(node)))
        except ValueError:
            return None


class FoundObject(NamedTuple):
    """A remote object, as a look has found it."""

    etag: str
    stamp: Stamp | None = None


class Attempt(NamedTuple):
    """A request that may have been done: the ETag of what it was to replace, "" for nothing."""

    etag: str

    def encode(self) -> bytes:
        return json.dumps(self.etag).encode()

    @classmethod
    def decode(cls, value: bytes) -> Attempt | None:
        """Return the attempt of a journal record; None if no request was begun, or the record cannot be read."""
        try:
            etag = json.loads(value) if value else None
        except (ValueError, RecursionError):
            return None
        return cls(etag) if isinstance(etag, str) else None


class PendingUpload(NamedTuple):
    """A put or a deletion that is to be uploaded."""

    bucket_uuid: bytes
    name: str
    version: Version
    base: Base
    is_deletion: bool
    size_bytes: int
    modified_ns: int

    @property
    def stamp(self) -> Stamp:
        return Stamp(self.bucket_uuid, self.version)


def pending_upload(bucket_uuid: bytes, name: str, entry: CatalogEntry) -> PendingUpload | None:
    """Return the upload that a catalog entry asks for; None if it asks for none."""
    mark = entry.metadata.get(REMOTE_PENDING)
    if mark is None:
        return None
    base = Base.decode(mark)
    return PendingUpload(
        bucket_uuid, name, entry.version, base, entry.is_tombstone, entry.size_bytes, entry.modified_ns
    )


class Step(enum.Enum):
    SEND = "send"
    """Send a request that replaces exactly what was seen."""
    DONE = "done"
    """The remote storage has it."""
    CONFLICT = "conflict"
    """Others have changed the object, against the write's condition: nothing is sent."""
    REPLACED = "replaced"
    """Others have changed the object after a request that may have been done: theirs is the last write."""
    OBSOLETE = "obsolete"
    """The remote storage has a newer version of this bucket: another node has uploaded it. This one is removed."""

    @property
    def is_over(self) -> bool:
        """Whether the upload has ended, as far as the store is concerned."""
        return self in (Step.DONE, Step.REPLACED)


def next_step(upload: PendingUpload, seen: FoundObject | None, attempt: Attempt | None) -> Step:
    """Return the next step of an upload.

    Args:
        seen: the remote object; None if there is none.
        attempt: the last request of this version that was begun; None if none was.
    """
    stamp = seen.stamp if seen is not None else None
    is_own = stamp is not None and stamp.bucket_uuid == upload.bucket_uuid
    if stamp is not None and is_own:
        if stamp.version > upload.version:
            return Step.OBSOLETE
        if stamp.version == upload.version and not upload.is_deletion:
            return Step.DONE
        return Step.SEND
    if seen is None and upload.is_deletion:
        return Step.DONE
    etag = seen.etag if seen is not None else ""
    if attempt is not None and attempt.etag != etag and upload.base.is_any:
        return Step.REPLACED
    if upload.base.is_any:
        return Step.SEND
    fits = upload.base.is_absent if seen is None else upload.base.etag == etag
    return Step.SEND if fits else Step.CONFLICT
