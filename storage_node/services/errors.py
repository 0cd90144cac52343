"""gRPC statuses of errors, and the abort of a call with an error."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NoReturn, Protocol

import grpc

from ais_loader import errors
from ais_loader.wire.reserved import ERROR_KIND_KEY
from storage_node.cluster.map.confirmation import NotConfirmed
from storage_node.context.errors import LeftBehind, NotAMember, TooFewCopies
from storage_node.security.rights.granted import GRANTED
from storage_node.security.rights.tokens import TokenRefused
from storage_node.store.buckets import ReplicaStale

TELL_S = 5.0
MAX_DETAILS = 600
"""Maximum length of an error's message, in characters. It is sent percent-encoded in the trailer, and a trailer of more
than 8 KiB is lost."""

_STATUS: dict[type[errors.LoaderError], grpc.StatusCode] = {
    errors.InvalidName: grpc.StatusCode.INVALID_ARGUMENT,
    errors.InvalidRequest: grpc.StatusCode.INVALID_ARGUMENT,
    errors.ContentMismatch: grpc.StatusCode.INVALID_ARGUMENT,
    errors.RangeError: grpc.StatusCode.OUT_OF_RANGE,
    errors.AccessDenied: grpc.StatusCode.PERMISSION_DENIED,
    TokenRefused: grpc.StatusCode.UNAUTHENTICATED,
    errors.BucketNotFound: grpc.StatusCode.NOT_FOUND,
    errors.ObjectNotFound: grpc.StatusCode.NOT_FOUND,
    errors.ObjectDeleted: grpc.StatusCode.NOT_FOUND,
    errors.ObjectReplaced: grpc.StatusCode.NOT_FOUND,
    errors.BucketExists: grpc.StatusCode.ALREADY_EXISTS,
    errors.BucketNotEmpty: grpc.StatusCode.FAILED_PRECONDITION,
    errors.BucketHasSnapshots: grpc.StatusCode.FAILED_PRECONDITION,
    errors.SnapshotNotFound: grpc.StatusCode.NOT_FOUND,
    errors.SnapshotExists: grpc.StatusCode.ALREADY_EXISTS,
    errors.SnapshotReadOnly: grpc.StatusCode.FAILED_PRECONDITION,
    errors.Unsupported: grpc.StatusCode.FAILED_PRECONDITION,
    errors.ObjectDenied: grpc.StatusCode.FAILED_PRECONDITION,
    errors.VersionConflict: grpc.StatusCode.FAILED_PRECONDITION,
    errors.CorruptObject: grpc.StatusCode.DATA_LOSS,
    errors.QuotaExceeded: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.DriveFull: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.NodeUnavailable: grpc.StatusCode.UNAVAILABLE,
    errors.RemoteUnavailable: grpc.StatusCode.UNAVAILABLE,
    errors.RemoteDenied: grpc.StatusCode.PERMISSION_DENIED,
    errors.RemoteLimitReached: grpc.StatusCode.PERMISSION_DENIED,
    NotConfirmed: grpc.StatusCode.UNAVAILABLE,
    errors.OutcomeUnknown: grpc.StatusCode.UNAVAILABLE,
    TooFewCopies: grpc.StatusCode.UNAVAILABLE,
    LeftBehind: grpc.StatusCode.UNAVAILABLE,
    errors.ClockOffset: grpc.StatusCode.UNAVAILABLE,
    errors.SilenceTimeout: grpc.StatusCode.DEADLINE_EXCEEDED,
    errors.Overloaded: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.SourceRefused: grpc.StatusCode.FAILED_PRECONDITION,
    errors.SourceUnreadable: grpc.StatusCode.FAILED_PRECONDITION,
    errors.MemberNotFound: grpc.StatusCode.NOT_FOUND,
    errors.MemberCorrupt: grpc.StatusCode.DATA_LOSS,
    errors.NotAnArchive: grpc.StatusCode.FAILED_PRECONDITION,
    errors.ArchiveDamaged: grpc.StatusCode.FAILED_PRECONDITION,
    errors.ArchiveUnsupported: grpc.StatusCode.FAILED_PRECONDITION,
    errors.ArchiveTooLarge: grpc.StatusCode.FAILED_PRECONDITION,
    errors.LibraryMissing: grpc.StatusCode.FAILED_PRECONDITION,
    errors.TransformNotFound: grpc.StatusCode.NOT_FOUND,
    errors.JobNotFound: grpc.StatusCode.NOT_FOUND,
    errors.TransformExists: grpc.StatusCode.ALREADY_EXISTS,
    errors.TransformRefused: grpc.StatusCode.PERMISSION_DENIED,
    errors.TransformFailed: grpc.StatusCode.FAILED_PRECONDITION,
    errors.TransformGone: grpc.StatusCode.FAILED_PRECONDITION,
    errors.TransformIncomplete: grpc.StatusCode.FAILED_PRECONDITION,
    errors.TransformTimeout: grpc.StatusCode.DEADLINE_EXCEEDED,
    ReplicaStale: grpc.StatusCode.UNAVAILABLE,
    NotAMember: grpc.StatusCode.ABORTED,
    errors.StaleMap: grpc.StatusCode.ABORTED,
    errors.WriteTooLate: grpc.StatusCode.ABORTED,
}
"""Status by exact class; INTERNAL for all others. Clients use the kind, which is in the trailer."""


def encodable(text: str) -> str:
    """Make a text encodable as UTF-8. A path with other bytes contains surrogate characters."""
    return text.encode(errors="backslashreplace").decode()


class Context(Protocol):
    """The methods of grpc.aio's context that these services use."""

    async def abort(
        self, code: grpc.StatusCode, details: str = ..., trailing_metadata: tuple[tuple[str, str], ...] = ...
    ) -> NoReturn: ...

    def invocation_metadata(self) -> Sequence[tuple[str, str | bytes]] | None: ...


async def abort(context: Context, error: errors.LoaderError, more: tuple[tuple[str, str], ...] = ()) -> NoReturn:
    """End the call with this error, and with additional trailing metadata `more`."""
    code = _STATUS.get(type(error), grpc.StatusCode.INTERNAL)
    message = encodable(str(error))
    if (granted := GRANTED.get()) is not None:
        message = granted.told(message)
    if len(message) > MAX_DETAILS:
        message = message[: MAX_DETAILS - 3] + "..."
    try:
        async with asyncio.timeout(TELL_S):
            await context.abort(code, message, ((ERROR_KIND_KEY, error.kind), *more))
    except TimeoutError:
        # The status is queued behind data that the client does not read. The call's resources must not be kept until it
        # does.
        raise asyncio.CancelledError from error
    raise AssertionError("gRPC's abort raises")
