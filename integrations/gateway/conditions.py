"""Conditional requests: `If-Match`, `If-None-Match`, `If-Modified-Since`, `If-Unmodified-Since`."""

from __future__ import annotations

import datetime
import email.utils
from collections.abc import Mapping
from dataclasses import dataclass

from ais_loader import errors
from ais_loader.objects.bucket import Bucket
from ais_loader.values.entry import ObjectInfo

from .attributes import etag, last_modified
from .request import S3Error

_CONDITIONS = ("if-match", "if-none-match", "if-modified-since", "if-unmodified-since")


def _names(header: str, found: str) -> bool:
    tags = [tag.strip().removeprefix("W/").strip('"') for tag in header.split(",")]
    return "*" in tags or found in tags


def _seconds(header: str) -> float | None:
    try:
        return email.utils.parsedate_to_datetime(header).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None


def check_read(info: ObjectInfo, given: Mapping[str, str], prefix: str = "") -> None:
    """Check the conditions of a read. Raises S3Error with NotModified or PreconditionFailed.

    Args:
        given: The headers of the request.
        prefix: `x-amz-copy-source-` for the conditions of a copy, whose only refusal is PreconditionFailed.
    """
    if not any(prefix + name in given for name in _CONDITIONS):
        return
    own, modified_s = etag(info), info.modified_ns // 1_000_000_000
    match, none_match = given.get(f"{prefix}if-match"), given.get(f"{prefix}if-none-match")
    unmodified = _seconds(given.get(f"{prefix}if-unmodified-since", ""))
    modified = _seconds(given.get(f"{prefix}if-modified-since", ""))
    if match is not None:
        if not _names(match, own):
            raise S3Error("PreconditionFailed", "the object does not have this ETag")
    elif unmodified is not None and modified_s > unmodified:
        raise S3Error("PreconditionFailed", "the object was modified since")
    refused = "PreconditionFailed" if prefix else "NotModified"
    headers = {} if prefix else {"etag": f'"{own}"', "last-modified": last_modified(info)}
    if none_match is not None:
        if _names(none_match, own):
            raise S3Error(refused, "the object has this ETag", headers=headers)
    elif modified is not None and modified_s <= modified:
        raise S3Error(refused, "the object was not modified since", headers=headers)


@dataclass(frozen=True, slots=True)
class WriteCondition:
    """Condition of a write in the store's terms."""

    if_absent: bool = False
    if_version: str | None = None


def of_write(bucket: Bucket, name: str, headers: Mapping[str, str]) -> WriteCondition:
    """Return the condition of a write. Raises S3Error if it cannot hold."""
    match, none_match = headers.get("if-match"), headers.get("if-none-match")
    if match is not None and none_match is not None:
        raise S3Error("NotImplemented", "If-Match and If-None-Match of one write")
    if none_match is not None and none_match.strip() == "*":
        return WriteCondition(if_absent=True)
    if match is None and none_match is None:
        return WriteCondition()
    try:
        info = bucket.head(name)
    except errors.ObjectNotFound:
        if none_match is not None:
            return WriteCondition(if_absent=True)
        raise S3Error("NoSuchKey", "there is no object of this key") from None
    if match is not None and not _names(match, etag(info)):
        raise S3Error("PreconditionFailed", "the object does not have this ETag")
    if none_match is not None and _names(none_match, etag(info)):
        raise S3Error("PreconditionFailed", "the object has this ETag")
    return WriteCondition(if_version=info.version)


@dataclass(frozen=True, slots=True)
class DeleteCondition:
    """Condition under which an object is deleted. None: any object is."""

    etag: str | None = None
    modified: str | None = None
    """Time of the last modification, as S3's headers and documents have it."""
    size: str | None = None

    def is_given(self) -> bool:
        """Whether there is any condition."""
        return (self.etag, self.modified, self.size) != (None, None, None)

    def version(self, bucket: Bucket, name: str) -> str:
        """Return the version to delete. Raises ObjectNotFound, and S3Error unless the condition holds."""
        info = bucket.head(name)
        if self.etag is not None and not _names(self.etag, etag(info)):
            raise S3Error("PreconditionFailed", "the object does not have this ETag")
        if self.modified is not None and _moment(self.modified) != info.modified_ns // 1_000_000_000:
            raise S3Error("PreconditionFailed", "the object was not modified at this time")
        if self.size is not None and self.size.strip() != str(info.size_bytes):
            raise S3Error("PreconditionFailed", "the object does not have this size")
        return info.version


def of_delete(headers: Mapping[str, str]) -> DeleteCondition:
    """Return the condition of a deletion. Raises S3Error."""
    if "if-none-match" in headers:
        raise S3Error("NotImplemented", "If-None-Match of a deletion")
    modified, size = headers.get("x-amz-if-match-last-modified-time"), headers.get("x-amz-if-match-size")
    return DeleteCondition(headers.get("if-match"), modified, size)


def _moment(text: str) -> float:
    """Return the whole seconds of a time in either of S3's forms. Raises S3Error."""
    seconds = _seconds(text)
    if seconds is None:
        try:
            seconds = datetime.datetime.fromisoformat(text).timestamp()
        except (ValueError, OverflowError):
            raise S3Error("InvalidArgument", f"{text[:80]!r} is not a time") from None
    return seconds // 1
