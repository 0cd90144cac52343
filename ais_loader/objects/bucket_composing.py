"""Composing methods of Bucket, which build objects from stored ones: copies, renames, appends, uploads in parts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator
from typing import Any, Literal, overload

from ais_loader import errors
from ais_loader.objects import copy as copying
from ais_loader.objects.append import append
from ais_loader.objects.multipart import (
    MultipartUpload,
    UploadInfo,
    begin_upload,
    resume_upload,
    sweep_uploads,
    uploads,
)
from ais_loader.transport.base import Transport
from ais_loader.values.changes import CopySummary, OnError, OnProgress, RenameSummary, check_on_error
from ais_loader.values.entry import ObjectInfo
from ais_loader.values.pipeline import Etl, args_text, to_pipeline
from ais_loader.values.source import Content
from ais_loader.wire.generated import ais_etl_pb2 as pb


def job_stages(etl: Etl) -> list[pb.JobStage]:
    """Convert transforms to stages. Raises InvalidRequest, TypeError."""
    return [pb.JobStage(name=stage.name, args=args_text(stage.args)) for stage in to_pipeline(etl).stages]


class BucketComposing(ABC):
    """The composing part of `Bucket`."""

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
        """Copy an object with its metadata, within this bucket or to another one. The bytes do not leave the store.

        The source is verified as it is read, and a damaged source is not copied.

        Args:
            if_absent: Copy the object only if there is none of that name.
            etl: Store the result of this transform or pipeline instead of the source. The metadata of the new object
                name the versions of the source and of the transforms, and do not include the source's metadata. Cannot
                be combined with `if_absent`.

        Raises ObjectNotFound, BucketNotFound, InvalidName, CorruptObject, InvalidRequest (a copy of an object to
        itself), VersionConflict, and the errors of `put`; with `etl` also TransformNotFound, TransformFailed,
        TransformTimeout, TransformGone.
        """
        if etl is not None:
            return copying.copy_transformed(
                self._transport, self.name, name, to_bucket or self.name, to, job_stages(etl), if_absent=if_absent
            )
        return copying.copy_object(self._transport, self.name, name, to_bucket or self.name, to, if_absent=if_absent)

    def rename(self, name: str, to: str, *, to_bucket: str | None = None, if_absent: bool = False) -> ObjectInfo:
        """Copy an object, then delete the version that was copied. Arguments and errors are those of `copy`.

        If the call is interrupted in between, the object has both names, and renaming it again completes the operation
        (the copy that is already there does not count as existing for `if_absent`). If the source is replaced after it
        was copied, the call raises VersionConflict: the copy is kept, and the newer version keeps the old name.
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
        """Copy all objects whose names begin with `prefix`. In the names of the copies, `to` takes the place of
        `prefix`.

        If an object with the same bytes and metadata is already there, it is left alone, so you can call this again to
        resume an interrupted copy.

        Args:
            on_error: "raise" raises the first failure. All objects before it are copied, and up to 7 after it may be.
                "return" copies the other objects, and the summary names those that failed.
            progress: Called with a `Progress` after each object, in the order of names, in this thread.

        Returns:
            A summary with the number of objects copied, the number that were already there, and the first 1,000
            failures, by the name of the source object.

        Raises InvalidRequest for overlapping prefixes in one bucket, and the errors of `copy`. With either `on_error`,
        a retryable error such as NodeUnavailable ends the call, because the next object would fail as well.
        """
        to_bucket = to_bucket or self.name
        tally = copying.copy_prefix(
            self._transport, self.name, prefix, to_bucket, to, remove=False, on_error=on_error, progress=progress
        )
        return tally.summary(CopySummary, "copied")

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
        to_bucket = to_bucket or self.name
        tally = copying.copy_prefix(
            self._transport, self.name, prefix, to_bucket, to, remove=True, on_error=on_error, progress=progress
        )
        return tally.summary(RenameSummary, "renamed")

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
        """Yield the ObjectInfo of each copy, in the order of names: `copy_prefix` step by step.

        Nothing is yielded for an object that is already there. The generator is lazy: nothing is copied until you
        iterate. Up to 7 objects are copied ahead, and closing the generator waits for those whose copy has begun. With
        on_error="yield", the error of an object that failed is yielded in its place. Otherwise like `copy_prefix`.
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
        """Yield each object's info under its new name: `rename_prefix` step by step, as lazy as `iter_copy_prefix`."""
        check_on_error(on_error, "raise", "yield")
        return copying.iter_copy_prefix(
            self._transport, self.name, prefix, to_bucket or self.name, to, remove=True, on_error=on_error
        )

    def append(self, name: str, data: Content, *, timeout_s: float = 60.0) -> ObjectInfo:
        """Append bytes to an object atomically. An object that does not exist is created. The metadata do not change.

        Readers see the old object or the new one. If several writers append at once, the bytes of each are there
        afterwards, in some order. The store copies the whole object each time, so combine many small appends into one.

        Args:
            timeout_s: How long to retry while others write the same object, in seconds.

        Raises VersionConflict when that time is over, and otherwise the errors of `put`. After OutcomeUnknown or
        SilenceTimeout, the bytes may have been appended, but at most once.
        """
        return append(self._transport, self.name, name, data, timeout_s)

    def multipart(
        self,
        name: str,
        *,
        upload_id: str | None = None,
        part_bytes: int | None = None,
        metadata: dict[str, str] | None = None,
    ) -> MultipartUpload:
        """Begin to store an object in parts, or resume an upload.

        Args:
            upload_id: The upload to resume (`MultipartUpload.id`). Any process may have begun it.
            part_bytes: The size that every part but the last must have. None allows any size. Must not be given with
                `upload_id`.
            metadata: The object's metadata. Must not be given with `upload_id` either.

        Raises InvalidName, BucketNotFound, InvalidRequest; ObjectNotFound for an upload that does not exist any more.
        """
        if upload_id is not None:
            if part_bytes is not None or metadata is not None:
                raise errors.InvalidRequest(
                    "part_bytes and metadata can be given only when an upload begins, not together with upload_id"
                )
            return resume_upload(self._transport, self.name, name, upload_id)
        return begin_upload(self._transport, self.name, name, part_bytes=part_bytes, metadata=dict(metadata or {}))

    def uploads(self) -> Iterator[UploadInfo]:
        """List uploads in parts that were neither completed nor aborted, and parts that were left behind, lazily."""
        return uploads(self._transport, self.name)

    def sweep_uploads(self, older_than_s: float) -> list[UploadInfo]:
        """Abort the uploads for which nothing was stored in the last `older_than_s` seconds, and return them.

        Ages are measured by the wall clocks of the machines.
        """
        return sweep_uploads(self._transport, self.name, older_than_s)
