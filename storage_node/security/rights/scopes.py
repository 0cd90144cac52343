"""Scopes of a token: which rights it gives on which buckets.

A scope is written `PATTERN:RIGHT,RIGHT`, as in `speech-*:read,list`. In a pattern, `*` stands for any characters, also
none, `?` for exactly one, and every other character for itself; case matters, and a pattern matches the whole name.
There are no other special characters. A snapshot `bucket@snapshot` has the rights of its bucket. Rights on a name are
those of all scopes whose patterns match it; nothing takes a right away.

The rights `etl-create`, `etl-code` and `etl-install` are about transforms, so their patterns match transforms' names;
that of `profile` matches names of profiles of credentials.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable

from ais_loader.errors import InvalidRequest
from storage_node.store.names import SNAPSHOT_MARK

MAX_SCOPES = 256
MAX_PATTERN = 128
"""Maximum length of a pattern, in characters."""
_MAX_CACHED = 4096
_MAX_NAME = 256


class Right(enum.IntFlag):
    """Rights on a bucket, or on a transform."""

    READ = enum.auto()
    LIST = enum.auto()
    WRITE = enum.auto()
    DELETE = enum.auto()
    ADMIN = enum.auto()
    """Create, change and delete buckets of these names, evict their copies, and take their objects down."""
    PROMOTE = enum.auto()
    ETL_USE = enum.auto()
    """Read objects of the bucket through transforms."""
    ETL_CREATE = enum.auto()
    """Create, replace, stop and delete transforms of these names."""
    ETL_JOB = enum.auto()
    """Run jobs from or to the bucket, and stop and delete them."""
    ETL_CODE = enum.auto()
    """See the code, command and address of transforms of these names."""
    ETL_INSTALL = enum.auto()
    """Create transforms of these names that need packages to be installed."""
    REMOTE = enum.auto()
    """Give buckets of these names remote storage, for which nodes have the credentials."""
    PROFILE = enum.auto()
    """Name profiles of these names as the credentials for remote storage."""


NAMES = {right.name.lower().replace("_", "-"): right for right in Right if right.name}
SEES = Right.READ | Right.LIST
"""A bucket on which a client has none of these does not exist for it."""
ETL = Right.ETL_USE | Right.ETL_CREATE | Right.ETL_JOB | Right.ETL_CODE | Right.ETL_INSTALL


def right_names(rights: int) -> str:
    """Return the names of rights as they are written in scopes, or `none`."""
    return ",".join(name for name, right in NAMES.items() if rights & right) or "none"


def parse_scope(text: str) -> tuple[str, Right]:
    """Return the pattern and the rights of a scope. Raises InvalidRequest."""
    pattern, mark, listed = text.rpartition(":")
    if not mark or not pattern or len(pattern) > MAX_PATTERN or any(one in pattern for one in "\0/@:"):
        raise InvalidRequest(f"scope {text!r}: need PATTERN:RIGHT,RIGHT, as in 'speech-*:read,list'")
    rights = Right(0)
    for name in listed.split(","):
        if name not in NAMES:
            raise InvalidRequest(f"scope {text!r}: {name!r} is no right; rights are {', '.join(NAMES)}")
        rights |= NAMES[name]
    return pattern, rights


def matches(pattern: str, name: str) -> bool:
    """Whether a pattern matches a whole name. Takes at most len(pattern) x len(name) steps, whatever the pattern is."""
    at = begin = 0
    star = -1
    for_name = 0
    while for_name < len(name):
        if at < len(pattern) and pattern[at] == "*":
            star, begin = at, for_name
            at += 1
        elif at < len(pattern) and pattern[at] in ("?", name[for_name]):
            at += 1
            for_name += 1
        elif star >= 0:  # the last star takes one character more
            begin += 1
            at, for_name = star + 1, begin
        else:
            return False
    return all(one == "*" for one in pattern[at:])


class Scopes:
    """The scopes of one token, compiled. The rights on a name are looked up once and cached. Thread-safe."""

    __slots__ = ("_cached", "_parsed", "anywhere", "texts")

    def __init__(self, texts: Iterable[str]) -> None:
        """Raises InvalidRequest."""
        self.texts = tuple(texts)
        if len(self.texts) > MAX_SCOPES:
            raise InvalidRequest(f"{len(self.texts):,} scopes: at most {MAX_SCOPES}")
        parsed = [parse_scope(text) for text in self.texts]
        self._parsed = [(pattern, int(rights)) for pattern, rights in parsed]
        self.anywhere = 0
        """Rights on at least one name."""
        for _, rights in parsed:
            self.anywhere |= int(rights)
        self._cached: dict[str, int] = {}

    def rights(self, name: str) -> int:
        """Return the rights on a bucket, one of its snapshots, or a transform."""
        found = self._cached.get(name)
        return found if found is not None else self._look_up(name)

    def may(self, right: int, name: str) -> bool:
        """Whether the token gives at least one of these rights on this name."""
        return self.rights(name) & int(right) != 0  # flags are combined a hundred times slower than ints

    def _look_up(self, name: str) -> int:
        of = name.partition(SNAPSHOT_MARK)[0]
        found = 0
        if len(name) > _MAX_NAME or "\0" in name:
            return 0  # nothing has such a name; with a NUL, it would be a stand-in, which only a node makes
        for pattern, rights in self._parsed:
            if matches(pattern, of):
                found |= rights
        if len(self._cached) >= _MAX_CACHED:
            self._cached.clear()
        self._cached[name] = found
        return found
