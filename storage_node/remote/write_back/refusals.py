"""Refusals: changes of a bucket that would lose writes which are not uploaded yet."""

from __future__ import annotations

from collections.abc import Sequence

from ais_loader.errors import BucketNotEmpty
from ais_loader.wire.generated import ais_remote_pb2 as pb
from ais_loader.wire.remote import Remote


def same_place(one: Remote, other: Remote) -> bool:
    """Whether two remotes are the same place, written in the same way."""
    return (one.url, one.endpoint, one.region, one.write) == (other.url, other.endpoint, other.region, other.write)


def require_none(bucket: str, rows: Sequence[pb.PendingBucket], what: str) -> None:
    """Raise BucketNotEmpty if a bucket has pending uploads."""
    count, conflicts = sum(row.count for row in rows), sum(row.conflicts for row in rows)
    if not count and not conflicts:
        return
    stuck = f", and {conflicts:,} in conflict with the remote storage" if conflicts else ""
    raise BucketNotEmpty(
        f"bucket {bucket!r} has {count:,} writes that are not uploaded yet{stuck}: {what}; "
        "`Bucket.flush` waits for them"
    )
