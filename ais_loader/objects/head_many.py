"""Heads of many objects of a bucket, a thousand with each request."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from ais_loader import errors
from ais_loader.transport.base import Transport, require_text
from ais_loader.values.entry import ObjectInfo
from ais_loader.values.requests import require_many

NAMES_AT_ONCE = 1000


def head_many(transport: Transport, bucket: str, names: Iterable[str]) -> list[ObjectInfo | None]:
    """See `Bucket.head_many`. A name that no request can carry counts as not found."""
    require_many("names", names)
    found: list[ObjectInfo | None] = []
    rest = iter(names)
    while group := list(itertools.islice(rest, NAMES_AT_ONCE)):
        requested = dict.fromkeys(name for name in group if _is_valid(name))
        answers = dict(zip(requested, transport.head_names(bucket, list(requested)), strict=True))
        found += [_info_of(answers.get(name)) for name in group]
    return found


def _is_valid(name: str) -> bool:
    """Whether a request can carry this name. Raises InvalidRequest if it is not a string."""
    try:
        require_text(name, errors.ObjectNotFound, "object name")
    except errors.ObjectNotFound:
        return False
    return True


def _info_of(answer: ObjectInfo | errors.LoaderError | None) -> ObjectInfo | None:
    """Return the object, or None if not found or denied. Raises any other error."""
    if isinstance(answer, errors.LoaderError) and not isinstance(answer, (errors.NotFound, errors.ObjectDenied)):
        raise answer
    return answer if isinstance(answer, ObjectInfo) else None
