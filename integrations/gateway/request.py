"""Requests and answers, independent of the HTTP server: names of objects that keys of S3 stand for, and the errors of
the interfaces, with those of the store as codes of S3.

Keys and names are the same, except for markers of folders. A marker is a key that ends with a slash, such as `d/`. No
object's name ends so. The marker is stored as `d/` followed by the character U+0001, which sorts before all others that
a name can have, so that keys and names have one order.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeAlias
from urllib.parse import unquote_to_bytes

from ais_loader import errors
from storage_node.store.names import object_name_fault

if TYPE_CHECKING:
    from ais_loader.objects.client import Client
    from ais_loader.values.source import Buffer

    from .bodies import Body

    Chunk: TypeAlias = Buffer | list[bytes | memoryview]
    """Bytes that are sent together."""


INLINE_BYTES = 64 << 10
"""Bodies of answers of at most this size are sent together with the headers, by the event loop."""


@dataclass(slots=True)
class RequestHead:
    """The line and headers of a request, what they name, and the client that the request may use."""

    method: str
    path: str
    """The path as it was sent, percent-encoded."""
    query: dict[str, str]
    """Parameters, decoded. Those without a value have an empty one."""
    headers: Mapping[str, str]
    """Headers by their names in lower case."""
    bucket: str
    key: str
    """The object's name as the client has it; "" if the path names none."""
    client: Client


@dataclass(slots=True)
class Request(RequestHead):
    """A request whose signature has been verified, and whose body has arrived."""

    body: Body | None = None
    """None if the call takes none."""
    with_members: bool = False
    """Keys such as `shard.tar/member` name members of archives."""
    owner: str = ""


class Incoming(Protocol):
    """The body of a request while it arrives."""

    def feed(self, pieces: Sequence[bytes]) -> None:
        """Take what arrived next. Raises Refusal."""

    def finish(self) -> None:
        """Check the whole body. Raises Refusal."""


@dataclass(slots=True)
class Response:
    """An answer. `body` is sent with its length if it is bytes, and otherwise with `size_bytes`, or in chunks."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | Iterator[Buffer] | Iterator[Chunk] = b""
    size_bytes: int | None = None
    """Length of a body that is an iterator. None: not known, and the body is sent in chunks."""
    repeated: tuple[tuple[str, str], ...] = ()
    """Further headers, whose names may repeat."""


def xml_response(body: bytes, status: int = 200) -> Response:
    """Return an answer with a document."""
    return Response(status, {"content-type": "application/xml"}, body)


def decoded(text: str, *, plus: bool = False) -> str:
    """Decode percent-encoding once. Raises S3Error unless the result is UTF-8."""
    try:
        return unquote_to_bytes(text.replace("+", " ") if plus else text).decode()
    except UnicodeError:
        raise S3Error("InvalidURI", f"{text[:200]!r} is not the percent-encoding of UTF-8") from None


def parse_json(data: bytes) -> Any:
    """Parse a document. Raises ValueError for what is not JSON in UTF-8, and for texts that UTF-8 does not have."""
    try:
        value = json.loads(data.decode(), parse_constant=_refuse_constant)
        if b"\\u" in data:  # half of a surrogate pair, which JSON can name
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("the document is nested too deeply") from None
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number of JSON")


def query_pairs(query: str) -> list[tuple[str, str]]:
    """Return the parameters of a query, decoded, in their order. Raises S3Error."""
    parts = [part.partition("=") for part in query.split("&") if part]
    if len(parts) > 100:
        raise S3Error("InvalidURI", "the query has too many parameters")
    return [(decoded(name, plus=True), decoded(value, plus=True)) for name, _, value in parts]


MARKER = "\x01"
_AFTER = "\U0010ffff"


def name_of(key: str) -> str:
    """Return the object's name. Raises S3Error for a key that no object can have, with the reason."""
    if key.endswith("/" + MARKER):
        raise S3Error("InvalidArgument", f"key {key[:80]!r}: the gateway keeps names that end so to itself")
    if key.startswith("/"):
        raise S3Error("InvalidArgument", f"key {key[:80]!r}: it begins with '/'")
    name = key + MARKER if key.endswith("/") else key
    fault = object_name_fault(name)
    if fault is not None:
        code = "KeyTooLongError" if len(name.encode("utf-8", "replace")) > 1024 else "InvalidArgument"
        raise S3Error(code, f"key {key[:80]!r}: {fault}")
    return name


def check_prefix(prefix: str) -> str:
    """Return a prefix of names. Raises S3Error for one of names that the store keeps to itself, such as parts."""
    if prefix.startswith("/"):
        raise S3Error("InvalidArgument", f"prefix {prefix[:80]!r}: it begins with '/'")
    return prefix


def key_of(name: str) -> str:
    """Return the key of an object."""
    return name[:-1] if name.endswith("/" + MARKER) else name


def behind(prefix: str) -> str:
    """Return a text that follows all names that begin with `prefix`, and precedes all others that follow them."""
    return prefix + _AFTER * max(1, (1024 - len(prefix.encode())) // 4)


class Refusal(Exception):
    """A request that is not answered as the client wants, with a code, a message, an HTTP status and headers."""

    def __init__(self, code: str, message: str, status: int, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.status = status
        self.headers = headers or {}
        self.details: dict[str, object] = {}


class S3Error(Refusal):
    """A refusal in S3's terms. `code` and the status are what its clients decide by."""

    def __init__(
        self,
        code: str,
        message: str = "",
        *,
        status: int | None = None,
        headers: dict[str, str] | None = None,
        details: Mapping[str, object] | None = None,
    ) -> None:
        """
        Args:
            headers: Headers of the answer that a client expects also of this refusal.
            details: Further elements of the answer's document.
        """
        super().__init__(code, message or code, STATUSES[code] if status is None else status, headers)
        self.details.update(details or {})


STATUSES = {
    "AccessDenied": 403,
    "AuthorizationHeaderMalformed": 400,
    "AuthorizationQueryParametersError": 400,
    "BadDigest": 400,
    "BucketAlreadyOwnedByYou": 409,
    "BucketNotEmpty": 409,
    "EntityTooLarge": 400,
    "EntityTooSmall": 400,
    "HttpVersionNotSupported": 505,
    "IncompleteBody": 400,
    "InternalError": 500,
    "InvalidAccessKeyId": 403,
    "InvalidArgument": 400,
    "InvalidBucketName": 400,
    "InvalidDigest": 400,
    "InvalidPart": 400,
    "InvalidPartNumber": 416,
    "InvalidPartOrder": 400,
    "InvalidPolicyDocument": 400,
    "InvalidRange": 416,
    "InvalidRequest": 400,
    "InvalidTag": 400,
    "InvalidURI": 400,
    "KeyTooLongError": 400,
    "MalformedPOSTRequest": 400,
    "MalformedTrailerError": 400,
    "MalformedXML": 400,
    "MaxPostPreDataLengthExceededError": 400,
    "MetadataTooLarge": 400,
    "MethodNotAllowed": 405,
    "MissingContentLength": 411,
    "NoSuchBucket": 404,
    "NoSuchKey": 404,
    "NoSuchUpload": 404,
    "NoSuchVersion": 404,
    "NotImplemented": 501,
    "NotModified": 304,
    "PreconditionFailed": 412,
    "QuotaExceeded": 403,
    "RequestHeaderSectionTooLarge": 400,
    "RequestTimeTooSkewed": 403,
    "RequestTimeout": 400,
    "ServiceUnavailable": 503,
    "SignatureDoesNotMatch": 403,
    "SlowDown": 503,
    "XAmzContentSHA256Mismatch": 400,
}
"""HTTP status by code."""

# The first class that fits decides, so that derived classes come before their bases.
_OF_STORE: tuple[tuple[type[errors.LoaderError], str], ...] = (
    (errors.BucketNotFound, "NoSuchBucket"),
    (errors.NotFound, "NoSuchKey"),
    (errors.BucketExists, "BucketAlreadyOwnedByYou"),
    (errors.BucketNotEmpty, "BucketNotEmpty"),
    (errors.SnapshotReadOnly, "AccessDenied"),
    (errors.RangeError, "InvalidRange"),
    (errors.ContentMismatch, "BadDigest"),
    (errors.Unsupported, "NotImplemented"),
    (errors.InvalidRequest, "InvalidArgument"),
    (errors.AccessDenied, "AccessDenied"),
    (errors.ObjectDenied, "AccessDenied"),
    (errors.VersionConflict, "PreconditionFailed"),
    (errors.NotAnArchive, "NoSuchKey"),
    (errors.StoreReadOnly, "AccessDenied"),
    (errors.RemoteDenied, "AccessDenied"),
    (errors.QuotaExceeded, "QuotaExceeded"),
    (errors.Overloaded, "SlowDown"),
    (errors.OutcomeUnknown, "InternalError"),
    (errors.NodeUnavailable, "ServiceUnavailable"),
    (errors.RemoteUnavailable, "ServiceUnavailable"),
    (errors.StaleMap, "ServiceUnavailable"),
    (errors.WriteTooLate, "ServiceUnavailable"),
    (errors.SilenceTimeout, "ServiceUnavailable"),
    (errors.StoreError, "ServiceUnavailable"),
    (errors.Closed, "ServiceUnavailable"),
)


def of_store(error: errors.LoaderError) -> S3Error:
    """Return the refusal for an error of the store."""
    for kind, code in _OF_STORE:
        if isinstance(error, kind):
            return S3Error(code, str(error))
    return S3Error("InternalError", str(error))
