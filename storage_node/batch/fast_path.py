"""Fast path for a batch of a few small objects or ranges, or of a larger one from its file: frame and END in one
message, on the event loop, without waiting.

It applies only if the locations of the objects are known (their catalog entries, where it describes the object) and
their bytes are in the page cache. Any other request, and any
error, takes the ordinary path, which can wait and fail. A batch spread over several nodes consists of such requests.
"""

from __future__ import annotations

from contextlib import closing
from itertools import repeat
from operator import attrgetter
from typing import Any

import numpy as np

from ais_loader.wire.answer_check import digest, digest_of_ok
from ais_loader.wire.checksum import crc32c
from ais_loader.wire.frame import encode_prefix, encode_single
from ais_loader.wire.generated import ais_batch_pb2 as pb
from ais_loader.wire.generated import ais_objects_pb2 as object_pb
from ais_loader.wire.object_info import info_of
from storage_node.context.membership import Membership
from storage_node.etl.local_etl import LocalEtl
from storage_node.store.drive.drive import Drive
from storage_node.store.files.segment_format import file_of
from storage_node.store.format import encode_place
from storage_node.store.native import pread_cached, read_cached
from storage_node.store.read.batch_lookup import BatchLookup
from storage_node.store.read.batch_reader import CachedFile
from storage_node.store.read.batch_table import MAX_ITEM_BYTES
from storage_node.store.read.file_frame import FileFrame, opened
from storage_node.store.read.frame_plan import FILE_FRAME_BYTES, check_range
from storage_node.store.store import Store

MAX_BYTES = 384 << 10
"""Maximum size of one entry: sending a larger one from its file is faster than copying and checksumming it."""
MAX_BYTES_TOGETHER = 768 << 10
"""Maximum total size: copying and checksumming more would delay other sessions."""
MAX_ENTRIES = 64
"""Maximum number of entries: opening more files would delay other sessions as well. Up to here, about 320 µs, reading
on the event loop costs less than a task and two switches to a thread. In a batch of 128 over two nodes, each node has
this many."""

MAX_PLACES = 256
"""Maximum number of entries of which only places are wanted, from the caches of catalogs."""

_RANGES = ("start", "length", "verify_ranges")
_LOOKED_AT = ("bucket", "name", "initial_credit_bytes", "local", "map_version", "whole_up_to", "coded_places", *_RANGES)
_NO_MATTER = ("fail_fast", "ordered", "deadline_ms", "tenant", "request_id", "metadata", "receiver_checks")
ANSWERED = frozenset((*_LOOKED_AT, *_NO_MATTER))
"""Fields that a request answered here may have. One with any other field takes the ordinary path."""
_WITH_TRANSFORM = ANSWERED.difference(_RANGES[:2]).union(("transform", "transform_index"))
_FIELDS_BESIDE_TRANSFORM = attrgetter(
    *(field.name for field in pb.BatchRequest.DESCRIPTOR.fields if field.name not in _WITH_TRANSFORM)
)
_OTHER_FIELDS = attrgetter(*(field.name for field in pb.BatchRequest.DESCRIPTOR.fields if field.name not in ANSWERED))


def answer_inline(
    store: Store, request: pb.BatchRequest, batch_id: int, membership: Membership | None = None
) -> tuple[bytes, int, int] | None:
    """Return the whole response as one serialized SessionResponse, with the objects' size and END's digest; None if the
    ordinary path is needed."""
    bucket_uuid = _plain_bucket(store, request, membership)
    if bucket_uuid is None:
        return None
    if request.HasField("whole_up_to") and len(request.name) != 1:
        return None
    if request.coded_places and (places := _places(store, request, bucket_uuid)):
        summed = [(0, b"", 0, len(place), crc32c(place)) for place in places]
        prefix, digest_ = _prefix(batch_id, summed, b"", pb.CODED)
        return b"".join((prefix, *places)), sum(map(len, places)), digest_
    if len(request.name) > MAX_ENTRIES:
        return None
    _held, files, info = _known_files(store, request, bucket_uuid, MAX_BYTES_TOGETHER)
    if info is not None and not 0 < info.size_bytes <= request.whole_up_to:
        end = pb.End(outcome=pb.End.STOPPED, object=info)
        return pb.SessionResponse(batch_id=batch_id, end=end).SerializeToString(), 0, 0
    described = b"" if info is None else info.SerializeToString()
    sizes = [size for *_, size, _ in files]
    size_bytes = sum(sizes)
    if not files or not min(sizes) or max(sizes) > MAX_BYTES or size_bytes > MAX_BYTES_TOGETHER:
        return None
    if request.start:
        return _answer_ranges(files, batch_id, size_bytes)
    prefix, digest_ = _prefix(batch_id, files, described)
    answer = read_cached(prefix, tuple(files))
    return None if answer is None else (answer, size_bytes, digest_)


def _places(store: Store, request: pb.BatchRequest, bucket_uuid: bytes) -> list[bytes]:
    """Return the places of all entries, if they are known and coded; otherwise none."""
    found: list[bytes] = []
    for name, start, size in zip(request.name, request.start or repeat(0), request.length or repeat(-1), strict=False):
        known = store.drive_set.cached(bucket_uuid, name, coded=True)
        if known is None or not known[1].is_coded or known[1].size_bytes > MAX_ITEM_BYTES:
            return []
        if request.start and check_range(start, size, known[1].size_bytes):
            return []
        found.append(encode_place(known[1]))
    return found


def _answer_ranges(files: list[CachedFile], batch_id: int, size_bytes: int) -> tuple[bytes, int, int] | None:
    folders, paths, starts, sizes, _ = zip(*files, strict=True)
    if (frame := opened(b"", folders, paths, starts, sizes)) is None:
        return None
    with closing(frame):
        parts = [bytearray(size) for size in sizes]
        for part, at in zip(parts, frame.parts, strict=True):
            if pread_cached(at.fd, part, at.offset) < len(part):
                return None
        summed = [(*file[:4], crc32c(part)) for file, part in zip(files, parts, strict=True)]
        prefix, digest_ = _prefix(batch_id, summed, b"", pb.COMPUTED)
        return b"".join((prefix, *parts)), size_bytes, digest_


def answer_from_file(
    store: Store, request: pb.BatchRequest, batch_id: int, membership: Membership | None = None
) -> tuple[FileFrame, int, int] | None:
    """Like `answer_inline`, for one object that is too large for that: its bytes stay in the file until they are sent,
    and the receiver verifies them. The caller closes the frame."""
    if len(request.name) != 1 or not request.receiver_checks or request.start:
        return None
    bucket_uuid = _plain_bucket(store, request, membership)
    if bucket_uuid is None:
        return None
    _held, files, info = _known_files(store, request, bucket_uuid, FILE_FRAME_BYTES)
    if not files or (info is not None and info.size_bytes > request.whole_up_to):
        return None
    described = b"" if info is None else info.SerializeToString()
    ((folder, path, offset, size_bytes, checksum),) = files
    if offset or not MAX_BYTES < size_bytes <= min(FILE_FRAME_BYTES, request.initial_credit_bytes):
        return None
    only = digest_of_ok(checksum)
    prefix = encode_single(batch_id, size_bytes, checksum, only, pb.UNCHECKED, described)
    frame = opened(prefix, [folder], [path], [0], [size_bytes])
    if frame is not None and not frame.cached:
        frame.close()
        return None
    return None if frame is None else (frame, size_bytes, only)


def answer_kept(
    store: Store, etl: LocalEtl, request: pb.BatchRequest, batch_id: int, membership: Membership | None = None
) -> tuple[bytes, int, int] | None:
    """Like `answer_inline`, for one object with transforms, if the result is cached in memory."""
    is_one = len(request.name) == len(request.transform) == 1 and request.transform_index == [1]
    if not is_one or request.HasField("whole_up_to"):
        return None
    bucket_uuid = _plain_bucket(store, request, membership, _FIELDS_BESIDE_TRANSFORM)
    found = None if bucket_uuid is None else store.drive_set.cached(bucket_uuid, request.name[0])
    if found is None or not found[1].size_bytes:
        return None
    kept = etl.kept(request.bucket[0], request.name[0], str(found[1].version), request.transform[0])
    if kept is None or len(kept[0]) > MAX_BYTES:
        return None
    data, checksum = kept
    prefix = encode_single(batch_id, len(data), checksum, digest_of_ok(checksum), pb.TRANSFORMED)
    return b"".join((prefix, data)), len(data), digest_of_ok(checksum)


def _known_files(
    store: Store, request: pb.BatchRequest, bucket_uuid: bytes, most_bytes: int
) -> tuple[object, list[CachedFile], object_pb.ObjectInfo | None]:
    """Return the files of a request's objects, and the description of the only one, if it asks for that; no files if
    something is not known. The first result keeps the folders of a drive open that is removed meanwhile.

    `most_bytes`: the size together beyond which the caller has no use for files, so that looking them up may end.
    """
    describes = request.HasField("whole_up_to")
    drives: set[Drive] = set()
    files: list[CachedFile] = []
    info, size_bytes = None, 0
    for name, start, size in zip(request.name, request.start or repeat(0), request.length or repeat(-1), strict=False):
        if (found := store.drive_set.cached(bucket_uuid, name)) is None:
            break
        drive, entry = found
        path = file_of(entry.path) if entry.offset else entry.path
        if request.start:
            # An object in a segment is verified as a whole, lest its place is another one's by now.
            if entry.offset or not 0 <= start < start + size <= entry.size_bytes or size == entry.size_bytes:
                return (), [], None
            entry = entry._replace(offset=start, size_bytes=size)
        size_bytes += entry.size_bytes
        if size_bytes > most_bytes and not describes:
            return (), [], None
        drives.add(drive)
        files.append((drive.files.objects_fd, path, entry.offset, entry.size_bytes, entry.checksum))
        info = info_of("", "", entry) if describes else None
    else:
        return drives, files, info
    if describes or not (lookup := BatchLookup(store, request)).locate(waits=False):
        return (), [], None
    table = lookup.table
    assert table.files is not None
    paths = [file.path for file in table.files]
    columns = table.folders.tolist(), paths, table.start.tolist(), table.sizes.tolist(), table.checksum.tolist()
    return table.drives, list(zip(*columns, strict=True)), None


def _prefix(batch_id: int, files: list[CachedFile], described: bytes, kind: int = pb.STORED) -> tuple[bytes, int]:
    """Return everything that precedes the objects' bytes, including END, and END's digest. `described`: the
    only object, for END."""
    n, size_bytes = len(files), sum(size for *_, size, _ in files)
    if n == 1:
        *_, size, checksum = files[0]
        only = digest_of_ok(checksum)
        return encode_single(batch_id, size, checksum, only, kind, described), only
    checksums = np.array([checksum for *_, checksum in files], "<u4")
    end = pb.End(
        outcome=pb.End.COMPLETE, entries=n, payload_bytes=size_bytes, digest=digest(np.zeros(n, np.uint8), checksums)
    )
    prefix, _ = encode_prefix(
        batch_id,
        index=np.arange(n, dtype=np.uint32),
        size=np.array([size for *_, size, _ in files], np.uint32),
        checksum=checksums,
        status=np.zeros(n, np.uint8),
        checksum_kind=np.full(n, kind, np.uint8),
        payload_bytes=size_bytes,
        end=end,
    )
    return prefix, end.digest


def _plain_bucket(
    store: Store, request: pb.BatchRequest, membership: Membership | None, others: attrgetter[Any] = _OTHER_FIELDS
) -> bytes | None:
    """Return the bucket of a plain request, if this node may answer it; None for any other request."""
    if (
        not 0 < len(request.name) <= (MAX_PLACES if request.coded_places else MAX_ENTRIES)
        or any(others(request))
        or request.initial_credit_bytes < (MAX_BYTES if len(request.name) == 1 else MAX_BYTES_TOGETHER)
        or len(request.bucket) != 1
        or not len(request.start) == len(request.length) in (0, len(request.name))
        or (request.start and (request.verify_ranges or request.HasField("whole_up_to")))
    ):
        return None
    bucket = store.record.current.buckets.get(request.bucket[0])
    if bucket is None or store.replicas.stale.any:  # a replica here may be stale
        return None
    if membership is not None and not _may_answer(membership, request):
        return None
    return bucket.uuid_bytes


def _may_answer(membership: Membership, request: pb.BatchRequest) -> bool:
    """Return whether the map places a replica of every object on this node, or does not know the bucket. A `local`
    request was planned by the caller with such a map, which must not be older than this node's. Other objects on this
    node may be left over from earlier maps and stale."""
    view = membership.view
    if view is None:
        return True
    if request.local:
        return request.map_version == 0 or request.map_version >= view.version
    bucket = view.buckets.get(request.bucket[0])
    local = view.position.get(membership.node_uuid)
    return bucket is None or all(local in view.owners(bucket, name) for name in request.name)
