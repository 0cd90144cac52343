"""Contents that are denied: how an object's content is written down, and what a bucket says of a denied one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from ais_loader.errors import InvalidRequest

MAX_CONTENTS = 2000
"""Maximum number of denied contents of a bucket. They are in the cluster map, or in the record of a store."""
MAX_REASON_BYTES = 256
_CONTENT = re.compile(r"[0-9a-f]{8}-[0-9]{1,19}")


def content_of(checksum: int, size_bytes: int) -> str:
    """Return an object's content as `Bucket.deny` takes it: its CRC-32C in hex, and its size in bytes.

    The size is part of it because 32 bits alone would sooner or later be those of an unrelated object.
    """
    return f"{checksum:08x}-{size_bytes}"


def checked_contents(contents: Iterable[str]) -> list[str]:
    """Return different contents in order. Raises InvalidRequest for what `content_of` does not return."""
    found = list(dict.fromkeys(contents))
    for one in found:
        if not isinstance(one, str) or not _CONTENT.fullmatch(one):
            raise InvalidRequest(f"digest {one!r}: need CRC-32C and size of the content, such as 'e3069283-9'")
    return found


def with_contents(
    known: Mapping[str, str], denied: Iterable[str], allowed: Iterable[str], reason: str
) -> dict[str, str]:
    """Return denied contents with their reasons after a change of them. Raises InvalidRequest if they are too many."""
    found = {**known, **dict.fromkeys(denied, reason)}
    for content in allowed:
        found.pop(content, None)
    if len(found) > MAX_CONTENTS:
        raise InvalidRequest(
            f"{len(found):,} denied contents: a bucket has at most {MAX_CONTENTS:,}; deny the objects by their names"
        )
    return found


def checked_reason(reason: str) -> str:
    """Return a reason. Raises InvalidRequest for one that is empty, too long, or no text."""
    try:
        size_bytes = len(reason.encode()) if isinstance(reason, str) else 0
    except UnicodeEncodeError:
        size_bytes = 0
    if not 0 < size_bytes <= MAX_REASON_BYTES:
        raise InvalidRequest(f"reason: need 1 to {MAX_REASON_BYTES} bytes of text, got {reason!r:.60}")
    return reason


def denied_content(label: str, content: str) -> str:
    """Return the message of the error for an object of denied content."""
    return f"{label!r}: content {content} is denied in this bucket; `Bucket.allow` ends that"
