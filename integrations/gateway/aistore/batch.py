"""GetBatch: objects, members and ranges of any buckets with one request, as one archive in the order of the request.

An archive that is streamed is either complete, or the connection ends before the body does. Nothing that went wrong
looks like the end of a shorter archive.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from tempfile import SpooledTemporaryFile
from typing import Any

from ais_loader.errors import LoaderError
from ais_loader.objects.archive import BatchArchive, check_names, member_name
from ais_loader.values.batch import Batch
from ais_loader.values.entry import Item, Status

from ..reading import begun
from ..request import Response
from ..spool import IN_MEMORY_BYTES
from .batch_plan import Asked, BatchPlan, batch_plan
from .jobs import GET_BATCH, Stopping
from .recent_jobs import RecentJobs, Stopped
from .request import AISError, AisRequest, of_store

MAX_BODY_BYTES = 32 << 20
_CHUNK_BYTES = 1 << 20


def get_batch(request: AisRequest) -> Response:
    """Answer GetBatch. Raises Refusal for what is known before the answer begins."""
    plan = batch_plan(request.json, request.bucket, request.provider, request.query.get("coloc", ""))
    for provider, name in plan.buckets:
        request.named_bucket(name, provider, must_exist=True)
    check_names(plan.entries, plan.names)
    batch = request.client.get_batch(plan.entries, on_error="placeholder" if plan.goes_on else "raise")
    archive = _Archive(batch, plan, request.recent_jobs)
    try:
        if not plan.is_streamed:
            with archive:
                return _with_document(archive, request.spool)
        chunks = begun(archive)
    except (Stopped, LoaderError) as error:
        archive.close()
        raise _refused(batch, plan, error) from error
    return Response(headers={"content-type": plan.content_type}, body=chunks)


class _Archive(BatchArchive):
    """The archive of a batch, whose members have the names that AIStore gives them.

    It is a job as long as it is written, which its client may stop.
    """

    def __init__(self, batch: Batch, plan: BatchPlan, jobs: RecentJobs) -> None:
        super().__init__(batch, plan.archive, plan.names)
        self.rows: list[dict[str, Any]] = []
        """Descriptions of the entries, in front of an archive that is not streamed."""
        self._is_told = not plan.is_streamed
        self._size_bytes = 0
        self._stopping = Stopping()
        self._job = jobs.begin(GET_BATCH, self._stopping.stop)

    def close(self) -> None:
        """Abandon what has not been written, and end the job."""
        self._end()
        super().close()

    def __del__(self) -> None:
        self._end()

    def _end(self) -> None:
        error = "" if self.delivered == self.entries else "ended early"
        self._job.end(self.delivered, self._size_bytes, error)

    def name_of(self, item: Item, size_bytes: int) -> str:
        """Return the name of a member. Raises Stopped if the client has stopped the job."""
        self._stopping.check()
        self._size_bytes += size_bytes
        if self._is_told:
            self.rows.append(_row(item, size_bytes))
        # An archive that is missing hides its member's name, so that clients can tell the two apart.
        if item.status == Status.NOT_FOUND and item.entry.member is not None:
            return member_name(item.entry, self.names, failed=True).removesuffix(f"/{item.entry.member}")
        return super().name_of(item, size_bytes)


def _row(item: Item, size_bytes: int) -> dict[str, Any]:
    asked: Asked = item.entry.opaque
    row: dict[str, Any] = {"objname": asked.name}
    if asked.member:
        row["archpath"] = asked.member
    row |= {"bucket": item.entry.bucket, "provider": asked.provider, "size": size_bytes}
    if asked.opaque is not None:
        row["opaque"] = asked.opaque
    if item.error is not None:
        row["err_msg"] = str(item.error)
    return row


def _with_document(archive: _Archive, spool: str | None) -> Response:
    """Return the document about all entries, and then the archive, as a multipart body."""
    file = SpooledTemporaryFile(IN_MEMORY_BYTES, dir=spool)  # noqa: SIM115 - closed with the answer
    try:
        archive.write_to(file)
        size_bytes = file.tell()
        file.seek(0)
    except BaseException:
        file.close()
        raise
    boundary = uuid.uuid4().hex
    document = json.dumps({"uuid": boundary[:12], "out": archive.rows})
    head = (
        f'--{boundary}\r\nContent-Disposition: form-data; name="metadata"\r\n\r\n{document}\r\n'
        f'--{boundary}\r\nContent-Disposition: form-data; name="archive"; filename="batch.{archive.archive}"\r\n'
        "Content-Type: application/octet-stream\r\n\r\n"
    ).encode()
    tail = f"\r\n--{boundary}--\r\n".encode()

    def parts() -> Iterator[bytes]:
        with file:
            yield head
            while chunk := file.read(_CHUNK_BYTES):
                yield chunk
            yield tail

    headers = {"content-type": f"multipart/mixed; boundary={boundary}"}
    return Response(headers=headers, body=parts(), size_bytes=len(head) + size_bytes + len(tail))


def _refused(batch: Batch, plan: BatchPlan, error: Stopped | LoaderError) -> AISError:
    """Return the refusal for an error that ended a batch before its answer began."""
    if isinstance(error, Stopped):
        return AISError(409, "the batch was stopped")
    at = next(iter(batch.failures), None)
    if at is None:
        return of_store(error, "", "")
    asked: Asked = plan.entries[at].opaque
    return of_store(error, asked.url, asked.name)
