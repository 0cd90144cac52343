"""Requests of AIStore's API, independent of the HTTP server: the providers of buckets that they name, and their errors.

The texts of errors matter: AIStore's SDK chooses the exception to raise by them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ais_loader import errors
from ais_loader.errors import BucketNotFound
from ais_loader.objects.bucket import Bucket
from ais_loader.transport.base import BucketInfo

from ..request import Refusal, RequestHead, Response, name_of
from .recent_jobs import RecentJobs, recent_jobs

if TYPE_CHECKING:
    from ais_loader.objects.bucket import Bucket

    from .bodies import AisBody


@dataclass(slots=True)
class AisRequest(RequestHead):
    """A request that has been verified, and whose body has arrived."""

    base_url: str
    """The address at which the client has reached the gateway, such as `http://127.0.0.1:9000`."""
    rest: tuple[str, ...] = ()
    """Other components of the path, decoded."""
    provider: str = "ais"
    """The provider that the client named, in AIStore's longest form, or "ais"."""
    body: AisBody | None = None
    """None if the call takes none."""
    json: Any = None
    """The body of a call that takes JSON; None if there was none."""
    spool: str | None = None
    """Folder of temporary files; None for that of the system."""
    access_key: str = ""
    """The access key that the request comes from; "" for a token, and if everything is open."""
    needs_token: bool = False
    """Whether the gateway asks for a key or token."""

    @property
    def action(self) -> str:
        """The action that the body asks for; "" for none."""
        action = self.json.get("action") if isinstance(self.json, dict) else None
        return action if isinstance(action, str) else ""

    @property
    def value(self) -> dict[str, Any]:
        """The value of the action; empty if there was none. Raises AISError for one that is no object."""
        value = self.json.get("value") if isinstance(self.json, dict) else None
        if value is None or value == "":
            return {}
        if not isinstance(value, dict):
            raise AISError(400, f"{self.action}: the value must be an object")
        return value

    @property
    def recent_jobs(self) -> RecentJobs:
        """The jobs of this process that the client may list and stop."""
        return recent_jobs(self.client, self.access_key)

    @property
    def bucket_url(self) -> str:
        """The bucket in texts of errors; "" if the request names none."""
        return f"{self.provider}://{self.bucket}" if self.bucket else ""

    @property
    def url(self) -> str:
        """The object in texts of errors."""
        return f"{self.bucket_url}/{self.key}"

    @property
    def name(self) -> str:
        """The object's name in the store. Raises Refusal for one that no object can have."""
        return name_of(self.key)

    def open_bucket(self) -> Bucket:
        """Return the bucket. One that is named with a remote provider must have its place there. Raises AISError."""
        return self.named_bucket(self.bucket, self.provider)

    def named_bucket(self, name: str, provider: str = "ais", *, must_exist: bool = False) -> Bucket:
        """Return any bucket. Raises AISError if there is none of this name and provider, as far as that is checked."""
        bucket = self.client.bucket(name)
        if provider != "ais" or must_exist:
            try:
                info = bucket.info()
            except BucketNotFound:
                raise bucket_not_found(f"{provider}://{name}") from None
            if provider not in ("ais", provider_of(info)):
                raise bucket_not_found(f"{provider}://{name}")
        return bucket


def text_of(fields: Mapping[str, Any], name: str, where: str = "") -> str:
    """Return a field of a message, "" if it is missing. Raises AISError for one that is no string.

    `where`: beginning of the error's message.
    """
    value = fields.get(name)
    if value is not None and not isinstance(value, str):
        raise AISError(400, f"{where}{name}: need a string")
    return value or ""


def flag_of(fields: Mapping[str, Any], name: str) -> bool:
    """Return a field of a message, False if it is missing. Raises AISError for one that is no truth value."""
    value = fields.get(name)
    if value is not None and not isinstance(value, bool):
        raise AISError(400, f"{name}: need true or false")
    return bool(value)


def props_named(text: str, known: frozenset[str]) -> frozenset[str]:
    """Return the properties of an object that a request asks for. Raises AISError for an unknown one."""
    names = frozenset(one.strip() for one in text.split(",") if one.strip())
    if unknown := names - known:
        raise AISError(400, f"unknown property {min(unknown)[:40]!r} of an object")
    return names


def text_response(text: str, status: int = 200) -> Response:
    return Response(status, {"content-type": "text/plain; charset=utf-8"}, text.encode())


def json_response(value: object, status: int = 200) -> Response:
    return Response(status, {"content-type": "application/json"}, json.dumps(value).encode())


_ALIASES = {
    "": "ais",
    "ais": "ais",
    "aws": "aws",
    "s3": "aws",
    "gcp": "gcp",
    "gs": "gcp",
    "azure": "azure",
    "az": "azure",
    "oci": "oci",
    "oc": "oci",
    "ht": "ht",
}
_OF_SCHEME = {"s3": "aws", "gs": "gcp", "az": "azure", "azure": "azure", "http": "ht", "https": "ht"}
_BUCKET = re.compile(r"(?!\.)[A-Za-z0-9_.-]{1,63}(@[A-Za-z0-9_.-]{1,63})?\Z")


def provider_named(query: Mapping[str, str], parameter: str = "provider") -> str:
    """Return the provider that a query names. Raises AISError for an unknown one, and for a namespace."""
    text = query.get(parameter, "")
    if text not in _ALIASES:
        raise AISError(400, f"invalid provider {text[:40]!r}", "ErrInvalidBackendProvider")
    if query.get("namespace", "") not in ("", "@#"):
        raise AISError(400, f"namespace {query['namespace'][:80]!r}: buckets have no namespaces here")
    return _ALIASES[text]


def provider_of(info: BucketInfo) -> str:
    """Return the provider of a bucket: "ais" unless it is remote."""
    if info.remote is None:
        return "ais"
    return _OF_SCHEME.get(str(info.remote.url).partition("://")[0].lower(), "ais")


def check_bucket_name(name: str) -> None:
    """Raise AISError unless `name` is that of a bucket, or of one of its snapshots."""
    if not name:
        raise AISError(400, "the name of the bucket is missing")
    if not _BUCKET.match(name):
        raise AISError(400, f"bucket name {name[:80]!r}: need 1 to 63 letters, digits, '-', '_' and '.'")


def keeps_copies(bucket: Bucket) -> bool:
    """Whether reads of a remote bucket may be answered from stored copies that are not the latest."""
    remote = bucket.info().remote
    return remote is not None and remote.validate != "always"


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
