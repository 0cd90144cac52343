"""Lines of batches: one for each batch that was answered, whatever became of it.

The digest is that of the requested names (`digest_of`). Which bytes were delivered is told by `content`, the digest of
all statuses and checksums, which END has as well.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ais_loader.wire.answer_check import digest
from ais_loader.wire.cluster_map import by_key
from ais_loader.wire.frame import U8
from ais_loader.wire.generated import ais_batch_pb2 as pb
from storage_node.limits.counters import BatchTally
from storage_node.security.audit.log import AuditLog
from storage_node.security.audit.subject import CALL, NODE, SESSION, Subject

READ = "read"
_DIGEST_BYTES = 16


def digest_of(objects: Iterable[tuple[str, str, str]]) -> str:
    """Return the digest of buckets, names and members, in their order: BLAKE2b, 16 bytes, of all of them, each followed
    by a NUL, which no name has."""
    data = "".join(f"{text}\0" for one in objects for text in one).encode()
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).hexdigest()


def named(objects: Iterable[tuple[str, str, str]]) -> dict[str, list[str | list[str]]]:
    """Return names by bucket, as lines have them, each once: a member is a list of its archive's name and its own."""
    return by_key((bucket, [name, member] if member else name) for bucket, name, member in dict.fromkeys(objects))


class BatchReads:
    """Lines of the batches of one session. Belongs to the node's event loop."""

    def __init__(self, log: AuditLog, *, names: bool) -> None:
        """`names`: whether lines have the names of delivered objects."""
        self._log, self._names = log, names
        self._subject = Subject.current()

    @property
    def are_written(self) -> bool:
        """Whether the batches of this session are logged: those of other nodes are not, since the node that gathers for
        a client logs its batch."""
        return self._subject.origin.by != NODE

    def small(self, request: pb.BatchRequest, buckets: Sequence[str], size_bytes: int, content: int) -> None:
        """Append the line of a batch that is answered on the fast path, all of it."""
        if size_bytes or not request.HasField("whole_up_to"):  # otherwise the object is only described
            self._append(request, buckets, "complete", None, content, size_bytes)

    def ended(self, request: pb.BatchRequest, buckets: Sequence[str], tally: BatchTally) -> None:
        """Append the line of any other batch. `buckets`: those of the request before rights restricted them."""
        if tally.outcome in ("rejected", "described"):  # nothing was sent
            return
        status, content, size_bytes = None, None, 0
        if (batch := tally.batch) is not None:
            status, size_bytes = batch.status, int(batch.sizes.sum())
            content = digest(status, batch.checksum) if tally.outcome == "complete" else None
        self._append(request, buckets, tally.outcome, status, content, size_bytes)

    def _append(
        self,
        request: pb.BatchRequest,
        buckets: Sequence[str],
        outcome: str,
        status: U8 | None,
        content: int | None,
        size_bytes: int,
    ) -> None:
        subject, names = self._subject, self._names

        def make() -> dict[str, Any]:
            objects = _objects(request, buckets)
            fields: dict[str, Any] = {"event": READ, "transport": _transport(subject), **subject.fields(request.tenant)}
            if request.request_id:
                fields["request"] = request.request_id
            fields |= {"outcome": outcome, "buckets": sorted({one[0] for one in objects}), "digest": digest_of(objects)}
            fields["entries"] = len(objects)
            denied = failed = 0
            if status is not None:
                denied = int(np.count_nonzero(np.isin(status, (pb.DENIED, pb.OBJECT_DENIED))))
                failed = int(np.count_nonzero(status)) - denied
            if outcome == "complete":
                fields |= {
                    "delivered": len(objects) - denied - failed,
                    "bytes": size_bytes,
                    "content": f"{content:08x}",
                }
            if status is not None or outcome == "complete":
                fields |= {"denied": denied, "failed": failed}
            if request.transform:
                fields["transforms"] = sorted({stage.name for call in request.transform for stage in call.stage})
            if names:  # of a batch that was broken off, all that may have been delivered
                fields["names"] = named(objects if status is None else _delivered(objects, status))
            return fields

        self._log.append(make, len(request.name))


def _transport(subject: Subject) -> str:
    return subject.origin.transport if subject.origin.transport != CALL else SESSION


def _objects(request: pb.BatchRequest, buckets: Sequence[str]) -> list[tuple[str, str, str]]:
    names, members = list(request.name), list(request.member)
    n = len(names)
    if len(members) != n:
        members = [""] * n
    if len(buckets) == 1:
        return [(buckets[0], name, member) for name, member in zip(names, members, strict=True)]
    of = list(request.bucket_index)
    if len(of) != n:
        of = [0] * n
    # Positions beyond `buckets` are stand-ins that rights have added.
    found = [buckets[at] if at < len(buckets) else "" for at in of]
    return list(zip(found, names, members, strict=True))


def _delivered(objects: Sequence[tuple[str, str, str]], status: U8) -> list[tuple[str, str, str]]:
    return [one for one, failed in zip(objects, status.tolist(), strict=False) if not failed]
