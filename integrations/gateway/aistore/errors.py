"""Errors of AIStore's API. Their texts matter: its SDK chooses the exception to raise by them."""

from __future__ import annotations

import json

from ais_loader import errors

from ..errors import Refusal
from ..request import Response

RETRY_AFTER_S = 1
_MAX_HEADER_BYTES = 4096


class AISError(Refusal):
    """A refusal in AIStore's terms: a status, and a message that names the bucket or object as `ais://BUCKET/OBJECT`.

    `code` is the name of the error's type in AIStore. Its clients show it, and decide nothing by it.
    """

    def __init__(self, status: int, message: str, code: str = "", *, headers: dict[str, str] | None = None) -> None:
        super().__init__(code or _CODES.get(status, "ErrGeneric"), message, status, headers)


_CODES = {400: "ErrBadRequest", 401: "ErrUnauthorized", 403: "ErrForbidden", 404: "ErrNotFound", 501: "ErrUnsupp"}


def bucket_not_found(url: str) -> AISError:
    """Return the refusal for a bucket that is not there. `url` is such as `ais://BUCKET`."""
    code = "ErrBckNotFound" if url.startswith("ais://") else "ErrRemoteBckNotFound"
    return AISError(404, f'bucket "{url}" does not exist', code)


def object_not_found(url: str) -> AISError:
    """Return the refusal for an object that is not there. `url` is such as `ais://BUCKET/OBJECT`."""
    return AISError(404, f"{url} doesn't exist", "ErrObjNotFound")


def unsupported(what: str) -> AISError:
    """Return the refusal of a call that has no meaning here."""
    return AISError(501, f"{what}: not supported by this store", "ErrUnsupp")


def range_error(message: str, size_bytes: int | None = None) -> AISError:
    headers = {} if size_bytes is None else {"content-range": f"bytes */{size_bytes}"}
    return AISError(416, message, "ErrRangeNotSatisfiable", headers=headers)


# The first class that fits decides, so that derived classes come before their bases.
_STATUSES: tuple[tuple[type[errors.LoaderError], int], ...] = (
    (errors.NotFound, 404),
    (errors.BucketExists, 409),
    (errors.TransformExists, 409),
    (errors.RangeError, 416),
    (errors.SnapshotReadOnly, 403),
    (errors.Unsupported, 501),
    (errors.InvalidRequest, 400),
    (errors.AccessDenied, 403),
    (errors.ObjectDenied, 403),
    (errors.VersionConflict, 409),
    (errors.CorruptObject, 422),
    (errors.LibraryMissing, 501),
    (errors.ArchiveUnsupported, 501),
    (errors.ArchiveTooLarge, 413),
    (errors.ArchiveError, 400),
    (errors.TransformError, 422),
    (errors.SourceUnreadable, 403),
    (errors.SourceChanged, 409),
    (errors.PromoteIncomplete, 409),
    (errors.StoreReadOnly, 403),
    (errors.DriveFull, 507),
    (errors.QuotaExceeded, 507),
    (errors.RemoteDenied, 403),
    (errors.Overloaded, 429),
)


def of_store(error: errors.LoaderError, bucket_url: str, name: str) -> AISError:
    """Return the refusal for an error of the store.

    Args:
        bucket_url: The bucket of the call, such as `ais://BUCKET`; "" for none.
        name: The object of the call; "" for none.
    """
    if isinstance(error, errors.BucketNotFound) and bucket_url:
        return bucket_not_found(bucket_url)
    if isinstance(error, errors.MemberNotFound) and name:
        return AISError(404, f"{error} does not exist in {bucket_url}/{name}", "ErrNotFound")
    if isinstance(error, errors.ObjectNotFound) and name:
        return object_not_found(f"{bucket_url}/{name}")
    for kind, status in _STATUSES:
        if isinstance(error, kind):
            named = f"{bucket_url}/{name}: " if name and bucket_url else f"{bucket_url}: " if bucket_url else ""
            return AISError(status, f"{named}{error}", f"Err{type(error).__name__}")
    # All others may succeed when they are tried again.
    return AISError(503, str(error), f"Err{type(error).__name__}")


def error_response(error: Refusal, method: str, path: str, remote_addr: str) -> Response:
    """Return the answer that tells the client of an error."""
    headers = {"content-type": "application/json", "x-content-type-options": "nosniff", **error.headers}
    if error.status in (429, 503):
        headers["retry-after"] = str(RETRY_AFTER_S)
    document = {
        "tcode": error.code,
        "message": error.message,
        "method": method,
        "url_path": path,
        "remote_addr": remote_addr,
        "caller": "",
        "node": "gateway",
        "status": error.status,
    }
    text = json.dumps(document)
    if method == "HEAD":
        headers["hdr-error"] = text if len(text) <= _MAX_HEADER_BYTES else json.dumps({**document, "url_path": ""})
        return Response(error.status, headers)
    return Response(error.status, headers, text.encode() + b"\n")
