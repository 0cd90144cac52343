"""Bodies of requests: kept until they are complete, and compared with the checksum that the client sent."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from typing import Protocol

import xxhash

from ..spool import BodyMemory, BodySpool
from .request import AISError

CHECKSUM_TYPE, CHECKSUM_VALUE = "ais-checksum-type", "ais-checksum-value"


class _Hasher(Protocol):
    def update(self, data: bytes, /) -> object: ...
    def hexdigest(self) -> str: ...


class AisBody(BodySpool):
    """The bytes of a request. Use `feed` for what arrives, then `finish`; always `close`."""

    def __init__(
        self,
        headers: Mapping[str, str],
        *,
        folder: str | None,
        most_bytes: int,
        memory: BodyMemory,
        announced_bytes: int | None = None,
    ) -> None:
        """`announced_bytes`: see `BodySpool`. Raises AISError for a checksum of an unknown type."""
        self._want = ""
        self._hasher: _Hasher | None = None
        self._type = headers.get(CHECKSUM_TYPE, "").strip().lower()
        value = headers.get(CHECKSUM_VALUE, "").strip().lower()
        if self._type not in ("", "none") and value:
            self._want = value
            if self._type != "crc32c":  # every body's is known
                self._hasher = _hasher(self._type)
        super().__init__(folder=folder, most_bytes=most_bytes, memory=memory, announced_bytes=announced_bytes)

    def feed(self, pieces: Sequence[bytes]) -> None:
        """Take what arrived next. Raises Refusal, as `BodySpool.write` does."""
        self.write(*pieces)
        if self._hasher is not None:
            for piece in pieces:
                self._hasher.update(piece)

    def finish(self) -> None:
        """Compare the whole body with its checksum. Raises AISError."""
        if not self._want:
            return
        found = self._hasher.hexdigest() if self._hasher is not None else f"{self.crc32c:08x}"
        if not hmac.compare_digest(found.encode(), self._want.encode()):
            raise AISError(
                400, f"bad checksum: {self._type} of what arrived is {found}, not {self._want[:128]}", "ErrBadCksum"
            )


def _hasher(kind: str) -> _Hasher:
    if kind in ("xxhash", "xxhash2"):
        return xxhash.xxh64()
    if kind in ("md5", "sha256", "sha512"):
        return hashlib.new(kind, usedforsecurity=False)
    raise AISError(400, f"invalid checksum type {kind[:40]!r}")
