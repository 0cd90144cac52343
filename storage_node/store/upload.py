"""Upload: one object that is being written to a store, from its first byte until it becomes visible."""

from __future__ import annotations

from collections.abc import Callable

from ais_loader.errors import InvalidRequest, LoaderError
from storage_node.store.drive.drive import Drive
from storage_node.store.drive.pending import PendingObject
from storage_node.store.drive.preconditions import Condition
from storage_node.store.files.clone_or_copy import Taken, fill
from storage_node.store.files.object_files import drive_error
from storage_node.store.format import CatalogEntry, Version
from storage_node.store.pool.write_routing import PlacedChanges, StagedObject
from storage_node.store.write_memory import memory_of

MAX_METADATA_BYTES = 4096


class Upload:
    """Object that is being written. Belongs to one thread; `commit` or `abort` ends it, leaving the block aborts it."""

    def __init__(self, label: str, staged: StagedObject, changes: PlacedChanges) -> None:
        self.label = label
        self._changes = changes
        self._staged = staged
        self._pending: PendingObject | None = staged.pending
        self.taken: Taken = "copied"
        """Method by which `fill` got the bytes."""

    @property
    def drive(self) -> Drive:
        """Drive on which the object is staged."""
        return self._staged.drive

    @property
    def _open(self) -> PendingObject:
        if self._pending is None:
            raise InvalidRequest(f"the upload of {self.label} has been committed or aborted")
        return self._pending

    @property
    def has_ended(self) -> bool:
        """Whether it has been committed or aborted, so that nothing is left to abort."""
        return self._pending is None

    @property
    def of(self) -> tuple[bytes, str]:
        """The bucket's uuid, and the object's name."""
        return self._open.bucket_uuid, self._open.name

    @property
    def size_bytes(self) -> int:
        return self._open.file.size_bytes

    @property
    def checksum(self) -> int:
        """CRC-32C of the bytes written so far."""
        return self._open.file.checksum

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Append bytes. Raises DriveFull or DriveFailed, and aborts the upload."""
        pending = self._open
        try:
            pending.file.write(data)
            if self._staged.indexing is not None:
                self._staged.indexing.feed(data)
        except BaseException as error:
            self._abort_for(error)
            raise

    def fill(self, source_fd: int, go_on: Callable[[], None] = lambda: None) -> None:
        """Take all bytes of an open file by the cheapest method that the file systems support: sharing, or copying.

        If the object's file was linked, the bytes are there already. `go_on` is called regularly; if it raises, the
        upload is aborted. Raises SourceUnreadable, and what `write` raises.
        """
        indexing = self._staged.indexing

        def taken(piece: bytes) -> None:
            go_on()
            if indexing is not None and piece:
                indexing.feed(piece)

        pending = self._open
        try:
            self.taken = fill(pending.file, source_fd, taken)
        except BaseException as error:
            self._abort_for(error)
            raise

    @property
    def linked(self) -> bool:
        """Whether its file is a hard link to an existing one."""
        return self._open.file.linked

    def _abort_for(self, error: BaseException) -> None:
        """Abort, and raise the store's error for an OSError."""
        self.abort()
        if isinstance(error, OSError):
            raise drive_error(error, self.drive.root, "writing an object") from error

    def newest(self) -> CatalogEntry | None:
        """Return the current entry of this name, also a tombstone. Raises DriveFailed, StoreFormatError, Closed."""
        pending = self._open
        return self._changes.newest(pending.bucket_uuid, pending.name)

    def assign(self, version: Version, modified_ns: int = 0, writes: bytes = b"", *, is_copy: bool = False) -> None:
        """Set the version, time and write memory that all replicas have. It is committed if nothing newer exists.

        `is_copy`: see `PendingObject`.
        """
        pending = self._open
        pending.version, pending.modified_ns, pending.is_copy = version, modified_ns, is_copy
        pending.writes = writes or pending.writes

    def require(self, condition: Condition | None) -> None:
        """Set a condition on the current object at the commit: if it does not hold, `commit` raises VersionConflict.

        If another try of the same write has been committed, `commit` returns the result of that.
        """
        self._open.condition = condition
        if condition is not None and condition.write_id and not self._open.writes:
            self._open.writes = memory_of(condition.write_id)

    @property
    def condition(self) -> Condition | None:
        return self._open.condition

    def settled(self) -> CatalogEntry | None:
        """Return what another try of this write has committed, so that this one need not go on; None if it may.

        Raises VersionConflict if the condition no longer holds, OutcomeUnknown if that try's outcome is unknown, and
        what `newest` raises.
        """
        pending = self._open
        condition = pending.condition
        if condition is None or (condition.is_empty and not condition.began_ns):
            return None
        before = self.newest()
        settled = self.drive.changes.settled(pending, before)
        if isinstance(settled, LoaderError):
            raise settled
        return settled

    def commit(self) -> CatalogEntry:
        """Make the object visible, whole, replacing one of the same name. Returns the current entry.

        That is the object's, unless it brought a version that is not newer than what the store has: then nothing has
        changed, and the store's entry is returned, which may be a tombstone. Raises what `Drive.commit` raises,
        VersionConflict.
        """
        result = self._changes.commit([self.take()])[0]
        if isinstance(result, LoaderError):
            raise result
        return result

    def take(self) -> StagedObject:
        """Hand the staged object over to the caller, which commits it. Raises InvalidRequest."""
        _ = self._open  # raises
        self._pending = None
        return self._staged

    def abort(self) -> None:
        if self._pending is not None:
            self._pending.file.discard()
            self._pending = None

    def __enter__(self) -> Upload:
        return self

    def __exit__(self, *_: object) -> None:
        self.abort()


def checked_metadata(metadata: dict[str, str] | None) -> dict[str, str]:
    """Raise InvalidRequest unless `metadata` maps strings to strings and is small; otherwise return it."""
    metadata = metadata or {}
    size_bytes = 0
    for key, value in metadata.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise InvalidRequest(f"metadata maps str to str, got {key!r}: {value!r}")
        try:
            size_bytes += len(key.encode()) + len(value.encode())
        except UnicodeEncodeError:
            raise InvalidRequest(f"metadata {key!r}: a lone surrogate has no UTF-8 form") from None
    if size_bytes > MAX_METADATA_BYTES:
        raise InvalidRequest(f"metadata has {size_bytes:,} bytes, {MAX_METADATA_BYTES:,} are allowed")
    return metadata
