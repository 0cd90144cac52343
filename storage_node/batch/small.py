"""A batch of one small object, answered on the event loop: frame and END in one message, no thread, no waiting.

Only when everything is at hand: the catalog entry in the cache and the bytes in the page cache. Any other request, and
anything that goes wrong, takes the ordinary way, which knows how to wait and how to fail.
"""

from __future__ import annotations

from protos import ais_batch_pb2 as pb
from protos.frame import encode_single
from storage_node.cluster.membership import Membership
from storage_node.store.batch_read import read_cached
from storage_node.store.checksum import crc32c
from storage_node.store.store import Store

MAX_BYTES = 128 << 10
"""Copying and summing more than this would hold up the other sessions."""

_DIGEST_OF_OK = crc32c(bytes((pb.OK,)))


def answer_small(
    store: Store, request: pb.BatchRequest, batch_id: int, membership: Membership | None = None
) -> tuple[bytes, int] | None:
    """The whole answer as one serialized SessionResponse, and the object's size in bytes; None if it takes more."""
    if (
        len(request.name) != 1 or request.bucket_index or request.member or request.start or request.length
        or request.version or request.first_index or request.resume_offset or request.resume_version
        or request.initial_credit_bytes < MAX_BYTES or len(request.bucket) != 1
    ):  # fmt: skip
        return None
    bucket = store.record.buckets.get(request.bucket[0])
    if bucket is None:
        return None
    name = request.name[0]
    bucket_uuid = bucket.uuid_bytes
    if store.doubts.any:
        return None  # this copy may be an old one
    drive = store.drives[store.drive_index(bucket_uuid, name)]
    record = drive.cached(bucket_uuid, name) if drive is not None else None
    if drive is None or record is None or not 0 < record.size_bytes <= MAX_BYTES:
        return None
    if membership is not None and not request.local and not _owns(membership, request.bucket[0], name):
        return None  # what lies here may have been left over by an earlier map, and be old
    size, checksum = record.size_bytes, record.checksum
    digest = crc32c(checksum.to_bytes(4, "little"), _DIGEST_OF_OK)
    prefix = encode_single(batch_id, size, checksum, digest)
    answer = read_cached(prefix, drive.files.objects_fd, record.path, size, checksum)
    return None if answer is None else (answer, size)


def _owns(membership: Membership, bucket_name: str, name: str) -> bool:
    """Whether the map gives this node a copy of the object, or says nothing of it."""
    view = membership.view
    bucket = view.buckets.get(bucket_name) if view is not None else None
    if view is None or bucket is None:
        return True
    return view.position.get(membership.node_uuid) in view.owners(bucket, name)
