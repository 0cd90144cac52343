"""Search in logs: who has read or changed an object, and what a subject has done.

Lines without names are compared by their digest, which tells only for lines about a single object. Whether other lines
are about the object is not known then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from storage_node.security.audit.reads import READ, digest_of

_OF_BUCKETS = ("Buckets/CreateBucket", "Buckets/SetBucket", "Snapshots/CreateSnapshot")
"""Calls on a bucket that change no object."""


@dataclass(slots=True)
class Found:
    """Result of a search for an object."""

    lines: list[dict[str, Any]]
    unknown: int = 0
    """Lines on the object's bucket that do not say which objects they are about."""


def who(lines: Iterable[dict[str, Any]], bucket: str, name: str, member: str = "") -> Found:
    """Return the lines about an object, or about a member of an archive; for a whole object, also those about its
    members."""
    found = Found([])
    alone = digest_of([(bucket, name, member)])
    for line in lines:
        if bucket not in line.get("buckets", ()):
            continue
        if "names" in line:
            if any(_is(one, name, member) for one in line["names"].get(bucket, ())):
                found.lines.append(line)
        elif "digest" in line:
            if line["digest"] == alone:
                found.lines.append(line)
            else:
                found.unknown += line["entries"] > 1 or line["event"] == READ  # of one entry, it may be a member
        elif line.get("call") not in _OF_BUCKETS:
            found.lines.append(line)  # about all that the bucket has, as its deletion
    return found


def what(lines: Iterable[dict[str, Any]], subject: str) -> Iterator[dict[str, Any]]:
    """Iterate over the lines of a subject: a tenant, the id of a token, or `client`, `node` or `operator`."""
    for line in lines:
        if subject in (line.get("tenant"), line.get("token"), line.get("by")):
            yield line


def _is(entry: str | list[str], name: str, member: str) -> bool:
    if isinstance(entry, str):
        return entry == name and not member
    return entry[0] == name and member in ("", entry[1])
