"""Checksums that clients of S3 announce in headers and trailers."""

from __future__ import annotations

import base64
import binascii
import hashlib
import zlib
from collections.abc import Mapping, Sequence
from typing import Protocol

from ais_loader.extras import needs
from ais_loader.wire.checksum import crc32c
from storage_node.store.checksum import CRC32, CRC32C, CRC64NVME, combine

from .request import S3Error

HEADER = "x-amz-checksum-"
ALGORITHMS = ("crc32", "crc32c", "crc64nvme", "sha1", "sha256")
COMBINED = {"crc32": CRC32, "crc32c": CRC32C, "crc64nvme": CRC64NVME}
"""Algorithms whose value for an object follows from those of its parts."""
_DIGEST_BYTES = {"crc32": 4, "crc32c": 4, "crc64nvme": 8, "sha1": 20, "sha256": 32}


class Hasher(Protocol):
    """A checksum of bytes that arrive one after another."""

    def update(self, data: bytes, /) -> None: ...
    def digest(self) -> bytes: ...


class Crc:
    """A cyclic redundancy check as a `Hasher`."""

    def __init__(self, algorithm: str) -> None:
        self.value = 0
        self._size_bytes = _DIGEST_BYTES[algorithm]
        if algorithm == "crc32":
            self._extend = zlib.crc32
        elif algorithm == "crc32c":
            self._extend = crc32c
        else:
            with needs("awscrt", "CRC-64/NVME"):
                from awscrt import checksums
            self._extend = checksums.crc64nvme

    def update(self, data: bytes, /) -> None:
        self.value = self._extend(data, self.value)

    def digest(self) -> bytes:
        return self.value.to_bytes(self._size_bytes, "big")


def hasher(algorithm: str) -> Hasher:
    """Begin a checksum. Raises S3Error for an unknown algorithm."""
    name = algorithm.lower()
    if name not in ALGORITHMS:
        raise S3Error("InvalidRequest", f"checksum algorithm {algorithm[:40]!r}: need one of {', '.join(ALGORITHMS)}")
    return hashlib.new(name) if name.startswith("sha") else Crc(name)


def announced(headers: Mapping[str, str], code: str = "BadDigest") -> tuple[str, str] | None:
    """Return algorithm and value of the checksum in headers or trailers. Raises S3Error for two, or an invalid one.

    `code`: that of a value which is no checksum.
    """
    found = [(name[len(HEADER) :], value) for name, value in headers.items() if name.startswith(HEADER)]
    found = [(name, value.strip()) for name, value in found if name not in ("algorithm", "mode", "type")]
    if not found:
        return None
    if len(found) > 1:
        raise S3Error("InvalidRequest", "need at most one checksum")
    name, value = found[0]
    if name not in ALGORITHMS:
        raise S3Error("InvalidRequest", f"checksum {name[:40]!r} is not known")
    decoded(value.partition("-")[0], _DIGEST_BYTES[name], code)
    return name, value


def decoded(text: str, size_bytes: int, code: str) -> bytes:
    """Decode base64 with this number of bytes. Raises S3Error with the code."""
    try:
        value = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        value = b""
    if len(value) != size_bytes:
        raise S3Error(code, f"{text[:100]!r} is not the base64 of {size_bytes} bytes")
    return value


def encoded(digest: bytes) -> str:
    """Return a digest as S3's headers have it."""
    return base64.b64encode(digest).decode()


def kind(value: str) -> str:
    """Return S3's word for what a checksum covers: the object's bytes, or the checksums of its parts."""
    return "COMPOSITE" if "-" in value else "FULL_OBJECT"


def combined(algorithm: str, values: Sequence[str], sizes: Sequence[int]) -> str:
    """Return the checksum of consecutive bytes from those of their parts and the parts' sizes in bytes.

    The algorithm must be one of `COMBINED`.
    """
    crc, size_bytes = 0, _DIGEST_BYTES[algorithm]
    for value, part_bytes in zip(values, sizes, strict=True):
        crc = combine(crc, int.from_bytes(base64.b64decode(value), "big"), part_bytes, COMBINED[algorithm])
    return encoded(crc.to_bytes(size_bytes, "big"))


def composite(algorithm: str, values: list[str]) -> str:
    """Return the checksum of an upload's parts from theirs: that of the digests, and the number of parts."""
    made = hasher(algorithm)
    for value in values:
        made.update(base64.b64decode(value))
    return f"{encoded(made.digest())}-{len(values)}"
