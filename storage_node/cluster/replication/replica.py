"""Replica side of a write: a node holds the bytes back until the coordinator says which version they have.

Runs on reader threads; a coordinator that is itself an owner uses it without a network between.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ais_loader import errors
from ais_loader.errors import LoaderError
from ais_loader.wire.generated import ais_objects_pb2 as pb
from ais_loader.wire.generated import ais_replica_pb2 as wire
from storage_node.store.drive.preconditions import Condition
from storage_node.store.format import CatalogEntry, Version
from storage_node.store.staging import check_content, stage_object
from storage_node.store.store import Store
from storage_node.store.upload import Upload

MAX_VERSIONS = 10_000
"""Of one page."""


def to_wire(version: Version) -> wire.ObjectVersion:
    return wire.ObjectVersion(epoch=version.epoch, counter=version.counter, node=version.node)


def from_wire(version: wire.ObjectVersion) -> Version:
    return Version(version.epoch, version.counter, version.node)


def error_to_wire(error: LoaderError) -> pb.Error:
    return pb.Error(kind=error.kind, message=str(error))


class HeldWrite:
    """The messages of one write, taken one after another."""

    def __init__(self, store: Store, known_map: Callable[[], int] = lambda: 0) -> None:
        """`known_map`: the version of the newest map that this node knows."""
        self._store = store
        self._known_map = known_map
        self._header: wire.WriteHeader | None = None
        self._uploads: list[Upload | LoaderError] | None = None
        self._committed = False

    def take(self, request: wire.WriteRequest) -> wire.WriteResponse | None:
        """The answer, where the message has one. Raises InvalidRequest for a message out of turn."""
        part = request.WhichOneof("part")
        if part == "data" and self._header is not None and self._uploads is not None:
            self._write(request.data)
            return None
        if part == "header" and self._uploads is None:
            self._header = request.header
            self._uploads = [self._begin(request.header)]
            failed = self._uploads[0]
            return self._staged() if isinstance(failed, LoaderError) else wire.WriteResponse(ready=wire.WriteReady())
        if part == "end" and self._header is not None and self._uploads is not None:
            self._end(self._header.object, request.end)
            return self._staged()
        if part == "group" and self._uploads is None:
            self._uploads = [self._stage(small, request.group) for small in request.group.object]
            return self._staged()
        if part == "commit" and self._uploads is not None and not self._committed:
            if len(request.commit.object) != len(self._uploads):
                raise errors.InvalidRequest(f"{len(request.commit.object)} versions for {len(self._uploads)} objects")
            return self._commit(self._uploads, request.commit)
        raise errors.InvalidRequest(f"a message of a write that is out of turn: {part}")

    def _begin(self, header: wire.WriteHeader) -> Upload | LoaderError:
        put = header.object
        try:
            require_bucket(self._store, put.bucket, header.bucket_uuid)
            upload = self._store.begin_put(put.bucket, put.name, dict(put.metadata))
            upload.require(Condition(write_id=put.condition.write_id))
            return upload
        except LoaderError as error:
            return error

    def _write(self, data: bytes) -> None:
        """After an error the rest of the object is let pass: the coordinator hears of it with `staged`."""
        assert self._uploads is not None
        upload = self._uploads[0]
        if isinstance(upload, Upload):
            try:
                upload.write(data)
            except LoaderError as error:
                self._uploads[0] = error

    def _end(self, header: pb.PutHeader, end: pb.PutEnd) -> None:
        assert self._uploads is not None
        upload = self._uploads[0]
        if isinstance(upload, Upload):
            try:
                check_content(upload, end.size_bytes, end.checksum)
                check_content(
                    upload,
                    header.size_bytes if header.HasField("size_bytes") else None,
                    header.checksum if header.HasField("checksum") else None,
                )
            except LoaderError as error:
                upload.abort()
                self._uploads[0] = error

    def _stage(self, small: pb.SmallObject, group: wire.WriteGroup) -> Upload | LoaderError:
        checksum = small.checksum if small.HasField("checksum") else None
        try:
            require_bucket(self._store, small.bucket, group.bucket_uuid[small.bucket])
            return stage_object(
                self._store,
                small.bucket,
                small.name,
                [small.data],
                dict(small.metadata),
                checksum=checksum,
                condition=Condition(write_id=small.condition.write_id),
                grouped=True,
            )
        except LoaderError as error:
            return error

    def _staged(self) -> wire.WriteResponse:
        assert self._uploads is not None
        staged = wire.Staged(clock=self._store.replicas.clock)
        for at, upload in enumerate(self._uploads):
            if isinstance(upload, Upload):
                try:
                    newest = upload.newest()
                except LoaderError as error:
                    upload.abort()
                    self._uploads[at] = upload = error
                else:
                    staged.object.add(
                        size_bytes=upload.size_bytes,
                        checksum=upload.checksum,
                        newest=to_wire(newest.version) if newest is not None else None,
                    )
            if isinstance(upload, LoaderError):
                staged.object.add(error=error_to_wire(upload))
        return wire.WriteResponse(staged=staged)

    def _commit(self, uploads: Sequence[Upload | LoaderError], commit: wire.WriteCommit) -> wire.WriteResponse:
        self._committed = True
        given_up = LoaderError("given up by the coordinator")
        wanted: list[Upload | LoaderError] = []
        for upload, chosen in zip(uploads, commit.object, strict=True):
            if isinstance(upload, Upload) and not chosen.HasField("version"):
                upload.abort()
                wanted.append(given_up)
                continue
            if isinstance(upload, Upload):
                upload.assign(from_wire(chosen.version), chosen.modified_ns)
                condition = replace(upload.condition or Condition(), after_cuts=not commit.is_copy)
                if chosen.HasField("not_above"):
                    condition = replace(condition, not_above=from_wire(chosen.not_above))
                upload.require(condition)
            wanted.append(upload)
        committed = wire.Committed()
        for result in self._store.commit_many(wanted):
            if isinstance(result, LoaderError):
                committed.object.add(error=error_to_wire(result))
            else:
                committed.object.add(version=to_wire(result.version))
        committed.map_version = self._known_map()  # as it is after the commit
        return wire.WriteResponse(committed=committed)

    def abort(self) -> None:
        """What has not been committed goes; harmless afterwards."""
        for upload in self._uploads or ():
            if isinstance(upload, Upload):
                upload.abort()


def require_bucket(store: Store, name: str, uuid: bytes) -> None:
    """Raise BucketNotFound unless the bucket of this name is the one meant."""
    if store.bucket(name).uuid_bytes != uuid:
        raise errors.BucketNotFound(f"bucket {name!r} was deleted and made again, or will be")


# -- calls with one answer; all raise LoaderError


def newest(store: Store, request: wire.NewestRequest, map_version: int = 0) -> wire.NewestResponse:
    """`map_version`: noted before this is called; see `map.lease`."""
    require_bucket(store, request.bucket.name, request.bucket.uuid)
    if request.allow_unknown:
        states = [_state_or_unknown(store, request.bucket.name, name) for name in request.name]
    else:
        found = store.replicas.newest(request.bucket.name, list(request.name))
        states = [_state(name, record) for name, record in zip(request.name, found, strict=True)]
    return wire.NewestResponse(object=states, clock=store.replicas.clock, map_version=map_version)


def write_tombstone(
    store: Store, request: wire.BuryRequest, known_map: Callable[[], int] = lambda: 0
) -> wire.BuryResponse:
    require_bucket(store, request.bucket.name, request.bucket.uuid)
    not_above = from_wire(request.not_above) if request.HasField("not_above") else None
    condition = Condition(not_above=not_above, after_cuts=not request.is_copy)
    left = store.delete(
        request.bucket.name, request.name, from_wire(request.version), keep_tombstone=True, condition=condition
    )
    assert left is not None
    return wire.BuryResponse(version=to_wire(left.version), map_version=known_map())


def versions(store: Store, request: wire.VersionsRequest) -> wire.VersionsResponse:
    require_bucket(store, request.bucket.name, request.bucket.uuid)
    limit = min(request.limit or 1000, MAX_VERSIONS)
    # One more than asked tells whether another page is worth a request.
    found = list(store.replicas.versions(request.bucket.name, request.start_after, limit + 1))
    states = [
        wire.ObjectState(
            name=state.name,
            version=to_wire(state.version),
            is_tombstone=state.is_tombstone,
            size_bytes=state.size_bytes,
            checksum=state.checksum,
        )
        for state in found[:limit]
    ]
    return wire.VersionsResponse(object=states, more=len(found) > limit)


def forget(store: Store, request: wire.ForgetRequest) -> wire.ForgetResponse:
    require_bucket(store, request.bucket.name, request.bucket.uuid)
    bucket, version = request.bucket.name, from_wire(request.version)
    if request.tombstone_only:
        store.replicas.forget_tombstone(bucket, request.name, version)
        left = store.replicas.newest(bucket, [request.name])[0]
    else:
        left = store.delete(bucket, request.name, version)
    return wire.ForgetResponse(left=_state(request.name, left) if left is not None else None)


def _state_or_unknown(store: Store, bucket: str, name: str) -> wire.ObjectState:
    try:
        return _state(name, store.replicas.newest(bucket, [name])[0])
    except errors.DriveFailed:
        return wire.ObjectState(name=name, unknown=True)


def _state(name: str, record: CatalogEntry | None) -> wire.ObjectState:
    if record is None:
        return wire.ObjectState(name=name)
    return wire.ObjectState(
        name=name,
        version=to_wire(record.version),
        is_tombstone=record.is_tombstone,
        size_bytes=record.size_bytes,
        checksum=record.checksum,
    )
