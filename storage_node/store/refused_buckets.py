"""Stand-ins for buckets of a batch that its client may not read: names that no bucket has, and that carry the error
which each of their entries gets, in its place.

Every part of a node treats such a name as that of an unknown bucket, whose entries are local and fail at the look-up.
"""

from __future__ import annotations

from ais_loader.errors import BY_KIND, AccessDenied, BucketNotFound, LoaderError

_MARK = "\0"
"""Beginning of a stand-in; no name of a bucket has this character."""


def stand_in(error: LoaderError) -> str:
    """Return the stand-in for a bucket whose entries fail with this error."""
    return f"{_MARK}{error.kind}{_MARK}{error}"


def refusal(name: str) -> AccessDenied | BucketNotFound | None:
    """Return the error of a stand-in; None for any other name."""
    if not name.startswith(_MARK):
        return None
    kind, _, message = name[len(_MARK) :].partition(_MARK)
    cls = BY_KIND.get(kind, BucketNotFound)
    return cls(message) if issubclass(cls, AccessDenied | BucketNotFound) else BucketNotFound(message)
