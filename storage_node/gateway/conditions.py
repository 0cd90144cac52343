"""Conditional requests: `If-Match`, `If-None-Match`, `If-Modified-Since`, `If-Unmodified-Since`."""

from __future__ import annotations

import email.utils
from collections.abc import Mapping
from dataclasses import dataclass

from ais_loader import errors
from ais_loader.objects.bucket import Bucket
from ais_loader.values.entry import ObjectInfo
from storage_node.gateway.attributes import etag
from storage_node.gateway.errors import S3Error


def _names(header: str, found: str) -> bool:
    tags = [tag.strip().removeprefix("W/").strip('"') for tag in header.split(",")]
    return "*" in tags or found in tags


def _seconds(header: str) -> float | None:
    try:
        return email.utils.parsedate_to_datetime(header).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None


def check_read(info: ObjectInfo, headers: Mapping[str, str], prefix: str = "") -> None:
    """Check the conditions of a read. Raises S3Error with NotModified or PreconditionFailed.

    Args:
        prefix: `x-amz-copy-source-` for the conditions of a copy, whose only refusal is PreconditionFailed.
    """
    own, modified_s = etag(info), info.modified_ns // 1_000_000_000
    match, none_match = headers.get(f"{prefix}if-match"), headers.get(f"{prefix}if-none-match")
    unmodified = _seconds(headers.get(f"{prefix}if-unmodified-since", ""))
    modified = _seconds(headers.get(f"{prefix}if-modified-since", ""))
    if match is not None:
        if not _names(match, own):
            raise S3Error("PreconditionFailed", "the object does not have this ETag")
    elif unmodified is not None and modified_s > unmodified:
        raise S3Error("PreconditionFailed", "the object was modified since")
    refused = "PreconditionFailed" if prefix else "NotModified"
    if none_match is not None:
        if _names(none_match, own):
            raise S3Error(refused, "the object has this ETag")
    elif modified is not None and modified_s <= modified:
        raise S3Error(refused, "the object was not modified since")


@dataclass(frozen=True, slots=True)
class WriteCondition:
    """Condition of a write in the store's terms."""

    if_absent: bool = False
    if_version: str | None = None


def of_write(bucket: Bucket, name: str, headers: Mapping[str, str]) -> WriteCondition:
    """Return the condition of a write. Raises S3Error if it cannot hold."""
    match, none_match = headers.get("if-match"), headers.get("if-none-match")
    if none_match is not None:
        if none_match.strip() != "*" or match is not None:
            raise S3Error("NotImplemented", "If-None-Match of a write: need *, and no If-Match")
        return WriteCondition(if_absent=True)
    if match is None:
        return WriteCondition()
    try:
        info = bucket.head(name)
    except errors.ObjectNotFound:
        raise S3Error("NoSuchKey", "there is no object of this key") from None
    if not _names(match, etag(info)):
        raise S3Error("PreconditionFailed", "the object does not have this ETag")
    return WriteCondition(if_version=info.version)
