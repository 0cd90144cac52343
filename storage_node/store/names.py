"""Naming rules of buckets, objects and snapshots. Pure functions; error messages contain the reason."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from contextvars import ContextVar

from ais_loader.errors import BucketNotFound, InvalidName, TransformNotFound
from ais_loader.name_matching import nearest
from ais_loader.wire.inventory import PREFIX as INVENTORY_PREFIX
from ais_loader.wire.line_index import PREFIX as LINES_PREFIX

MAX_OBJECT_NAME_BYTES = 1024
SNAPSHOT_MARK = "@"
"""Separator in bucket@snapshot, which names a bucket at a point in time. Bucket names cannot contain it."""
HIDDEN = "/."
"""Beginning of the names of parts, of manifests, of the objects of inventories (ais_loader/wire/inventory.py), and of
indexes of lines (ais_loader/wire/line_index.py). No other name begins with a slash."""
CODED_PREFIX = "/.coded/"
"""Prefix of the manifests of groups of an erasure coded bucket, followed by the group's id."""
_MANIFEST = re.compile(r"/\.coded/[0-9a-f]{32}\Z")
_PART = re.compile(r"/\.parts/[0-9a-f]{32}/(?:upload|[0-9]{5})\Z")
_OF_INVENTORY = re.compile(
    r"/\.inventory/[0-9a-f]{16}/(?:current|data-[0-9a-f]{16}|changed/(?P<changed>.+))\Z", re.DOTALL
)
_LOOKED_THROUGH = 100
"""Maximum number of buckets whose names are compared with one that does not exist."""
_BUCKET = re.compile(r"(?!\.)[A-Za-z0-9_.-]{1,63}\Z")


def check_bucket_name(name: str) -> None:
    """Raise InvalidName unless `name` is a valid bucket name."""
    _check_short_name("bucket", name)


without_hints: ContextVar[bool] = ContextVar("without_hints", default=False)
"""Whether errors name no other buckets and transforms, because the current task's client may not see all of them."""


def transform_not_found(name: str, known: Iterable[str]) -> TransformNotFound:
    """Return the error for an unknown transform. `known`: names of those that there are."""
    there = "" if without_hints.get() else f"; there are: {', '.join(sorted(known)) or 'none'}"
    return TransformNotFound(f"there is no transform {name!r}{there}")


def bucket_not_found(name: str, known: Iterable[str]) -> BucketNotFound:
    """Return the error for an unknown bucket. `known`: names of existing buckets, all or some."""
    if without_hints.get():
        known = ()
    meant = name.removeprefix("ais://").partition("/")[0].lower()
    by_lower = {one.lower(): one for one in itertools.islice(known, _LOOKED_THROUGH)}
    near = nearest(meant, by_lower, cutoff=0.6)
    hint = f"; did you mean {by_lower[near]!r}?" if near else ""
    return BucketNotFound(f"bucket {name!r} does not exist; create_bucket makes it{hint}")


def check_snapshot_name(name: str) -> None:
    """Raise InvalidName unless `name` is a valid snapshot name."""
    _check_short_name("snapshot", name)


def check_job_name(name: str) -> None:
    """Raise InvalidName unless `name` is a valid job name."""
    _check_short_name("job", name)


def _check_short_name(of: str, name: str) -> None:
    if not _BUCKET.match(name):
        raise InvalidName(f"{of} name {name!r}: need 1 to 63 of the characters a-z A-Z 0-9 - _ . and no leading dot")


def object_name_fault(name: str) -> str | None:
    """Return what is wrong with an object's name; None if it is valid."""
    if name.startswith(INVENTORY_PREFIX) and (of_inventory := _OF_INVENTORY.match(name)):
        return object_name_fault(of_inventory["changed"]) if of_inventory["changed"] else None
    if name.startswith(LINES_PREFIX) and not name.startswith("/", len(LINES_PREFIX)):
        return object_name_fault(name.removeprefix(LINES_PREFIX))
    try:
        size_bytes = len(name.encode())
    except UnicodeEncodeError:
        return "it is not valid Unicode (a lone surrogate has no UTF-8 form)"
    if not 1 <= size_bytes <= MAX_OBJECT_NAME_BYTES:
        return f"names have 1 to {MAX_OBJECT_NAME_BYTES:,} bytes of UTF-8, and this one has {size_bytes:,}"
    if "\0" in name:
        return "it contains a NUL character"
    if name[0] == "/" and (_PART.match(name) or _MANIFEST.match(name)):
        return None
    if name[0] == "/" or name[-1] == "/":
        return "it begins or ends with '/'"
    # The common name has no dot component and no empty one: one scan of the string decides.
    if "//" in name or "." in name:
        for component in name.split("/"):
            if component in ("", ".", ".."):
                return f"it has the component {component!r}" if component else "it contains '//'"
    return None


def check_object_name(name: str) -> None:
    """Raise InvalidName unless `name` is a valid object name."""
    if fault := object_name_fault(name):
        raise InvalidName(f"object name {shown_name(name)!r}: {fault}")


def shown_name(name: str) -> str:
    """Return an invalid object name as shown in messages, at most 80 characters of it."""
    return name if len(name) <= 80 else name[:77] + "..."


def unfinished_name(snapshot: str) -> str:
    """Return the name under which a store keeps a snapshot that a cluster is still creating. No snapshot can have such
    a name."""
    return f".{snapshot}"
