"""Input and output of a transform, and the stage that makes the one of the other.

An input is whole and verified before a transform sees it; an output is whole, counted and summed before anybody else
does. Both are either in memory or in a file of their own, never both: what passes between is bounded by bytes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ais_loader.errors import LoaderError
from ais_loader.wire.generated import ais_batch_pb2 as pb
from storage_node.store.checksum import crc32c

if TYPE_CHECKING:
    from storage_node.etl.http_side import Destination, PutResult

MAX_IN_MEMORY_BYTES = 4 << 20
"""A larger input or output is a file."""
_READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Origin:
    """Which stored bytes a transform is run over: the key of what it makes, with the transforms and their arguments."""

    bucket: str
    name: str
    version: str
    """The object's."""
    member: str = ""
    start: int = 0
    length: int = -1

    def __str__(self) -> str:
        return f"{self.bucket}/{self.name}" + (f"/{self.member}" if self.member else "")


@dataclass(slots=True)
class Content:
    """Bytes in memory, or of a file: `fd` from `offset` on. Closed by whoever has it last."""

    size_bytes: int
    checksum: int
    """CRC-32C of all of it."""
    data: memoryview | None = None
    fd: int = -1
    """Open for reading; -1 for bytes in memory."""
    offset: int = 0
    path: str = ""
    """Of the file, where it holds this and nothing else: what may be passed in place of bytes."""

    @classmethod
    def of(cls, data: bytes | bytearray | memoryview) -> Content:
        view = memoryview(data).toreadonly()
        return cls(len(view), crc32c(view), view)

    def read(self, offset: int, length: int) -> memoryview:
        """That many bytes, fewer at the end. May wait for a drive. Raises OSError."""
        if self.data is not None:
            return self.data[offset : offset + length]
        wanted = max(0, min(length, self.size_bytes - offset))
        parts = []
        while wanted:
            part = os.pread(self.fd, wanted, self.offset + offset)
            if not part:
                raise OSError(f"{self.path or 'a spooled file'}: ends {wanted:,} bytes early")
            parts.append(part)
            offset, wanted = offset + len(part), wanted - len(part)
        return memoryview(parts[0] if len(parts) == 1 else b"".join(parts))

    def chunks(self, chunk_bytes: int = _READ_BYTES) -> Iterator[memoryview]:
        """All of it, in order. May wait for a drive. Raises OSError."""
        for offset in range(0, self.size_bytes, chunk_bytes):
            yield self.read(offset, chunk_bytes)

    def append(self, data: memoryview) -> None:
        """Of a file, at its end; its checksum follows. May wait for a drive. Raises OSError."""
        while data:
            data = data[os.write(self.fd, data) :]

    def close(self) -> None:
        """May be called again."""
        self.data, fd, self.fd = None, self.fd, -1
        if fd >= 0:
            with suppress(OSError):
                os.close(fd)


class Stage(Protocol):
    """One version of a transform on this node: its workers, or its connections. Belongs to the node's event loop."""

    async def run(self, origin: Origin, content: Content, args: str) -> Content:
        """Pass one input through. The input stays the caller's, the output becomes it.

        Cancelled, it lets go of the input before it returns.

        Raises TransformFailed, TransformTimeout, TransformGone.
        """

    async def close(self) -> None:
        """Let what runs end, then end the workers. Never raises."""


class Transforms(Protocol):
    """What batches and jobs ask: all transforms of this node, by name. Belongs to the node's event loop."""

    def versions(self, call: pb.TransformCall) -> tuple[bytes, ...]:
        """The uuid of each stage, by which results are kept. Raises TransformNotFound, TransformGone."""

    async def run(
        self, call: pb.TransformCall, origin: Origin, content: Content, versions: Sequence[bytes] = ()
    ) -> Content:
        """Through all stages; the input is closed. `versions`: only by these, TransformGone otherwise.

        Waits for its turn where all workers are busy: tenants share them by the seconds that they take.

        Raises TransformNotFound, TransformRefused, TransformFailed, TransformTimeout, TransformGone.
        """

    def puts(self, call: pb.TransformCall) -> bool:
        """Whether what makes the result can put it to another node itself: a server that its author says it of."""

    async def run_to(
        self,
        call: pb.TransformCall,
        origin: Origin,
        content: Content,
        destination: Destination,
        versions: Sequence[bytes] = (),
    ) -> PutResult:
        """As `run`, of a call that `puts`: the result goes from there to its destination.

        Raises NodeUnavailable where it was made and not taken, or it is not known whether it was, and what `run` does;
        ValueError where names and metadata are too long for a token: then the input is the caller's still.
        """

    def burst(self, call: pb.TransformCall) -> int:
        """How many small inputs it is worth to pass through together now, by `run_many`."""

    async def run_many(
        self, call: pb.TransformCall, inputs: Sequence[tuple[Origin, Content]], versions: Sequence[bytes] = ()
    ) -> list[Content | LoaderError]:
        """As `run` of each, in one turn: what goes wrong with one is its alone."""
