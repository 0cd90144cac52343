"""Re-framing on PUT: stores compressed archives with many restart points, so that reading members is cheap.

A .tar.zst becomes seekable zstd, a .tar.lz4 frames of independent blocks; for a .tar.gz the index has restart points
anyway. This is done once, by the store that a client sends a PUT to, before it is replicated, so that all replicas have
the same bytes. The received bytes are spooled to an unnamed file until all of them have arrived and match the announced
size and checksum. An archive that is damaged, has restart points already, is too large, or would not have exactly the
same members is stored unchanged. The object's metadata contains the size and checksum of what was sent.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ais_loader.errors import InvalidRequest, LibraryMissing, LoaderError
from ais_loader.extras import needs
from ais_loader.wire.reserved import ORIGINAL_CHECKSUM, ORIGINAL_SIZE
from storage_node.store.archives.archive import Archive, index_shard
from storage_node.store.archives.index import MemberIndex
from storage_node.store.archives.kinds import ArchiveKind, can_reframe
from storage_node.store.archives.reframe import reframe
from storage_node.store.spooled import Spooled, spool_for
from storage_node.store.store import Store
from storage_node.store.write import check_content, checked_metadata

WORTH_BYTES = 1 << 20
"""An archive is stored unchanged if no more than this has to be decompressed before any member."""
MAX_CONTENT_BYTES = 1 << 30
"""Maximum content of an archive that is re-framed, because its client waits meanwhile."""
_LZ4_BLOCK_BYTES = 256 << 10
log = logging.getLogger(__name__)


def reframed(store: Store, name: str, spool: Spooled) -> Spooled | None:
    """Return a re-framed archive, which the caller closes; None to store the archive unchanged."""
    rewritten: Spooled | None = None
    try:
        before = index_shard(spool.source, name)
        archive = Archive(spool.source, before)
        if archive.stretch_bytes <= WORTH_BYTES or before.content_bytes > MAX_CONTENT_BYTES:
            return None
        content = archive.content()
        rewritten = spool_for(store, spool.label)
        for piece in reframe(content) if archive.index.kind is ArchiveKind.TAR_ZST else _independent_blocks(content):
            rewritten.write(piece)
        after = index_shard(rewritten.source, name)
        if not _same_members(before, after):
            raise LoaderError("its members would not be the same")
        return rewritten
    except (
        LoaderError,
        OSError,
        RuntimeError,
        MemoryError,
    ) as error:  # after any error the archive can be stored unchanged
        log.info("%s is stored as it came: %s", spool.label, error)
        if rewritten is not None:
            rewritten.close()
        return None


def _same_members(before: MemberIndex, after: MemberIndex) -> bool:
    return (
        before.content_bytes == after.content_bytes
        and len(before) == len(after)
        and all(
            (one.name, one.offset_bytes, one.size_bytes, one.checksum)
            == (other.name, other.offset_bytes, other.size_bytes, other.checksum)
            for one, other in zip(before, after, strict=True)
        )
    )


def _independent_blocks(chunks: Iterable[bytes]) -> Iterator[bytes]:
    with needs("lz4", "re-framing", LibraryMissing):
        import lz4.frame  # type: ignore[import-untyped]
    compressor = lz4.frame.LZ4FrameCompressor(
        block_size=lz4.frame.BLOCKSIZE_MAX256KB, block_linked=False, content_checksum=True
    )
    yield compressor.begin()
    for chunk in chunks:
        for at in range(0, len(chunk), _LZ4_BLOCK_BYTES):
            yield compressor.compress(chunk[at : at + _LZ4_BLOCK_BYTES])
    yield compressor.flush()


def original_metadata(metadata: dict[str, str], spool: Spooled) -> dict[str, str]:
    """Add the size and checksum of what was sent to the metadata. Raises InvalidRequest if it becomes too large."""
    return checked_metadata(
        {**metadata, ORIGINAL_SIZE: str(spool.size_bytes), ORIGINAL_CHECKSUM: f"{spool.checksum:08x}"}
    )


@dataclass(frozen=True, slots=True)
class ToStore:
    """Content and properties of what a PUT stores."""

    chunks: Iterable[bytes | bytearray | memoryview]
    metadata: dict[str, str]
    size_bytes: int | None
    checksum: int | None


def replacement(store: Store, name: str, metadata: dict[str, str], spool: Spooled) -> tuple[Spooled, dict[str, str]]:
    """Return the bytes to store for a spooled archive, which the caller closes, and their metadata."""
    try:
        described = original_metadata(metadata, spool)
    except InvalidRequest:
        return spool, metadata
    rewritten = reframed(store, name, spool)
    return (spool, metadata) if rewritten is None else (rewritten, described)


@contextlib.contextmanager
def content_of(
    store: Store,
    bucket: str,
    name: str,
    chunks: Iterable[bytes | bytearray | memoryview],
    metadata: dict[str, str],
    size_bytes: int | None,
    checksum: int | None,
) -> Iterator[ToStore]:
    """Yield what to store for a received object. For a store that owns its buckets.

    Raises ContentMismatch, DriveFull, DriveFailed.
    """
    found = store.find_bucket(bucket)
    if found is None or not found.reframe or not can_reframe(name):
        yield ToStore(chunks, metadata, size_bytes, checksum)
        return
    with contextlib.ExitStack() as held:
        spool = spool_for(store, f"{bucket}/{name}")
        held.callback(spool.close)
        for chunk in chunks:
            spool.write(chunk)
        check_content(spool, size_bytes, checksum)
        stored, described = replacement(store, name, metadata, spool)
        held.callback(stored.close)
        yield ToStore(stored.chunks(), described, stored.size_bytes, stored.checksum)


def reframed_bytes(
    store: Store, label: str, name: str, pieces: Sequence[bytes], metadata: dict[str, str]
) -> tuple[bytes, dict[str, str]] | None:
    """Return bytes and metadata to store for a small object; None: unchanged. Raises DriveFull, DriveFailed."""
    with contextlib.ExitStack() as held:
        spool = spool_for(store, label)
        held.callback(spool.close)
        for piece in pieces:
            spool.write(piece)
        stored, described = replacement(store, name, metadata, spool)
        held.callback(stored.close)
        return None if stored is spool else (b"".join(stored.chunks()), described)
