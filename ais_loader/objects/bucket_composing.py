"""Composing methods of Bucket, which make objects of what the store has: copies, renames, appends, uploads in parts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Sequence
from typing import Any, Literal, overload

from ais_loader import errors
from ais_loader.changes import CopySummary, OnError, OnProgress, RenameSummary, check_on_error
from ais_loader.content import Content
from ais_loader.entry import ObjectInfo
from ais_loader.objects import copy as copying
from ais_loader.objects.append import append, append_members
from ais_loader.objects.job_stages import job_stages
from ais_loader.objects.multipart import (
    MultipartUpload,
    UploadInfo,
    begin_upload,
    resume_upload,
    sweep_uploads,
    uploads,
)
from ais_loader.pipeline import Etl
from ais_loader.transport.base import Transport


class BucketComposing(ABC):
    """Part of `Bucket`."""

    name: str

    @property
    @abstractmethod
    def _transport(self) -> Transport: ...

    def copy(
        self,
        name: str,
        to: str,
        *,
        to_bucket: str | None = None,
        if_absent: bool = False,
        etl: Etl | None = None,
    ) -> ObjectInfo:
        """Copy an object, with its metadata, in this bucket or to another one. The store does it: no bytes come here.

        Args:
            if_absent: copy it only where there is no object of that name.
            etl: put what a transform, or a pipeline, makes of it. The metadata name the source's version and the
                transforms', and are not the source's. Not together with `if_absent`.

        The source is verified while it is read; of a damaged one nothing is made.
        Raises ObjectNotFound, BucketNotFound, InvalidName, CorruptObject, InvalidRequest (a copy of itself),
        VersionConflict, and what `put` raises; with `etl` TransformNotFound, TransformFailed, TransformTimeout,
        TransformGone.
        """
        if etl is not None:
            return copying.copy_transformed(
                self._transport, self.name, name, to_bucket or self.name, to, job_stages(etl), if_absent=if_absent
            )
        return copying.copy_object(self._transport, self.name, name, to_bucket or self.name, to, if_absent=if_absent)

    def rename(self, name: str, to: str, *, to_bucket: str | None = None, if_absent: bool = False) -> ObjectInfo:
        """Copy an object, then delete it in the version that was copied. Arguments and errors as `copy`.

        Interrupted in between, the object has both names; renaming again ends it (a copy of it that is there already
        does not count as there for `if_absent`). VersionConflict when the source is replaced meanwhile: what was
        copied is there, and the newer one keeps the old name.
        """
        return copying.rename_object(self._transport, self.name, name, to_bucket or self.name, to, if_absent=if_absent)

    def copy_prefix(
        self,
        prefix: str,
        to: str,
        *,
        to_bucket: str | None = None,
        on_error: OnError = "raise",
        progress: OnProgress | None = None,
    ) -> CopySummary:
        """Copy all objects whose names begin with `prefix`; in the copies' names `to` stands in its place.

        An object that is there already, with the same bytes and metadata, is left as it is: doing the same again after
        an interruption copies the rest.

        Args:
            on_error: "raise" raises the first failure: all objects before it are copied, and up to 7 after it may be.
                "return" copies the others, and has the summary name those that failed.
            progress: called with a `Progress` after each object, in the order of names, in this thread.

        Returns:
            How many objects were copied, and how many were there; of those that failed the first 1,000, by the name
            that was to be copied.

        Raises InvalidRequest for overlapping prefixes of one bucket, and what `copy` raises. With either `on_error`,
        what is retryable ends it: NodeUnavailable, as the next object would fare no better.
        """
        return copying.copy_prefix(
            self._transport, self.name, prefix, to_bucket or self.name, to, on_error=on_error, progress=progress
        )

    def rename_prefix(
        self,
        prefix: str,
        to: str,
        *,
        to_bucket: str | None = None,
        on_error: OnError = "raise",
        progress: OnProgress | None = None,
    ) -> RenameSummary:
        """Rename all objects whose names begin with `prefix`, one by one, as `copy_prefix` and `rename` do."""
        return copying.rename_prefix(
            self._transport, self.name, prefix, to_bucket or self.name, to, on_error=on_error, progress=progress
        )

    @overload
    def iter_copy_prefix(
        self, prefix: str, to: str, *, to_bucket: str | None = None, on_error: Literal["raise"] = "raise"
    ) -> Generator[ObjectInfo, None, None]: ...

    @overload
    def iter_copy_prefix(
        self, prefix: str, to: str, *, to_bucket: str | None = None, on_error: Literal["yield"]
    ) -> Generator[ObjectInfo | errors.LoaderError, None, None]: ...

    def iter_copy_prefix(
        self, prefix: str, to: str, *, to_bucket: str | None = None, on_error: Literal["raise", "yield"] = "raise"
    ) -> Generator[Any, None, None]:
        """`copy_prefix` step by step: yields the copies' infos, in the order of names; of what was there already, none.

        Lazy: nothing is copied but by iterating. Up to 7 objects are under way ahead, and finished when the generator
        is closed. With on_error="yield" an object's error comes in its place. Otherwise as `copy_prefix`.
        """
        check_on_error(on_error, "raise", "yield")
        return copying.iter_copy_prefix(
            self._transport, self.name, prefix, to_bucket or self.name, to, remove=False, on_error=on_error
        )

    @overload
    def iter_rename_prefix(
        self, prefix: str, to: str, *, to_bucket: str | None = None, on_error: Literal["raise"] = "raise"
    ) -> Generator[ObjectInfo, None, None]: ...

    @overload
    def iter_rename_prefix(
        self, prefix: str, to: str, *, to_bucket: str | None = None, on_error: Literal["yield"]
    ) -> Generator[ObjectInfo | errors.LoaderError, None, None]: ...

    def iter_rename_prefix(
        self, prefix: str, to: str, *, to_bucket: str | None = None, on_error: Literal["raise", "yield"] = "raise"
    ) -> Generator[Any, None, None]:
        """`rename_prefix` step by step, lazy as `iter_copy_prefix`: yields each object's info under its new name."""
        check_on_error(on_error, "raise", "yield")
        return copying.iter_copy_prefix(
            self._transport, self.name, prefix, to_bucket or self.name, to, remove=True, on_error=on_error
        )

    def append(self, name: str, data: Content, *, timeout_s: float = 60.0) -> ObjectInfo:
        """Append bytes to an object, in one step; an object that is not there is made. Its metadata stay.

        Readers see the old object or the new one. Of several who append at once each one's bytes are there afterwards,
        in one order or another. The store copies the object each time: many small appends belong into one.

        Args:
            timeout_s: how long to try again while others write the same object.

        Raises VersionConflict when that time is over; otherwise as `put`. After NodeUnavailable or SilenceTimeout the
        bytes may have been appended, once.
        """
        return append(self._transport, self.name, name, data, timeout_s)

    def append_members(
        self, shard: str, members: Sequence[tuple[str, Content]], *, timeout_s: float = 60.0
    ) -> ObjectInfo:
        """Append members, named and in this order, to a plain tar, in one step as `append`; one that is not there is
        made. Members that are there keep their bytes and places, and the new ones can be fetched by name at once.

        Args:
            members: (name, contents) pairs, held in memory meanwhile.

        Raises MemberExists when the tar, or `members` itself, has a member of one of the names already;
        ArchiveUnsupported for a compressed tar or a zip, NotAnArchive, ArchiveDamaged; otherwise as `append`.
        """
        return append_members(self._transport, self.name, shard, members, timeout_s)

    def multipart(
        self,
        name: str,
        *,
        upload_id: str | None = None,
        part_bytes: int | None = None,
        metadata: dict[str, str] | None = None,
    ) -> MultipartUpload:
        """Begin to store an object in parts, or go on with `upload_id` (of any process: `MultipartUpload.id`).

        Args:
            part_bytes: the size that all parts but the last must have; None: any. Not for `upload_id`, which has one.
            metadata: of the object; not for `upload_id` either.

        Raises InvalidName, BucketNotFound, InvalidRequest; ObjectNotFound for an upload that is no more.
        """
        if upload_id is not None:
            if part_bytes is not None or metadata is not None:
                raise errors.InvalidRequest("part_bytes and metadata are given when an upload begins")
            return resume_upload(self._transport, self.name, name, upload_id)
        return begin_upload(self._transport, self.name, name, part_bytes=part_bytes, metadata=dict(metadata or {}))

    def uploads(self) -> Iterator[UploadInfo]:
        """Uploads in parts that were neither completed nor aborted, and parts that were left behind; found lazily."""
        return uploads(self._transport, self.name)

    def sweep_uploads(self, older_than_s: float) -> list[UploadInfo]:
        """Abort the uploads of which nothing was stored in the last `older_than_s`, by the clocks; which ones."""
        return sweep_uploads(self._transport, self.name, older_than_s)
