"""Errors of the gateway's interfaces, and those of the store as codes of S3."""

from __future__ import annotations

from collections.abc import Mapping

from ais_loader import errors


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
