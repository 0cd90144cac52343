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
    __slots__ = ("objects",)
    OBJECTS_FIELD_NUMBER: _ClassVar[int]
    objects: int
    def __init__(self, objects: _Optional[int] = ...) -> None: ...

class ProgressRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ProgressResponse(_message.Message):
    __slots__ = ("map_version", "clean_version", "names_seen", "names_before", "doubtful_names", "doubtful_bucket", "silent", "objects_pushed", "bytes_pushed", "names_fetched")
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
    def __init__(self, map_version: _Optional[int] = ..., clean_version: _Optional[int] = ..., names_seen: _Optional[int] = ..., names_before: _Optional[int] = ..., doubtful_names: _Optional[int] = ..., doubtful_bucket: _Optional[_Iterable[str]] = ..., silent: _Optional[_Iterable[str]] = ..., objects_pushed: _Optional[int] = ..., bytes_pushed: _Optional[int] = ..., names_fetched: _Optional[int] = ...) -> None: ...

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
    __slots__ = ("object", "is_copy")
    OBJECT_FIELD_NUMBER: _ClassVar[int]
    IS_COPY_FIELD_NUMBER: _ClassVar[int]
    object: _containers.RepeatedCompositeFieldContainer[CommitObject]
    is_copy: bool
    def __init__(self, object: _Optional[_Iterable[_Union[CommitObject, _Mapping]]] = ..., is_copy: bool = ...) -> None: ...

class CommitObject(_message.Message):
    __slots__ = ("version", "modified_ns", "not_above")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    MODIFIED_NS_FIELD_NUMBER: _ClassVar[int]
    NOT_ABOVE_FIELD_NUMBER: _ClassVar[int]
    version: ObjectVersion
    modified_ns: int
    not_above: ObjectVersion
    def __init__(self, version: _Optional[_Union[ObjectVersion, _Mapping]] = ..., modified_ns: _Optional[int] = ..., not_above: _Optional[_Union[ObjectVersion, _Mapping]] = ...) -> None: ...

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
    __slots__ = ("object", "clock")
    OBJECT_FIELD_NUMBER: _ClassVar[int]
    CLOCK_FIELD_NUMBER: _ClassVar[int]
    object: _containers.RepeatedCompositeFieldContainer[StagedObject]
    clock: int
    def __init__(self, object: _Optional[_Iterable[_Union[StagedObject, _Mapping]]] = ..., clock: _Optional[int] = ...) -> None: ...

class StagedObject(_message.Message):
    __slots__ = ("error", "size_bytes", "checksum", "newest")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    NEWEST_FIELD_NUMBER: _ClassVar[int]
    error: _ais_objects_pb2.Error
    size_bytes: int
    checksum: int
    newest: ObjectVersion
    def __init__(self, error: _Optional[_Union[_ais_objects_pb2.Error, _Mapping]] = ..., size_bytes: _Optional[int] = ..., checksum: _Optional[int] = ..., newest: _Optional[_Union[ObjectVersion, _Mapping]] = ...) -> None: ...

class Committed(_message.Message):
    __slots__ = ("object", "map_version")
    OBJECT_FIELD_NUMBER: _ClassVar[int]
    MAP_VERSION_FIELD_NUMBER: _ClassVar[int]
    object: _containers.RepeatedCompositeFieldContainer[CommittedObject]
    map_version: int
    def __init__(self, object: _Optional[_Iterable[_Union[CommittedObject, _Mapping]]] = ..., map_version: _Optional[int] = ...) -> None: ...

class CommittedObject(_message.Message):
    __slots__ = ("error", "version")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    error: _ais_objects_pb2.Error
    version: ObjectVersion
    def __init__(self, error: _Optional[_Union[_ais_objects_pb2.Error, _Mapping]] = ..., version: _Optional[_Union[ObjectVersion, _Mapping]] = ...) -> None: ...

class NewestRequest(_message.Message):
    __slots__ = ("bucket", "name", "allow_unknown")
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ALLOW_UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    bucket: BucketRef
    name: _containers.RepeatedScalarFieldContainer[str]
    allow_unknown: bool
    def __init__(self, bucket: _Optional[_Union[BucketRef, _Mapping]] = ..., name: _Optional[_Iterable[str]] = ..., allow_unknown: bool = ...) -> None: ...

class NewestResponse(_message.Message):
    __slots__ = ("object", "clock", "map_version")
    OBJECT_FIELD_NUMBER: _ClassVar[int]
    CLOCK_FIELD_NUMBER: _ClassVar[int]
    MAP_VERSION_FIELD_NUMBER: _ClassVar[int]
    object: _containers.RepeatedCompositeFieldContainer[ObjectState]
    clock: int
    map_version: int
    def __init__(self, object: _Optional[_Iterable[_Union[ObjectState, _Mapping]]] = ..., clock: _Optional[int] = ..., map_version: _Optional[int] = ...) -> None: ...

class ObjectState(_message.Message):
    __slots__ = ("name", "version", "is_tombstone", "size_bytes", "checksum", "unknown")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    IS_TOMBSTONE_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: ObjectVersion
    is_tombstone: bool
    size_bytes: int
    checksum: int
    unknown: bool
    def __init__(self, name: _Optional[str] = ..., version: _Optional[_Union[ObjectVersion, _Mapping]] = ..., is_tombstone: bool = ..., size_bytes: _Optional[int] = ..., checksum: _Optional[int] = ..., unknown: bool = ...) -> None: ...

class BuryRequest(_message.Message):
    __slots__ = ("bucket", "name", "version", "not_above", "is_copy")
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    NOT_ABOVE_FIELD_NUMBER: _ClassVar[int]
    IS_COPY_FIELD_NUMBER: _ClassVar[int]
    bucket: BucketRef
    name: str
    version: ObjectVersion
    not_above: ObjectVersion
    is_copy: bool
    def __init__(self, bucket: _Optional[_Union[BucketRef, _Mapping]] = ..., name: _Optional[str] = ..., version: _Optional[_Union[ObjectVersion, _Mapping]] = ..., not_above: _Optional[_Union[ObjectVersion, _Mapping]] = ..., is_copy: bool = ...) -> None: ...

class BuryResponse(_message.Message):
    __slots__ = ("version", "map_version")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    MAP_VERSION_FIELD_NUMBER: _ClassVar[int]
    version: ObjectVersion
    map_version: int
    def __init__(self, version: _Optional[_Union[ObjectVersion, _Mapping]] = ..., map_version: _Optional[int] = ...) -> None: ...

class VersionsRequest(_message.Message):
    __slots__ = ("bucket", "start_after", "limit")
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    START_AFTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    bucket: BucketRef
    start_after: str
    limit: int
    def __init__(self, bucket: _Optional[_Union[BucketRef, _Mapping]] = ..., start_after: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class VersionsResponse(_message.Message):
    __slots__ = ("object", "more")
    OBJECT_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    object: _containers.RepeatedCompositeFieldContainer[ObjectState]
    more: bool
    def __init__(self, object: _Optional[_Iterable[_Union[ObjectState, _Mapping]]] = ..., more: bool = ...) -> None: ...

class ForgetRequest(_message.Message):
    __slots__ = ("bucket", "name", "version", "tombstone_only")
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TOMBSTONE_ONLY_FIELD_NUMBER: _ClassVar[int]
    bucket: BucketRef
    name: str
    version: ObjectVersion
    tombstone_only: bool
    def __init__(self, bucket: _Optional[_Union[BucketRef, _Mapping]] = ..., name: _Optional[str] = ..., version: _Optional[_Union[ObjectVersion, _Mapping]] = ..., tombstone_only: bool = ...) -> None: ...

class ForgetResponse(_message.Message):
    __slots__ = ("left",)
    LEFT_FIELD_NUMBER: _ClassVar[int]
    left: ObjectState
    def __init__(self, left: _Optional[_Union[ObjectState, _Mapping]] = ...) -> None: ...
