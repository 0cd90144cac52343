"""Replica side of a write: stages the bytes until the coordinator sends the version to commit.

Runs on reader threads. A coordinator that is itself an owner uses it in process.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from ais_loader import errors
from ais_loader.errors import LoaderError, WriteTooLate
from ais_loader.wire.cluster_map import ClusterView, object_hashes
from ais_loader.wire.generated import ais_contents_pb2 as contents
from ais_loader.wire.generated import ais_objects_pb2 as pb
from ais_loader.wire.generated import ais_replica_pb2 as wire
from storage_node.store import format as fmt
from storage_node.store.drive.preconditions import SUPERSEDED, Condition, checked, id_of
from storage_node.store.drive.version_clock import MAX_EPOCH, check_counter
from storage_node.store.format import CatalogEntry, Version
from storage_node.store.listing import PAGE_BYTES, within
from storage_node.store.names import check_object_name
from storage_node.store.replica_state import clock_s
from storage_node.store.store import Store
from storage_node.store.write import Upload, check_announced, check_content

ELSEWHERE = b"elsewhere"
"""Replaces the path of an object that is on another node."""
MAX_VERSIONS = 10_000
"""Most versions in one page."""


def to_wire(version: Version) -> wire.ObjectVersion:
    return wire.ObjectVersion(epoch=version.epoch, counter=version.counter, node=version.node)


def from_wire(version: wire.ObjectVersion | CatalogEntry) -> Version:
    """Convert a version. Raises InvalidRequest for one that no store assigns, so that none spreads further."""
    if version.epoch > MAX_EPOCH:
        raise errors.InvalidRequest(f"epoch {version.epoch} of a version is above {MAX_EPOCH}")
    check_counter(version.counter, "counter")
    return Version(version.epoch, version.counter, version.node)


def error_to_wire(error: LoaderError) -> pb.Error:
    return pb.Error(kind=error.kind, message=str(error))


class HeldWrite:
    """The messages of one write, in order."""

    def __init__(self, store: Store, known_map: Callable[[], int] = lambda: 0) -> None:
        """`known_map` returns the version of the newest map that this node knows."""
        self._store = store
        self._known_map = known_map
        self._header: wire.WriteHeader | None = None
        self._uploads: list[Upload | LoaderError] | None = None
        self._committed = False
        self._begun_s = self._staged_s = 0.0
        """Times by `clock_s`: of the first message, and of the answer `staged`."""

    def take(self, request: wire.WriteRequest) -> wire.WriteResponse | None:
        """Process a message; return its answer if it has one. Raises InvalidRequest for a message out of order."""
        part = request.WhichOneof("part")
        self._begun_s = self._begun_s or clock_s()
        if part == "data" and self._header is not None and self._uploads is not None:
            self._write(request.data)
            return None
        if part == "header" and self._uploads is None:
            self._header, self._begun_s = request.header, clock_s()
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
            return self._store.begin_put(put.bucket, put.name, dict(put.metadata))
        except LoaderError as error:
            return error

    def _write(self, data: bytes) -> None:
        """Stage bytes. After an error the rest of the object is ignored; the coordinator gets the error in `staged`."""
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
                check_announced(upload, header)
            except LoaderError as error:
                upload.abort()
                self._uploads[0] = error

    def _stage(self, small: pb.SmallObject, group: wire.WriteGroup) -> Upload | LoaderError:
        checksum = small.checksum if small.HasField("checksum") else None
        try:
            require_bucket(self._store, small.bucket, group.bucket_uuid[small.bucket])
            return self._store.stage(
                small.bucket, small.name, [small.data], dict(small.metadata), checksum=checksum, grouped=True
            )
        except LoaderError as error:
            return error

    def _staged(self) -> wire.WriteResponse:
        assert self._uploads is not None
        self._staged_s = clock_s()
        staged = wire.Staged(clock=self._store.replicas.clock, wall_ms=self._store.clock.wall_ms())
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
                        before=to_state("", newest) if newest is not None and newest.writes else None,
                    )
            if isinstance(upload, LoaderError):
                staged.object.add(error=error_to_wire(upload))
        return wire.WriteResponse(staged=staged)

    def _commit(self, uploads: Sequence[Upload | LoaderError], commit: wire.WriteCommit) -> wire.WriteResponse:
        self._committed = True
        # However long the commit was on its way, count back at least to the answer `staged`. The coordinator began to
        # look after the header of an object, but before it sent a group.
        looked_s = commit.looked_ms / 1000
        looked_at_s = min(clock_s() - looked_s, max(self._begun_s, self._staged_s - looked_s))
        given_up = LoaderError("given up by the coordinator")
        wanted: list[Upload | LoaderError] = []
        mending: dict[int, tuple[bytes, str]] = {}
        for upload, chosen in zip(uploads, commit.object, strict=True):
            if isinstance(upload, Upload) and not chosen.HasField("version"):
                upload.abort()
                wanted.append(given_up)
                continue
            if isinstance(upload, Upload):
                version, writes = from_wire(chosen.version), checked(chosen.writes)
                if not commit.is_copy:
                    self._store.replicas.require_believable(version, commit.wall_ms)
                    if (late := late_fault(self._store, *upload.of, version, writes, looked_at_s)) is not None:
                        upload.abort()
                        wanted.append(late)
                        continue
                upload.assign(version, chosen.modified_ns, writes, is_copy=commit.is_copy)
                is_mending = commit.is_copy and self._store.damaged.version_of(*upload.of) == version
                if is_mending:
                    mending[len(wanted)] = upload.of
                condition = Condition(
                    not_above=from_wire(chosen.not_above) if chosen.HasField("not_above") else None,
                    write_id=b"" if commit.is_copy else id_of(writes),
                    known=from_wire(chosen.known) if chosen.HasField("known") else None,
                    after_cuts=not commit.is_copy,
                    mends=is_mending,
                )
                upload.require(condition)
            wanted.append(upload)
        committed = wire.Committed()
        for at, result in enumerate(self._store.commit_many(wanted)):
            if isinstance(result, LoaderError):
                committed.object.add(error=error_to_wire(result))
                continue
            committed.object.add(version=to_wire(result.version), superseded=result.path == SUPERSEDED)
            if at in mending:
                self._store.damaged.drop(*mending[at], mended=True)
        committed.map_version = self._known_map()  # read after the commit
        return wire.WriteResponse(committed=committed)

    @property
    def has_ended(self) -> bool:
        """Nothing is left to abort."""
        return all(not isinstance(upload, Upload) or upload.has_ended for upload in self._uploads or ())

    def abort(self) -> None:
        """Remove everything that was not committed; harmless if called again."""
        for upload in self._uploads or ():
            if isinstance(upload, Upload):
                upload.abort()


def require_bucket(store: Store, name: str, uuid: bytes) -> None:
    """Raise BucketNotFound unless the bucket of this name has this uuid."""
    if store.bucket(name).uuid_bytes != uuid:
        raise errors.BucketNotFound(f"bucket {name!r} was deleted and made again, or will be")


# -- calls with one answer; all raise LoaderError


def newest(store: Store, request: wire.NewestRequest, map_version: int = 0) -> wire.NewestResponse:
    """`map_version`: the map's version, noted before this call; see `map.lease`."""
    require_bucket(store, request.bucket.name, request.bucket.uuid)
    if request.make_lasting:
        for drive in store.drive_set.live():
            drive.sync()
    states = _states(
        store, request.bucket, list(request.name), allow_unknown=request.allow_unknown, coded_only=request.coded_only
    )
    return wire.NewestResponse(
        object=states, clock=store.replicas.clock, map_version=map_version, wall_ms=store.clock.wall_ms()
    )


def write_tombstone(
    store: Store, request: wire.BuryRequest, known_map: Callable[[], int] = lambda: 0
) -> wire.BuryResponse:
    looked_at_s = clock_s() - request.looked_ms / 1000
    require_bucket(store, request.bucket.name, request.bucket.uuid)
    not_above = from_wire(request.not_above) if request.HasField("not_above") else None
    version, writes = from_wire(request.version), checked(request.writes)
    if not request.is_copy:
        store.replicas.require_believable(version, request.wall_ms)
        late = late_fault(store, request.bucket.uuid, request.name, version, writes, looked_at_s)
        if late is not None:
            raise late
    write_id = b"" if request.is_copy else id_of(writes)
    condition = Condition(not_above=not_above, write_id=write_id, after_cuts=not request.is_copy)
    left = store.delete(
        request.bucket.name,
        request.name,
        version,
        keep_tombstone=True,
        condition=condition,
        writes=writes,
        raw_metadata=request.metadata,
    )
    assert left is not None
    return wire.BuryResponse(version=to_wire(left.version), map_version=known_map())


def write_tombstones(store: Store, request: contents.BuryManyRequest) -> contents.BuryManyResponse:
    """Write tombstones on this node, as a coordinator requested. Raises LoaderError."""
    looked_at_s = clock_s() - request.looked_ms / 1000
    require_bucket(store, request.bucket.name, request.bucket.uuid)
    if len(request.name) != len(request.version) or len(request.writes) not in (0, len(request.name)):
        raise errors.InvalidRequest(
            f"{len(request.version)} versions and {len(request.writes)} memories of {len(request.name)} names"
        )
    writes = [*map(checked, request.writes)] or [b""] * len(request.name)
    tombstones = list(zip(request.name, map(from_wire, request.version), writes, strict=True))
    if request.only_known:
        tombstones = [one for one in tombstones if store.denied.knows(request.bucket.uuid, one[0])]
    for _, version, _ in tombstones:
        store.replicas.require_believable(version, request.wall_ms)
    late = [late_fault(store, request.bucket.uuid, *one, looked_at_s) for one in tombstones]
    accepted = [one for one, fault in zip(tombstones, late, strict=True) if fault is None]
    left = iter(store.write_tombstones(request.bucket.name, accepted, request.metadata))
    return contents.BuryManyResponse(failure=failures([fault or next(left) for fault in late]))


def recode(store: Store, request: wire.RecodeRequest, grace_s: float) -> wire.RecodeResponse:
    """Have entries of a coded bucket. Raises LoaderError; WriteTooLate if the request was under way for longer than
    half of `grace_s`, because a group that no node names is given up after that time."""
    require_bucket(store, request.bucket.name, request.bucket.uuid)
    if len(request.name) != len(request.entry):
        raise errors.InvalidRequest(f"{len(request.entry)} entries of {len(request.name)} names")
    if store.clock.wall_ms() - request.wall_ms > 500 * grace_s:
        raise WriteTooLate("these entries were sent too long ago, and their group may be gone; send them again")
    coded = [(name, coded_entry(value)) for name, value in zip(request.name, request.entry, strict=True)]
    for name in request.name:
        check_object_name(name)
    uuid, refused = request.bucket.uuid, store.denied.content_error
    wanted = {at: one for at, one in enumerate(coded) if not refused(uuid, one[0], one[1].checksum, one[1].size_bytes)}
    if request.only_files:
        here = store.replicas.newest(request.bucket.name, [name for name, _ in wanted.values()])
        wanted = {
            at: (name, entry._replace(modified_ns=mine.modified_ns))
            for (at, (name, entry)), mine in zip(wanted.items(), here, strict=True)
            if mine is not None and mine.has_file and mine.version == entry.version
        }
    written = store.write_coded(request.bucket.name, list(wanted.values()))
    return wire.RecodeResponse(
        done=[
            at
            for (at, (_, sent)), entry in zip(wanted.items(), written, strict=True)
            if isinstance(entry, CatalogEntry) and entry[:3] == sent[:3] and entry.path == sent.path
        ]
    )


def coded_entry(value: bytes) -> CatalogEntry:
    """Decode a coded entry that another node sent. Raises InvalidRequest, StoreFormatError."""
    entry = fmt.decode_entry(value)
    if not entry.is_coded or fmt.has_file(value) or entry.epoch & fmt.DENIAL_BIT:
        raise errors.InvalidRequest("an entry of an object whose bytes are not in a group, or of a denial")
    from_wire(entry)
    if entry.raw_metadata:
        fmt.decode_metadata(entry.raw_metadata)
    checked(entry.writes)
    return entry


def failures(results: Sequence[object]) -> list[contents.DeleteFailure]:
    """Return the errors among these results, with their positions."""
    return [
        contents.DeleteFailure(position=at, error=error_to_wire(result))
        for at, result in enumerate(results)
        if isinstance(result, LoaderError)
    ]


def late_fault(
    store: Store, bucket_uuid: bytes, name: str, version: Version, writes: bytes, looked_at_s: float
) -> WriteTooLate | None:
    """Return an error if this node may have missed another write of the name since the coordinator looked for existing
    versions, at a moment of `clock_s`. A duration would begin later if this node pauses before it gets here.

    The missed write may be newer than a retry of this one. A write without an id is never retried.
    """
    if not id_of(writes) or not store.replicas.stale.missed(bucket_uuid, name, version, looked_at_s):
        return None
    return WriteTooLate(
        f"{name!r}: this node was told of another write of it, or was out of touch with the others, since this one "
        "began; write it again"
    )


def versions(store: Store, request: wire.VersionsRequest, view: ClusterView | None = None) -> wire.VersionsResponse:
    """`view`: the map by which names have owners."""
    require_bucket(store, request.bucket.name, request.bucket.uuid)
    limit = min(request.limit or 1000, MAX_VERSIONS)
    # Read one more than requested, which shows whether there is another page.
    found = list(
        store.replicas.versions(request.bucket.name, request.start_after, limit + 1, with_evicted=request.with_evicted)
    )
    limit = within(PAGE_BYTES, (state.name for state in found[:limit]))
    more = limit < len(found) and not (request.until and found[limit].name > request.until)
    after = found[limit - 1].name if more else ""
    shown = [state for state in found[:limit] if not request.until or state.name <= request.until]
    # By another map, a name may have other owners than when it was compared.
    is_same = view is not None and view.version == request.map_version
    bucket = view.bucket_with_uuid(request.bucket.uuid) if view is not None and is_same else None
    if view is not None and bucket is not None and (owner := view.position.get(request.owner_uuid)) is not None:
        owners = view.placement.owners(object_hashes(bucket.uuid, [state.name for state in shown]), bucket.copies)
        shown = list(itertools.compress(shown, (owners == owner).any(axis=1).tolist()))
    states = [
        wire.ObjectState(name=state.name, evicted=to_wire(state.version))
        if state.is_evicted
        else wire.ObjectState(
            name=state.name,
            version=to_wire(state.version),
            is_tombstone=state.is_tombstone,
            size_bytes=state.size_bytes,
            checksum=state.checksum,
            raw_metadata=state.raw_metadata,
            writes=state.writes,
        )
        for state in shown
    ]
    return wire.VersionsResponse(object=states, next=after)


def _states(
    store: Store, bucket: wire.BucketRef, names: Sequence[str], *, allow_unknown: bool, coded_only: bool = False
) -> list[wire.ObjectState]:
    """Return what this node has of each name; with `coded_only`, of those whose bytes are in a group. `allow_unknown`:
    names on a drive that fails, and damaged replicas, are unknown. Raises LoaderError."""
    try:
        found = store.replicas.newest(bucket.name, names)
    except errors.DriveFailed:
        if not allow_unknown:
            raise
        if len(names) == 1:
            return [wire.ObjectState(name=names[0], unknown=True)]
        return [state for name in names for state in _states(store, bucket, [name], allow_unknown=True)]
    return [
        wire.ObjectState(name=name, unknown=True)
        if allow_unknown and entry is not None and store.damaged.version_of(bucket.uuid, name) == entry.version
        else _known_state(store, bucket.uuid, name, entry)
        for name, entry in zip(names, found, strict=True)
        if not coded_only or (entry is not None and entry.is_coded)
    ]


def _known_state(store: Store, bucket_uuid: bytes, name: str, entry: CatalogEntry | None) -> wire.ObjectState:
    """Return what this node has of a name, and what it knows of newer versions."""
    state = to_state(name, entry)
    if entry is None and (evicted := store.replicas.evicted_version(bucket_uuid, name)) is not None:
        state.evicted.CopyFrom(to_wire(evicted))
    wanted = store.replicas.stale.wanted(bucket_uuid, name)
    if wanted is not None and (entry is None or entry.version < wanted):
        state.announced.CopyFrom(to_wire(wanted))
    return state


def to_state(name: str, entry: CatalogEntry | None) -> wire.ObjectState:
    if entry is None:
        return wire.ObjectState(name=name)
    return wire.ObjectState(
        name=name,
        version=to_wire(entry.version),
        is_tombstone=entry.is_tombstone,
        size_bytes=entry.size_bytes,
        checksum=entry.checksum,
        writes=entry.writes,
        modified_ns=entry.modified_ns,
        group=entry.group if entry.is_coded else b"",
    )


def from_state(state: wire.ObjectState) -> CatalogEntry | None:
    """Convert another node's entry of a name; None if it has none. Raises InvalidRequest."""
    if not state.HasField("version"):
        return None
    version = from_wire(state.version)
    path = b"" if state.is_tombstone else ELSEWHERE
    return CatalogEntry(
        version.epoch,
        version.counter,
        version.node,
        state.size_bytes,
        state.checksum,
        state.modified_ns,
        0,
        path,
        b"",
        checked(state.writes),
    )
