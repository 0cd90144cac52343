"""Publication of one commit's files: one for each object, and one for all that are small, if there are several."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

from storage_node.store import format as fmt
from storage_node.store.archives.kinds import kind_of_name
from storage_node.store.drive.pending import PendingObject
from storage_node.store.drive.sequence import SequenceNumbers
from storage_node.store.drive.version_clock import VersionClock
from storage_node.store.failpoints import failpoint
from storage_node.store.files.object_files import RawFiles
from storage_node.store.files.segment_writer import SegmentDraft
from storage_node.store.files.staged_file import StagedFile
from storage_node.store.format import CatalogEntry, Version


class CommitFiles:
    """`prepare`, then `publish`, then `discard` in any case. Belongs to one thread."""

    def __init__(
        self,
        files: RawFiles,
        generations: SequenceNumbers,
        clock: VersionClock,
        objects: Sequence[PendingObject],
        stage: Callable[[], StagedFile] | None,
        *,
        epoch: int,
        sync: bool,
    ) -> None:
        """`stage`: see `Drive.stage`; without it each object has a file of its own. Raises OSError, LoaderError."""
        self._files = files
        self._generations = generations
        self._clock = clock
        self._objects = objects
        self._epoch = epoch
        self._sync = sync
        self._now_ns = time.time_ns()
        small = [pending.file for pending in objects if _may_share(pending)]
        self._draft: SegmentDraft | None = None
        if stage is not None and len(small) > 1:
            generation = generations.take()  # before there is a file: it may fail
            self._draft = SegmentDraft(stage(), generation, small)

    def prepare(self) -> list[CatalogEntry]:
        """Have the files say what they hold, lasting if they are to be: what may become the objects' entries.

        Raises OSError, LoaderError.
        """
        records = [self.identify(pending) for pending in self._objects]
        draft = self._draft
        if draft is not None:
            draft.write()
            for at, pending in enumerate(self._objects):
                if pending.file in draft:
                    record = records[at]
                    # As `_replace`, which takes as long as all else that is done here for one object.
                    records[at] = CatalogEntry._make((*record[:6], draft.offset(pending.file), *record[7:]))
        if self._sync:
            alone = [pending.file for pending in self._objects if not self._in_segment(pending)]
            self._files.sync_staged(alone if draft is None else [*alone, draft.file])
        return records

    def identify(self, pending: PendingObject, version: Version | None = None) -> CatalogEntry:
        """Give the object a generation and a version, and have its file say what it is. Raises OSError, LoaderError."""
        version = version or pending.version
        if version is None:
            version = Version(self._epoch, self._clock.take())
        else:
            self._clock.hear(version.counter)
        generation = self._generations.take()
        content = pending.damaged or pending.file
        modified_ns = pending.modified_ns or self._now_ns
        identity = fmt.encode_identity(
            fmt.Identity(
                pending.bucket_uuid,
                pending.name,
                version,
                generation,
                content.size_bytes,
                content.checksum,
                modified_ns,
                pending.metadata,
            )
        )
        if self._draft is not None and pending.file in self._draft:
            path, offset = self._draft.describe(pending.file, identity, generation)
        else:
            self._files.set_identity(pending.file.fd, identity)
            path, offset = fmt.file_path(pending.bucket_uuid, pending.name, generation), 0
        return CatalogEntry(
            version.epoch,
            version.counter,
            version.node,
            content.size_bytes,
            content.checksum,
            modified_ns,
            offset,
            path,
            fmt.encode_metadata(pending.metadata),
        )

    def identify_anew(self, pending: PendingObject, version: Version) -> CatalogEntry:
        """After `prepare`: somebody else was faster. Raises as `identify` does."""
        record = self.identify(pending, version)
        if self._sync and not self._in_segment(pending):  # which `publish` sees to
            pending.file.sync()
        return record

    def _in_segment(self, pending: PendingObject) -> bool:
        return self._draft is not None and pending.file in self._draft

    def publish(self, chosen: Sequence[tuple[PendingObject, CatalogEntry]]) -> None:
        """Give the files of these objects their final names; the others go. Raises OSError."""
        if self._sync:
            self._files.make_lasting_folders(record.path for _, record in chosen)
        self._publish_segment(pending.file for pending, _ in chosen if self._in_segment(pending))
        for pending, record in chosen:
            if not self._in_segment(pending):
                self._files.publish(pending.file, record.path)
            failpoint("put.renamed")

    def _publish_segment(self, chosen: Iterable[StagedFile]) -> None:
        kept = list(chosen)
        if self._draft is None or not kept:
            return
        if self._draft.keep_only(kept) and self._sync:
            self._draft.file.sync()
        self._files.publish(self._draft.file, self._draft.path)

    def discard(self) -> None:
        """Remove the segment unless it has been published; the objects' own files are their owners' to discard."""
        if self._draft is not None:
            self._draft.file.discard()


def _may_share(pending: PendingObject) -> bool:
    """Not an archive, whose members are read by its file; nor what has other sizes and checksums than its bytes."""
    return pending.file.held is not None and pending.damaged is None and kind_of_name(pending.name) is None
