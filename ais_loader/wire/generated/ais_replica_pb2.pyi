from ais_loader.wire.generated import ais_objects_pb2 as _ais_objects_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class MissedRequest(_message.Message):
    __slots__ = ("bucket", "name", "version")
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    bucket: BucketRef
    name: _containers.RepeatedScalarFieldContainer[str]
    version: _containers.RepeatedCompositeFieldContainer[ObjectVersion]
    def __init__(self, bucket: _Optional[_Union[BucketRef, _Mapping]] = ..., name: _Optional[_Iterable[str]] = ..., version: _Optional[_Iterable[_Union[ObjectVersion, _Mapping]]] = ...) -> None: ...

class MissedResponse(_message.Message):
    __slots__ = ("map_version",)
    MAP_VERSION_FIELD_NUMBER: _ClassVar[int]
    map_version: int
    def __init__(self, map_version: _Optional[int] = ...) -> None: ...

class RelayRequest(_message.Message):
    __slots__ = ("node_uuid", "missed", "map_version")
    NODE_UUID_FIELD_NUMBER: _ClassVar[int]
    MISSED_FIELD_NUMBER: _ClassVar[int]
    MAP_VERSION_FIELD_NUMBER: _ClassVar[int]
    node_uuid: bytes
    missed: MissedRequest
    map_version: int
    def __init__(self, node_uuid: _Optional[bytes] = ..., missed: _Optional[_Union[MissedRequest, _Mapping]] = ..., map_version: _Optional[int] = ...) -> None: ...

class RelayResponse(_message.Message):
    __slots__ = ("told", "withheld", "lease_left_s", "map_version")
    TOLD_FIELD_NUMBER: _ClassVar[int]
    WITHHELD_FIELD_NUMBER: _ClassVar[int]
    LEASE_LEFT_S_FIELD_NUMBER: _ClassVar[int]
    MAP_VERSION_FIELD_NUMBER: _ClassVar[int]
    told: bool
    withheld: bool
    lease_left_s: float
    map_version: int
    def __init__(self, told: bool = ..., withheld: bool = ..., lease_left_s: _Optional[float] = ..., map_version: _Optional[int] = ...) -> None: ...

class RenewLeaseRequest(_message.Message):
    __slots__ = ("node_uuid", "map_version", "lease_s")
    NODE_UUID_FIELD_NUMBER: _ClassVar[int]
    MAP_VERSION_FIELD_NUMBER: _ClassVar[int]
    LEASE_S_FIELD_NUMBER: _ClassVar[int]
    node_uuid: bytes
    map_version: int
    lease_s: float
    def __init__(self, node_uuid: _Optional[bytes] = ..., map_version: _Optional[int] = ..., lease_s: _Optional[float] = ...) -> None: ...

class RenewLeaseResponse(_message.Message):
    __slots__ = ("granted_s", "compare", "map_version")
    GRANTED_S_FIELD_NUMBER: _ClassVar[int]
    COMPARE_FIELD_NUMBER: _ClassVar[int]
    MAP_VERSION_FIELD_NUMBER: _ClassVar[int]
    granted_s: float
    compare: bool
    map_version: int
    def __init__(self, granted_s: _Optional[float] = ..., compare: bool = ..., map_version: _Optional[int] = ...) -> None: ...

class ReturnedRequest(_message.Message):
    __slots__ = ("node_uuid", "endpoint")
    NODE_UUID_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    node_uuid: bytes
    endpoint: str
    def __init__(self, node_uuid: _Optional[bytes] = ..., endpoint: _Optional[str] = ...) -> None: ...

class ReturnedResponse(_message.Message):
    __slots__ = ("map_version",)
    MAP_VERSION_FIELD_NUMBER: _ClassVar[int]
    map_version: int
    def __init__(self, map_version: _Optional[int] = ...) -> None: ...

class PushRequest(_message.Message):
    __slots__ = ("bucket", "name", "node_uuid")
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    NODE_UUID_FIELD_NUMBER: _ClassVar[int]
    bucket: BucketRef
    name: _containers.RepeatedScalarFieldContainer[str]
    node_uuid: bytes
    def __init__(self, bucket: _Optional[_Union[BucketRef, _Mapping]] = ..., name: _Optional[_Iterable[str]] = ..., node_uuid: _Optional[bytes] = ...) -> None: ...

class PushResponse(_message.Message):
    __slots__ = ("objects", "withheld", "deleted")
    OBJECTS_FIELD_NUMBER: _ClassVar[int]
    WITHHELD_FIELD_NUMBER: _ClassVar[int]
    DELETED_FIELD_NUMBER: _ClassVar[int]
    objects: int
    withheld: int
    deleted: int
    def __init__(self, objects: _Optional[int] = ..., withheld: _Optional[int] = ..., deleted: _Optional[int] = ...) -> None: ...

class RecallRequest(_message.Message):
    __slots__ = ("bucket", "group", "name")
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    bucket: BucketRef
    group: bytes
    name: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, bucket: _Optional[_Union[BucketRef, _Mapping]] = ..., group: _Optional[bytes] = ..., name: _Optional[_Iterable[str]] = ...) -> None: ...

class RecallResponse(_message.Message):
    __slots__ = ("objects",)
    OBJECTS_FIELD_NUMBER: _ClassVar[int]
    objects: int
    def __init__(self, objects: _Optional[int] = ...) -> None: ...

class CompareRequest(_message.Message):
    __slots__ = ("node_uuid", "bucket", "with_strays")
    NODE_UUID_FIELD_NUMBER: _ClassVar[int]
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    WITH_STRAYS_FIELD_NUMBER: _ClassVar[int]
    node_uuid: bytes
    bucket: _containers.RepeatedCompositeFieldContainer[BucketDigests]
    with_strays: bool
    def __init__(self, node_uuid: _Optional[bytes] = ..., bucket: _Optional[_Iterable[_Union[BucketDigests, _Mapping]]] = ..., with_strays: bool = ...) -> None: ...

class BucketDigests(_message.Message):
    __slots__ = ("bucket_uuid", "placement", "start", "digest")
    BUCKET_UUID_FIELD_NUMBER: _ClassVar[int]
    PLACEMENT_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    bucket_uuid: bytes
    placement: int
    start: _containers.RepeatedScalarFieldContainer[bytes]
    digest: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, bucket_uuid: _Optional[bytes] = ..., placement: _Optional[int] = ..., start: _Optional[_Iterable[bytes]] = ..., digest: _Optional[_Iterable[int]] = ...) -> None: ...

class CompareResponse(_message.Message):
    __slots__ = ("map_version", "bucket")
    MAP_VERSION_FIELD_NUMBER: _ClassVar[int]
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    map_version: int
    bucket: _containers.RepeatedCompositeFieldContainer[BucketDifference]
    def __init__(self, map_version: _Optional[int] = ..., bucket: _Optional[_Iterable[_Union[BucketDifference, _Mapping]]] = ...) -> None: ...

class BucketDifference(_message.Message):
    __slots__ = ("uuid", "start", "stop")
    UUID_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    uuid: bytes
    start: _containers.RepeatedScalarFieldContainer[bytes]
    stop: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, uuid: _Optional[bytes] = ..., start: _Optional[_Iterable[bytes]] = ..., stop: _Optional[_Iterable[bytes]] = ...) -> None: ...

class TooFewRequest(_message.Message):
    __slots__ = ("bucket", "name")
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    bucket: BucketRef
    name: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, bucket: _Optional[_Union[BucketRef, _Mapping]] = ..., name: _Optional[_Iterable[str]] = ...) -> None: ...

class TooFewResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ProgressRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ProgressResponse(_message.Message):
    __slots__ = ("map_version", "clean_version", "names_seen", "names_before", "doubtful_names", "doubtful_bucket", "silent", "objects_pushed", "bytes_pushed", "names_fetched", "short_objects", "short_writes", "scrub", "clock_offset_s", "clock_ahead_s", "coding")
    class ShortObjectsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    MAP_VERSION_FIELD_NUMBER: _ClassVar[int]
    CLEAN_VERSION_FIELD_NUMBER: _ClassVar[int]
    NAMES_SEEN_FIELD_NUMBER: _ClassVar[int]
    NAMES_BEFORE_FIELD_NUMBER: _ClassVar[int]
    DOUBTFUL_NAMES_FIELD_NUMBER: _ClassVar[int]
    DOUBTFUL_BUCKET_FIELD_NUMBER: _ClassVar[int]
    SILENT_FIELD_NUMBER: _ClassVar[int]
    OBJECTS_PUSHED_FIELD_NUMBER: _ClassVar[int]
    BYTES_PUSHED_FIELD_NUMBER: _ClassVar[int]
    NAMES_FETCHED_FIELD_NUMBER: _ClassVar[int]
    SHORT_OBJECTS_FIELD_NUMBER: _ClassVar[int]
    SHORT_WRITES_FIELD_NUMBER: _ClassVar[int]
    SCRUB_FIELD_NUMBER: _ClassVar[int]
    CLOCK_OFFSET_S_FIELD_NUMBER: _ClassVar[int]
    CLOCK_AHEAD_S_FIELD_NUMBER: _ClassVar[int]
    CODING_FIELD_NUMBER: _ClassVar[int]
    map_version: int
    clean_version: int
    names_seen: int
    names_before: int
    doubtful_names: int
    doubtful_bucket: _containers.RepeatedScalarFieldContainer[str]
    silent: _containers.RepeatedScalarFieldContainer[str]
    objects_pushed: int
    bytes_pushed: int
    names_fetched: int
    short_objects: _containers.ScalarMap[str, int]
    short_writes: int
    scrub: ScrubProgress
    clock_offset_s: float
    clock_ahead_s: float
    coding: CodingProgress
    def __init__(self, map_version: _Optional[int] = ..., clean_version: _Optional[int] = ..., names_seen: _Optional[int] = ..., names_before: _Optional[int] = ..., doubtful_names: _Optional[int] = ..., doubtful_bucket: _Optional[_Iterable[str]] = ..., silent: _Optional[_Iterable[str]] = ..., objects_pushed: _Optional[int] = ..., bytes_pushed: _Optional[int] = ..., names_fetched: _Optional[int] = ..., short_objects: _Optional[_Mapping[str, int]] = ..., short_writes: _Optional[int] = ..., scrub: _Optional[_Union[ScrubProgress, _Mapping]] = ..., clock_offset_s: _Optional[float] = ..., clock_ahead_s: _Optional[float] = ..., coding: _Optional[_Union[CodingProgress, _Mapping]] = ...) -> None: ...

class CodingProgress(_message.Message):
    __slots__ = ("groups", "short_groups", "groups_coded", "objects_coded", "bytes_coded", "groups_dissolved", "fragments_rebuilt", "waits", "looked_s_ago", "lacking", "unsafe_groups", "denied")
    class WaitsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class LackingEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class DeniedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    SHORT_GROUPS_FIELD_NUMBER: _ClassVar[int]
    GROUPS_CODED_FIELD_NUMBER: _ClassVar[int]
    OBJECTS_CODED_FIELD_NUMBER: _ClassVar[int]
    BYTES_CODED_FIELD_NUMBER: _ClassVar[int]
    GROUPS_DISSOLVED_FIELD_NUMBER: _ClassVar[int]
    FRAGMENTS_REBUILT_FIELD_NUMBER: _ClassVar[int]
    WAITS_FIELD_NUMBER: _ClassVar[int]
    LOOKED_S_AGO_FIELD_NUMBER: _ClassVar[int]
    LACKING_FIELD_NUMBER: _ClassVar[int]
    UNSAFE_GROUPS_FIELD_NUMBER: _ClassVar[int]
    DENIED_FIELD_NUMBER: _ClassVar[int]
    groups: int
    short_groups: int
    groups_coded: int
    objects_coded: int
    bytes_coded: int
    groups_dissolved: int
    fragments_rebuilt: int
    waits: _containers.ScalarMap[str, str]
    looked_s_ago: float
    lacking: _containers.ScalarMap[str, int]
    unsafe_groups: int
    denied: _containers.ScalarMap[str, str]
    def __init__(self, groups: _Optional[int] = ..., short_groups: _Optional[int] = ..., groups_coded: _Optional[int] = ..., objects_coded: _Optional[int] = ..., bytes_coded: _Optional[int] = ..., groups_dissolved: _Optional[int] = ..., fragments_rebuilt: _Optional[int] = ..., waits: _Optional[_Mapping[str, str]] = ..., looked_s_ago: _Optional[float] = ..., lacking: _Optional[_Mapping[str, int]] = ..., unsafe_groups: _Optional[int] = ..., denied: _Optional[_Mapping[str, str]] = ...) -> None: ...

class ScrubProgress(_message.Message):
    __slots__ = ("damaged", "found", "mended", "scrubbed_bytes", "pass_objects", "pass_bytes", "finished_s", "is_under_way")
    DAMAGED_FIELD_NUMBER: _ClassVar[int]
    FOUND_FIELD_NUMBER: _ClassVar[int]
    MENDED_FIELD_NUMBER: _ClassVar[int]
    SCRUBBED_BYTES_FIELD_NUMBER: _ClassVar[int]
    PASS_OBJECTS_FIELD_NUMBER: _ClassVar[int]
    PASS_BYTES_FIELD_NUMBER: _ClassVar[int]
    FINISHED_S_FIELD_NUMBER: _ClassVar[int]
    IS_UNDER_WAY_FIELD_NUMBER: _ClassVar[int]
    damaged: int
    found: int
    mended: int
    scrubbed_bytes: int
    pass_objects: int
    pass_bytes: int
    finished_s: float
    is_under_way: bool
    def __init__(self, damaged: _Optional[int] = ..., found: _Optional[int] = ..., mended: _Optional[int] = ..., scrubbed_bytes: _Optional[int] = ..., pass_objects: _Optional[int] = ..., pass_bytes: _Optional[int] = ..., finished_s: _Optional[float] = ..., is_under_way: bool = ...) -> None: ...

class ObjectVersion(_message.Message):
    __slots__ = ("epoch", "counter", "node")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    COUNTER_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    counter: int
    node: int
    def __init__(self, epoch: _Optional[int] = ..., counter: _Optional[int] = ..., node: _Optional[int] = ...) -> None: ...

class BucketRef(_message.Message):
    __slots__ = ("name", "uuid")
    NAME_FIELD_NUMBER: _ClassVar[int]
    UUID_FIELD_NUMBER: _ClassVar[int]
    name: str
    uuid: bytes
    def __init__(self, name: _Optional[str] = ..., uuid: _Optional[bytes] = ...) -> None: ...

class WriteRequest(_message.Message):
    __slots__ = ("header", "end", "group", "commit", "data")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    header: WriteHeader
    end: _ais_objects_pb2.PutEnd
    group: WriteGroup
    commit: WriteCommit
    data: bytes
    def __init__(self, header: _Optional[_Union[WriteHeader, _Mapping]] = ..., end: _Optional[_Union[_ais_objects_pb2.PutEnd, _Mapping]] = ..., group: _Optional[_Union[WriteGroup, _Mapping]] = ..., commit: _Optional[_Union[WriteCommit, _Mapping]] = ..., data: _Optional[bytes] = ...) -> None: ...

class WriteHeader(_message.Message):
    __slots__ = ("object", "bucket_uuid")
    OBJECT_FIELD_NUMBER: _ClassVar[int]
    BUCKET_UUID_FIELD_NUMBER: _ClassVar[int]
    object: _ais_objects_pb2.PutHeader
    bucket_uuid: bytes
    def __init__(self, object: _Optional[_Union[_ais_objects_pb2.PutHeader, _Mapping]] = ..., bucket_uuid: _Optional[bytes] = ...) -> None: ...

class WriteGroup(_message.Message):
    __slots__ = ("object", "bucket_uuid")
    class BucketUuidEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: bytes
        def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...
    OBJECT_FIELD_NUMBER: _ClassVar[int]
    BUCKET_UUID_FIELD_NUMBER: _ClassVar[int]
    object: _containers.RepeatedCompositeFieldContainer[_ais_objects_pb2.SmallObject]
    bucket_uuid: _containers.ScalarMap[str, bytes]
    def __init__(self, object: _Optional[_Iterable[_Union[_ais_objects_pb2.SmallObject, _Mapping]]] = ..., bucket_uuid: _Optional[_Mapping[str, bytes]] = ...) -> None: ...

class WriteCommit(_message.Message):
    __slots__ = ("object", "is_copy", "wall_ms", "looked_ms")
    OBJECT_FIELD_NUMBER: _ClassVar[int]
    IS_COPY_FIELD_NUMBER: _ClassVar[int]
    WALL_MS_FIELD_NUMBER: _ClassVar[int]
    LOOKED_MS_FIELD_NUMBER: _ClassVar[int]
    object: _containers.RepeatedCompositeFieldContainer[CommitObject]
    is_copy: bool
    wall_ms: int
    looked_ms: int
    def __init__(self, object: _Optional[_Iterable[_Union[CommitObject, _Mapping]]] = ..., is_copy: bool = ..., wall_ms: _Optional[int] = ..., looked_ms: _Optional[int] = ...) -> None: ...

class CommitObject(_message.Message):
    __slots__ = ("version", "modified_ns", "not_above", "writes", "known")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    MODIFIED_NS_FIELD_NUMBER: _ClassVar[int]
    NOT_ABOVE_FIELD_NUMBER: _ClassVar[int]
    WRITES_FIELD_NUMBER: _ClassVar[int]
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    version: ObjectVersion
    modified_ns: int
    not_above: ObjectVersion
    writes: bytes
    known: ObjectVersion
    def __init__(self, version: _Optional[_Union[ObjectVersion, _Mapping]] = ..., modified_ns: _Optional[int] = ..., not_above: _Optional[_Union[ObjectVersion, _Mapping]] = ..., writes: _Optional[bytes] = ..., known: _Optional[_Union[ObjectVersion, _Mapping]] = ...) -> None: ...

class WriteResponse(_message.Message):
    __slots__ = ("ready", "staged", "committed")
    READY_FIELD_NUMBER: _ClassVar[int]
    STAGED_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    ready: WriteReady
    staged: Staged
    committed: Committed
    def __init__(self, ready: _Optional[_Union[WriteReady, _Mapping]] = ..., staged: _Optional[_Union[Staged, _Mapping]] = ..., committed: _Optional[_Union[Committed, _Mapping]] = ...) -> None: ...

class WriteReady(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Staged(_message.Message):
    __slots__ = ("object", "clock", "wall_ms")
    OBJECT_FIELD_NUMBER: _ClassVar[int]
    CLOCK_FIELD_NUMBER: _ClassVar[int]
    WALL_MS_FIELD_NUMBER: _ClassVar[int]
    object: _containers.RepeatedCompositeFieldContainer[StagedObject]
    clock: int
    wall_ms: int
    def __init__(self, object: _Optional[_Iterable[_Union[StagedObject, _Mapping]]] = ..., clock: _Optional[int] = ..., wall_ms: _Optional[int] = ...) -> None: ...

class StagedObject(_message.Message):
    __slots__ = ("error", "size_bytes", "checksum", "newest", "before")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    NEWEST_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    error: _ais_objects_pb2.Error
    size_bytes: int
    checksum: int
    newest: ObjectVersion
    before: ObjectState
    def __init__(self, error: _Optional[_Union[_ais_objects_pb2.Error, _Mapping]] = ..., size_bytes: _Optional[int] = ..., checksum: _Optional[int] = ..., newest: _Optional[_Union[ObjectVersion, _Mapping]] = ..., before: _Optional[_Union[ObjectState, _Mapping]] = ...) -> None: ...

class Committed(_message.Message):
    __slots__ = ("object", "map_version")
    OBJECT_FIELD_NUMBER: _ClassVar[int]
    MAP_VERSION_FIELD_NUMBER: _ClassVar[int]
    object: _containers.RepeatedCompositeFieldContainer[CommittedObject]
    map_version: int
    def __init__(self, object: _Optional[_Iterable[_Union[CommittedObject, _Mapping]]] = ..., map_version: _Optional[int] = ...) -> None: ...

class CommittedObject(_message.Message):
    __slots__ = ("error", "version", "superseded")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SUPERSEDED_FIELD_NUMBER: _ClassVar[int]
    error: _ais_objects_pb2.Error
    version: ObjectVersion
    superseded: bool
    def __init__(self, error: _Optional[_Union[_ais_objects_pb2.Error, _Mapping]] = ..., version: _Optional[_Union[ObjectVersion, _Mapping]] = ..., superseded: bool = ...) -> None: ...

class NewestRequest(_message.Message):
    __slots__ = ("bucket", "name", "allow_unknown", "make_lasting", "coded_only")
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ALLOW_UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    MAKE_LASTING_FIELD_NUMBER: _ClassVar[int]
    CODED_ONLY_FIELD_NUMBER: _ClassVar[int]
    bucket: BucketRef
    name: _containers.RepeatedScalarFieldContainer[str]
    allow_unknown: bool
    make_lasting: bool
    coded_only: bool
    def __init__(self, bucket: _Optional[_Union[BucketRef, _Mapping]] = ..., name: _Optional[_Iterable[str]] = ..., allow_unknown: bool = ..., make_lasting: bool = ..., coded_only: bool = ...) -> None: ...

class NewestResponse(_message.Message):
    __slots__ = ("object", "clock", "map_version", "wall_ms")
    OBJECT_FIELD_NUMBER: _ClassVar[int]
    CLOCK_FIELD_NUMBER: _ClassVar[int]
    MAP_VERSION_FIELD_NUMBER: _ClassVar[int]
    WALL_MS_FIELD_NUMBER: _ClassVar[int]
    object: _containers.RepeatedCompositeFieldContainer[ObjectState]
    clock: int
    map_version: int
    wall_ms: int
    def __init__(self, object: _Optional[_Iterable[_Union[ObjectState, _Mapping]]] = ..., clock: _Optional[int] = ..., map_version: _Optional[int] = ..., wall_ms: _Optional[int] = ...) -> None: ...

class ObjectState(_message.Message):
    __slots__ = ("name", "version", "is_tombstone", "size_bytes", "checksum", "unknown", "writes", "modified_ns", "evicted", "announced", "group", "raw_metadata")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    IS_TOMBSTONE_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    WRITES_FIELD_NUMBER: _ClassVar[int]
    MODIFIED_NS_FIELD_NUMBER: _ClassVar[int]
    EVICTED_FIELD_NUMBER: _ClassVar[int]
    ANNOUNCED_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    RAW_METADATA_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: ObjectVersion
    is_tombstone: bool
    size_bytes: int
    checksum: int
    unknown: bool
    writes: bytes
    modified_ns: int
    evicted: ObjectVersion
    announced: ObjectVersion
    group: bytes
    raw_metadata: bytes
    def __init__(self, name: _Optional[str] = ..., version: _Optional[_Union[ObjectVersion, _Mapping]] = ..., is_tombstone: bool = ..., size_bytes: _Optional[int] = ..., checksum: _Optional[int] = ..., unknown: bool = ..., writes: _Optional[bytes] = ..., modified_ns: _Optional[int] = ..., evicted: _Optional[_Union[ObjectVersion, _Mapping]] = ..., announced: _Optional[_Union[ObjectVersion, _Mapping]] = ..., group: _Optional[bytes] = ..., raw_metadata: _Optional[bytes] = ...) -> None: ...

class RecodeRequest(_message.Message):
    __slots__ = ("bucket", "name", "entry", "wall_ms", "only_files")
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    WALL_MS_FIELD_NUMBER: _ClassVar[int]
    ONLY_FILES_FIELD_NUMBER: _ClassVar[int]
    bucket: BucketRef
    name: _containers.RepeatedScalarFieldContainer[str]
    entry: _containers.RepeatedScalarFieldContainer[bytes]
    wall_ms: int
    only_files: bool
    def __init__(self, bucket: _Optional[_Union[BucketRef, _Mapping]] = ..., name: _Optional[_Iterable[str]] = ..., entry: _Optional[_Iterable[bytes]] = ..., wall_ms: _Optional[int] = ..., only_files: bool = ...) -> None: ...

class RecodeResponse(_message.Message):
    __slots__ = ("done",)
    DONE_FIELD_NUMBER: _ClassVar[int]
    done: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, done: _Optional[_Iterable[int]] = ...) -> None: ...

class BuryRequest(_message.Message):
    __slots__ = ("bucket", "name", "version", "not_above", "is_copy", "wall_ms", "writes", "looked_ms", "metadata")
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    NOT_ABOVE_FIELD_NUMBER: _ClassVar[int]
    IS_COPY_FIELD_NUMBER: _ClassVar[int]
    WALL_MS_FIELD_NUMBER: _ClassVar[int]
    WRITES_FIELD_NUMBER: _ClassVar[int]
    LOOKED_MS_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    bucket: BucketRef
    name: str
    version: ObjectVersion
    not_above: ObjectVersion
    is_copy: bool
    wall_ms: int
    writes: bytes
    looked_ms: int
    metadata: bytes
    def __init__(self, bucket: _Optional[_Union[BucketRef, _Mapping]] = ..., name: _Optional[str] = ..., version: _Optional[_Union[ObjectVersion, _Mapping]] = ..., not_above: _Optional[_Union[ObjectVersion, _Mapping]] = ..., is_copy: bool = ..., wall_ms: _Optional[int] = ..., writes: _Optional[bytes] = ..., looked_ms: _Optional[int] = ..., metadata: _Optional[bytes] = ...) -> None: ...

class BuryResponse(_message.Message):
    __slots__ = ("version", "map_version")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    MAP_VERSION_FIELD_NUMBER: _ClassVar[int]
    version: ObjectVersion
    map_version: int
    def __init__(self, version: _Optional[_Union[ObjectVersion, _Mapping]] = ..., map_version: _Optional[int] = ...) -> None: ...

class VersionsRequest(_message.Message):
    __slots__ = ("bucket", "start_after", "limit", "with_evicted", "until", "owner_uuid", "map_version")
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    START_AFTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    WITH_EVICTED_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    OWNER_UUID_FIELD_NUMBER: _ClassVar[int]
    MAP_VERSION_FIELD_NUMBER: _ClassVar[int]
    bucket: BucketRef
    start_after: str
    limit: int
    with_evicted: bool
    until: str
    owner_uuid: bytes
    map_version: int
    def __init__(self, bucket: _Optional[_Union[BucketRef, _Mapping]] = ..., start_after: _Optional[str] = ..., limit: _Optional[int] = ..., with_evicted: bool = ..., until: _Optional[str] = ..., owner_uuid: _Optional[bytes] = ..., map_version: _Optional[int] = ...) -> None: ...

class VersionsResponse(_message.Message):
    __slots__ = ("object", "next")
    OBJECT_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    object: _containers.RepeatedCompositeFieldContainer[ObjectState]
    next: str
    def __init__(self, object: _Optional[_Iterable[_Union[ObjectState, _Mapping]]] = ..., next: _Optional[str] = ...) -> None: ...
