"""Promotion of one group of files by an event loop: small files are read and written together, large ones on their own.

Subclasses know where the objects go: to the owners in a cluster (`cluster`), or into a remote bucket
(`storage_node.remote.promotion`).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import TypeAlias

from ais_loader.errors import LoaderError
from ais_loader.wire.generated import ais_objects_pb2 as pb
from ais_loader.wire.object_info import Described, Stored, stored_of
from storage_node.limits.tasks import OffLoop, results_of
from storage_node.promote.into_store import give_up
from storage_node.promote.job import Job, Outcome, failed, is_small, open_unless_stored, stamp_metadata
from storage_node.promote.source import FileStamp, SourceFile
from storage_node.promote.walk import Found, FoundFile, NotFit
from storage_node.store.checksum import crc32c
from storage_node.store.files.clone_or_copy import read_source
from storage_node.store.store import Store

_PIECE_BYTES = 1 << 20
Heads: TypeAlias = Callable[[str, Sequence[str]], Awaitable[Sequence[Described | LoaderError]]]
"""Looks up the objects of a bucket with these names."""


class GroupPromotion:
    """Belongs to an event loop."""

    def __init__(self, store: Store, job: Job, work: OffLoop, heads: Heads) -> None:
        self._store, self._job, self._work, self._heads = store, job, work, heads

    async def _put_small(self, objects: Sequence[pb.SmallObject]) -> Sequence[Described | LoaderError]:
        """Return one result per object, in order. Raises LoaderError."""
        raise NotImplementedError

    async def _put_large(self, source: SourceFile) -> Outcome:
        """Store a file on its own. Raises LoaderError."""
        raise NotImplementedError

    async def _pieces(self, source: SourceFile, *, linked: bool = False) -> AsyncGenerator[bytes, None]:
        """Yield the bytes. Raises SourceChanged at the end, before anything is stored; see `require_unchanged`."""
        offset = 0
        while piece := await self._work(read_source, source.fd, _PIECE_BYTES, offset):
            offset += len(piece)
            yield piece
        source.require_unchanged(offset, linked=linked)

    async def promote_group(self, group: Sequence[Found]) -> list[Outcome]:
        """Store these files; one outcome per file, in order. See `into_store.promote_group`."""
        outcomes = {at: failed(found, found.error) for at, found in enumerate(group) if isinstance(found, NotFit)}
        files = {at: found for at, found in enumerate(group) if isinstance(found, FoundFile)}
        names = [found.name for found in files.values()]
        heads = zip(names, await self._heads(self._job.bucket, names), strict=True)
        # A file whose object cannot be looked up is written again.
        existing = {name: stored_of(one) for name, one in heads if not isinstance(one, LoaderError)}
        sources: dict[int, SourceFile] = {}
        small: dict[int, pb.SmallObject] = {}
        stamps: dict[int, FileStamp] = {}
        try:
            await self._work(self._open, files, existing, outcomes, sources, small, stamps)
            answers = await self._put_small(list(small.values())) if small else []
            for at, answer in zip(small, answers, strict=True):
                if isinstance(answer, LoaderError):
                    outcomes[at] = failed(files[at], answer)
                else:
                    outcomes[at] = Outcome(files[at].path, files[at].name, stored_of(answer))
            large = await results_of(map(self._put_large, sources.values()))
            for at, outcome in zip(sources, large, strict=True):
                outcomes[at] = failed(files[at], outcome) if isinstance(outcome, LoaderError) else outcome
        finally:
            for source in sources.values():
                source.close()
        if self._job.move:
            done = [(at, outcomes[at], files[at], stamp) for at, stamp in stamps.items() if outcomes[at].error is None]
            outcomes.update(await self._work(give_up, self._store, done))
        return [outcomes[at] for at in range(len(group))]

    def _open(
        self,
        files: dict[int, FoundFile],
        existing: dict[str, Stored],
        outcomes: dict[int, Outcome],
        sources: dict[int, SourceFile],
        small: dict[int, pb.SmallObject],
        stamps: dict[int, FileStamp],
    ) -> None:
        """Open the files: those that need no work get an outcome, the others are sorted by size."""
        for at, found in files.items():
            try:
                source = open_unless_stored(self._job, found, existing.get(found.name))
                if source is None:
                    outcomes[at] = Outcome(found.path, found.name, existing[found.name], skipped=True)
                    continue
                stamps[at] = source.stamp
                if not source.equal and not is_small(source):
                    sources[at] = source
                    continue
                with source:
                    if source.equal:
                        outcomes[at] = Outcome(found.path, found.name, existing[found.name], skipped=True)
                        continue
                    data = source.read()
                small[at] = pb.SmallObject(
                    bucket=self._job.bucket,
                    name=found.name,
                    data=data,
                    checksum=crc32c(data),
                    metadata=stamp_metadata(source),
                )
            except LoaderError as error:
                outcomes[at] = failed(found, error)
