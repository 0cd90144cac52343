"""Name arguments on the command line: BUCKET, BUCKET/NAME, and the same with ais://."""

from __future__ import annotations

from dataclasses import dataclass

from ais_loader.errors import InvalidRequest
from ais_loader.values.entry import Entry
from ais_loader.values.urls import SCHEME


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
