"""Redundancy of a bucket: copies of each object, or fragments of groups of objects (erasure coding, Reed-Solomon).

As text it is `copies`, or `rs:K+M`: a group has K fragments with the bytes of objects and M with their parity, each on
another host, and any K of them are enough to read it. The fragments are objects of a hidden bucket, the companion.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

from ais_loader.errors import InvalidRequest

COPIES = "copies"
MAX_FRAGMENTS = 32
_COMPANION = ".coded."
_TEXT = re.compile(r"rs:([0-9]{1,3})\+([0-9]{1,3})\Z")


@dataclass(frozen=True, slots=True)
class Redundancy:
    """Numbers of fragments of a group."""

    data: int
    parity: int

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Return the redundancy that a text names; None for copies. Raises InvalidRequest."""
        if text == COPIES:
            return None
        match = _TEXT.match(text)
        found = cls(int(match[1]), int(match[2])) if match else None
        if found is None or not (found.data >= 2 and found.parity >= 1 and found.fragments <= MAX_FRAGMENTS):
            raise InvalidRequest(
                f"redundancy={text!r}: need copies, or rs:K+M with K from 2, M from 1, and at most {MAX_FRAGMENTS} "
                "fragments together, such as rs:4+2"
            )
        return found

    def __str__(self) -> str:
        return f"rs:{self.data}+{self.parity}"

    @property
    def fragments(self) -> int:
        return self.data + self.parity

    @property
    def copies(self) -> int:
        """Number of copies of an object that is not coded yet, and of each entry: as many hosts may be lost."""
        return self.parity + 1


def companion_name(bucket_uuid: bytes) -> str:
    """Return the name of the hidden bucket that has the fragments of a bucket. No other bucket begins with a dot."""
    return f"{_COMPANION}{bucket_uuid.hex()[16:]}"


def is_companion(bucket: str) -> bool:
    return bucket.startswith(_COMPANION)
