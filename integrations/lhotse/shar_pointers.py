"""Shar pointers, `tar?o=…&e=…&n=…&s=1`: a sample's byte range within a tar shard, as an entry of a batch and back.

A pointer's range begins at the header of the sample's data, including any PAX or GNU records before it, and ends where
the next sample begins. It is therefore fetched as a range, without inspecting the shard, and the payload is cut out of
the result. All functions here are pure: no I/O, and no dependency on Lhotse.

Source: lhotse/shar/lazy_pointer.py of Lhotse 2.0.
"""

from __future__ import annotations

import io
import re
import tarfile
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING
from urllib.parse import unquote_to_bytes

from ais_loader import Entry
from ais_loader.values.urls import split_url

if TYPE_CHECKING:
    from typing_extensions import Buffer

_POINTER = re.compile(
    r"(?P<url>.+)\?o=(?P<start>\d+)&e=(?P<stop>\d+)(?:&n=(?P<name>[^&]*)(?P<strict>&s=1)?)?", re.DOTALL
)
_PLACEHOLDERS = (".nodata", ".nometa")


class SharPointerError(ValueError):
    """The data at a pointer is not what the pointer says."""


@dataclass(frozen=True, slots=True)
class SharPointer:
    """The half-open byte range [start, stop) of the tar shard at `url`."""

    url: str
    start: int
    stop: int
    name: str | None = None
    """The member that must be there. None accepts any."""
    strict: bool = False
    """Whether a different member there is an error. Otherwise, the member is looked up in the whole shard."""

    @classmethod
    def parse(cls, text: str) -> SharPointer:
        """Parse a pointer. The URL may be of any kind, and is taken literally. Raises SharPointerError."""
        found = _POINTER.fullmatch(text)
        if found is None:
            raise SharPointerError(
                f"{text!r} is no Shar pointer: need URL?o=START&e=STOP, with &n=NAME and &s=1 at will"
            )
        start, stop, name = int(found["start"]), int(found["stop"]), found["name"]
        if stop <= start:
            raise SharPointerError(f"{text!r}: the range ends at {stop:,}, before it has begun")
        unquoted = None if name is None else unquote_to_bytes(name).decode("utf-8", "surrogateescape")
        return cls(found["url"], start, stop, unquoted, found["strict"] is not None)

    def entry(self) -> Entry:
        """Return the range as an entry. Raises InvalidRequest if the URL is not an `ais://` URL."""
        bucket, shard = split_url(self.url)
        return Entry(bucket, shard, start=self.start, length=self.stop - self.start)

    def member_entry(self) -> Entry:
        """Return the member by name, for when `payload` did not find it in the range."""
        assert self.name is not None
        bucket, shard = split_url(self.url)
        # The store's name for a member whose name is not UTF-8; see storage_node/store/archives/member.py.
        return Entry(bucket, shard, self.name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace"))

    def payload(self, data: Buffer) -> bytes | None:
        """Return the data of the first file in the range, from the bytes of the range.

        Returns None if that is a different file than `name` and the pointer is not strict. Then request `member_entry`.
        Raises SharPointerError.
        """
        view = memoryview(data)
        try:
            with tarfile.open(fileobj=io.BytesIO(view), mode="r:") as archive:
                member = next((one for one in archive if one.isfile()), None)
        except tarfile.TarError as error:
            raise SharPointerError(f"{self}: no tar header there ({error})") from error
        if member is None:
            raise SharPointerError(f"{self}: no file in this range")
        if self.name is not None and member.name != self.name:
            if not self.strict:
                return None
            raise SharPointerError(f"{self}: {member.name!r} lies there; was the shard replaced?")
        if PurePosixPath(member.name).suffix in _PLACEHOLDERS:
            raise SharPointerError(f"{self}: {member.name!r} stands for data that are not in the shard")
        found = bytes(view[member.offset_data : member.offset_data + member.size])
        if len(found) < member.size:
            raise SharPointerError(
                f"{self}: {member.name!r} has {member.size:,} bytes, of which {len(found):,} lie in the range"
            )
        return found

    def __str__(self) -> str:
        name = "" if self.name is None else f", member {self.name!r}"
        return f"{self.url}, bytes {self.start:,} to {self.stop:,}{name}"
