"""gRPC statuses of the store's errors, and the abort of a call with one of them."""

from __future__ import annotations

from typing import NoReturn, Protocol

import grpc

from ais_loader.wire.reserved import ERROR_KIND_KEY
from storage_node.batch.local_batch import StaleMap
from storage_node.cluster.replication.replica_set import TooFewCopies
from storage_node.store import errors
from storage_node.store.archives.errors import (
    ArchiveDamaged,
    ArchiveTooLarge,
    ArchiveUnsupported,
    LibraryMissing,
    MemberCorrupt,
    MemberNotFound,
    NotAnArchive,
)
from storage_node.store.stale_replicas import CopyInDoubt

MAX_DETAILS = 600
"""Characters of an error's message. They travel percent-encoded in the trailer, and one of more than 8 KiB is lost."""

_STATUS = {
    errors.InvalidName: grpc.StatusCode.INVALID_ARGUMENT,
    errors.InvalidRequest: grpc.StatusCode.INVALID_ARGUMENT,
    errors.ContentMismatch: grpc.StatusCode.INVALID_ARGUMENT,
    errors.RangeError: grpc.StatusCode.OUT_OF_RANGE,
    errors.BucketNotFound: grpc.StatusCode.NOT_FOUND,
    errors.ObjectNotFound: grpc.StatusCode.NOT_FOUND,
    errors.ObjectDeleted: grpc.StatusCode.NOT_FOUND,
    errors.BucketExists: grpc.StatusCode.ALREADY_EXISTS,
    errors.BucketNotEmpty: grpc.StatusCode.FAILED_PRECONDITION,
    errors.BucketHasSnapshots: grpc.StatusCode.FAILED_PRECONDITION,
    errors.SnapshotNotFound: grpc.StatusCode.NOT_FOUND,
    errors.SnapshotExists: grpc.StatusCode.ALREADY_EXISTS,
    errors.SnapshotReadOnly: grpc.StatusCode.FAILED_PRECONDITION,
    errors.Unsupported: grpc.StatusCode.FAILED_PRECONDITION,
    errors.VersionConflict: grpc.StatusCode.FAILED_PRECONDITION,
    errors.CorruptObject: grpc.StatusCode.DATA_LOSS,
    errors.DriveFull: grpc.StatusCode.RESOURCE_EXHAUSTED,
    TooFewCopies: grpc.StatusCode.UNAVAILABLE,
    errors.SourceRefused: grpc.StatusCode.FAILED_PRECONDITION,
    errors.SourceUnreadable: grpc.StatusCode.FAILED_PRECONDITION,
    MemberNotFound: grpc.StatusCode.NOT_FOUND,
    MemberCorrupt: grpc.StatusCode.DATA_LOSS,
    NotAnArchive: grpc.StatusCode.FAILED_PRECONDITION,
    ArchiveDamaged: grpc.StatusCode.FAILED_PRECONDITION,
    ArchiveUnsupported: grpc.StatusCode.FAILED_PRECONDITION,
    ArchiveTooLarge: grpc.StatusCode.FAILED_PRECONDITION,
    LibraryMissing: grpc.StatusCode.FAILED_PRECONDITION,
    CopyInDoubt: grpc.StatusCode.UNAVAILABLE,
    StaleMap: grpc.StatusCode.ABORTED,
}


class Context(Protocol):
    """What these services use of grpc.aio's context."""

    async def abort(
        self, code: grpc.StatusCode, details: str = ..., trailing_metadata: tuple[tuple[str, str], ...] = ...
    ) -> NoReturn: ...


async def abort(context: Context, error: errors.StoreError) -> NoReturn:
    """End the call with this error."""
    code = _STATUS.get(type(error), grpc.StatusCode.INTERNAL)
    message = str(error)
    if len(message) > MAX_DETAILS:
        message = message[: MAX_DETAILS - 3] + "..."
    await context.abort(code, message, ((ERROR_KIND_KEY, error.kind),))
