"""Chain of lines: each is a JSON object that ends with the digest of the line before, and its own.

The own digest covers everything before it in the line, so also the one of the line before. A line that was changed,
removed, added or moved therefore does not fit. Digests have no key: whoever can write the files can make another chain,
which only a digest kept elsewhere tells from the first one.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

FIRST = "0" * 64
"""The digest before the first line."""
_LINE = re.compile(rb'(\{"seq":\d+,.*),"sum":"([0-9a-f]{64})"\}', re.DOTALL)


class Link(NamedTuple):
    """The end of a chain: the number of its last line, and that line's digest."""

    seq: int = 0
    sum: str = FIRST


class Line(NamedTuple):
    """One line that was read; its own digest is right."""

    fields: dict[str, Any]
    link: Link

    @property
    def before(self) -> str:
        """The digest of the line before."""
        return str(self.fields["prev"])


class BrokenLine(ValueError):
    """A line that is not what was written."""


def encode(last: Link, fields: Mapping[str, Any]) -> tuple[bytes, Link]:
    """Return the line after `last`, with its newline, and the new end of the chain."""
    number = last.seq + 1
    body = json.dumps({"seq": number, **fields, "prev": last.sum}, separators=(",", ":"))[:-1].encode()
    own = _digest(body)
    return body + f',"sum":"{own}"}}\n'.encode(), Link(number, own)


def decode(line: bytes) -> Line:
    """Read a line without its newline. Raises BrokenLine."""
    found = _LINE.fullmatch(line)
    if found is None:
        raise BrokenLine("this is no line of an audit log")
    own = found[2].decode()
    if _digest(found[1]) != own:
        raise BrokenLine("the line was changed: its digest is another one")
    fields = json.loads(found[1] + b"}")
    return Line(fields, Link(int(fields["seq"]), own))


def _digest(body: bytes) -> str:
    return hashlib.blake2b(body, digest_size=32).hexdigest()
