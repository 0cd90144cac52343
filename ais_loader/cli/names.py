"""Names on the command line: BUCKET and BUCKET/NAME, a bucket's names by levels of folders, and the nearest to a wrong
one."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from ais_loader.cli.show import waiting
from ais_loader.errors import DriveFailed, InvalidRequest
from ais_loader.name_matching import PATTERN_HINT, is_pattern, nearest
from ais_loader.objects.bucket import one_level as names_of_level
from ais_loader.values.entry import Entry, ObjectInfo
from ais_loader.values.summary import PrefixSummary
from ais_loader.values.urls import SCHEME

if TYPE_CHECKING:
    from ais_loader.objects.bucket import Bucket


_MAX_COMPARED = 1000


@dataclass(frozen=True, slots=True)
class NameFolder:
    """Names with a common prefix up to a slash. `holds` is None if it has not been counted."""

    bucket: str
    name: str
    holds: PrefixSummary | None


Listed: TypeAlias = ObjectInfo | NameFolder


def one_level(
    bucket: Bucket,
    target: Target,
    start: str = "",
    *,
    counted: bool = False,
    on_missing_drive: Literal["raise", "skip"] = "raise",
) -> Iterator[Listed]:
    """Yield the objects directly in a folder, and its subfolders, sorted by name.

    `start`: only names that begin with it, relative to the folder. `counted`: the nodes count what is in the folders,
    which reads the names of everything below. If there are only folders, no names are fetched then. Nothing is counted
    while a drive is missing.
    """
    top = target.folder
    if not counted:
        for one in names_of_level(bucket, top + start, on_missing_drive=on_missing_drive):
            yield one if isinstance(one, ObjectInfo) else NameFolder(bucket.name, one, None)
        return
    summary = None
    uncounted = (InvalidRequest, DriveFailed) if on_missing_drive == "skip" else (InvalidRequest,)
    with contextlib.suppress(*uncounted), waiting(f"{bucket.name}/{top} to be counted"):
        summary = bucket.summary(top, depth=1)  # InvalidRequest: more folders than fit into one answer
    sums = {} if summary is None else {name: one for name, one in summary.by_prefix.items() if name != top}
    if summary is not None and summary.complete and top not in summary.by_prefix:
        yield from (
            NameFolder(bucket.name, name, one) for name, one in sums.items() if name[len(top) :].startswith(start)
        )
        return
    for one in names_of_level(bucket, top + start, on_missing_drive=on_missing_drive):
        yield one if isinstance(one, ObjectInfo) else NameFolder(bucket.name, one, sums.get(one))


def no_pattern(name: str, options: Collection[str]) -> str | None:
    """Return a hint for a missing name that looks like a shell pattern, for a command with these `options`."""
    if not is_pattern(name):
        return None
    if "--include" in options:
        return "a name is not a pattern: use -r with --include"
    if "--prefix" in options:
        return "a name is not a pattern: use -r with --prefix for all names that begin alike"
    return "a name is not a pattern"


def with_hint(reason: str, hint: str) -> str:
    """Return `reason` with the hint of a command in place of the hint for Python."""
    return f"{reason.removesuffix(f'; {PATTERN_HINT}')}; {hint}"


def nearest_name(bucket: Bucket, name: str) -> str | None:
    """Return the most similar of the first thousand names in the same folder as a missing one."""
    top = name[: name.rfind("/") + 1]
    names = [info.name for info in itertools.islice(bucket.objects(top, page_size=_MAX_COMPARED), _MAX_COMPARED)]
    return nearest(name, names, cutoff=0.75)


@dataclass(frozen=True, slots=True)
class Target:
    """A bucket and the part after its slash: an object's name, a prefix, or nothing."""

    bucket: str
    name: str

    def __str__(self) -> str:
        return f"{self.bucket}/{self.name}" if self.name else self.bucket

    @property
    def folder(self) -> str:
        """Common prefix of the objects below it; the same in every command that takes a folder."""
        return self.name if not self.name or self.name.endswith("/") else self.name + "/"


def parse_target(text: str) -> Target:
    """Parse a bucket, or a name in it. Raises InvalidRequest."""
    rest = text.removeprefix(SCHEME)
    bucket, _, name = rest.partition("/")
    if bucket.endswith(":") and name.startswith("/"):
        raise InvalidRequest(f"{text!r}: need BUCKET/NAME or {SCHEME}BUCKET/NAME; --store says in which store")
    if not bucket:
        raise InvalidRequest(f"{text!r} names no bucket; need BUCKET/NAME or {SCHEME}BUCKET/NAME")
    return Target(bucket, name)


def parse_object(text: str) -> Target:
    """Parse an object by its literal name. Raises InvalidRequest."""
    target = parse_target(text)
    if not target.name:
        raise InvalidRequest(f"{text!r} names a bucket; need BUCKET/NAME")
    return target


def parse_entry(text: str) -> Entry:
    """Parse an entry to read. Raises InvalidRequest.

    An ais:// URL has its meaning in Python, including members of archives; BUCKET/NAME takes the name literally.
    """
    target = parse_object(text)
    return Entry.from_url(text) if text.startswith(SCHEME) else Entry(target.bucket, target.name)


def label(entry: Entry) -> str:
    """Format an entry as one name, for people."""
    return "/".join(part for part in (entry.bucket, entry.name, entry.member) if part is not None)
