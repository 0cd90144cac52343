from ais_loader.wire.generated import ais_objects_pb2 as _ais_objects_pb2
from ais_loader.wire.generated import ais_replica_pb2 as _ais_replica_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DeleteManyRequest(_message.Message):
    __slots__ = ("bucket", "name", "write_id", "repeat_ms")
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    WRITE_ID_FIELD_NUMBER: _ClassVar[int]
    REPEAT_MS_FIELD_NUMBER: _ClassVar[int]
    bucket: str
    name: _containers.RepeatedScalarFieldContainer[str]
    write_id: bytes
    repeat_ms: int
    def __init__(self, bucket: _Optional[str] = ..., name: _Optional[_Iterable[str]] = ..., write_id: _Optional[bytes] = ..., repeat_ms: _Optional[int] = ...) -> None: ...

class DeleteManyResponse(_message.Message):
    __slots__ = ("failure",)
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    failure: _containers.RepeatedCompositeFieldContainer[DeleteFailure]
    def __init__(self, failure: _Optional[_Iterable[_Union[DeleteFailure, _Mapping]]] = ...) -> None: ...

class DeleteFailure(_message.Message):
    __slots__ = ("position", "error")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    position: int
    error: _ais_objects_pb2.Error
    def __init__(self, position: _Optional[int] = ..., error: _Optional[_Union[_ais_objects_pb2.Error, _Mapping]] = ...) -> None: ...

class DenyRequest(_message.Message):
    __slots__ = ("bucket", "name", "content", "reason", "allow")
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ALLOW_FIELD_NUMBER: _ClassVar[int]
    bucket: str
    name: _containers.RepeatedScalarFieldContainer[str]
    content: _containers.RepeatedScalarFieldContainer[str]
    reason: str
    allow: bool
    def __init__(self, bucket: _Optional[str] = ..., name: _Optional[_Iterable[str]] = ..., content: _Optional[_Iterable[str]] = ..., reason: _Optional[str] = ..., allow: bool = ...) -> None: ...

class DenyResponse(_message.Message):
    __slots__ = ("failure",)
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    failure: _containers.RepeatedCompositeFieldContainer[DeleteFailure]
    def __init__(self, failure: _Optional[_Iterable[_Union[DeleteFailure, _Mapping]]] = ...) -> None: ...

class ListDeniedRequest(_message.Message):
    __slots__ = ("bucket", "start_after", "limit")
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    START_AFTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    bucket: str
    start_after: str
    limit: int
    def __init__(self, bucket: _Optional[str] = ..., start_after: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class ListDeniedResponse(_message.Message):
    __slots__ = ("name", "content", "next")
    class ContentEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    name: _containers.RepeatedCompositeFieldContainer[DeniedName]
    content: _containers.ScalarMap[str, str]
    next: str
    def __init__(self, name: _Optional[_Iterable[_Union[DeniedName, _Mapping]]] = ..., content: _Optional[_Mapping[str, str]] = ..., next: _Optional[str] = ...) -> None: ...

class DeniedName(_message.Message):
    __slots__ = ("name", "reason", "content", "denied_ns", "version", "drive")
    NAME_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    DENIED_NS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DRIVE_FIELD_NUMBER: _ClassVar[int]
    name: str
    reason: str
    content: str
    denied_ns: int
    version: _ais_replica_pb2.ObjectVersion
    drive: _containers.RepeatedCompositeFieldContainer[DeniedOnDrive]
    def __init__(self, name: _Optional[str] = ..., reason: _Optional[str] = ..., content: _Optional[str] = ..., denied_ns: _Optional[int] = ..., version: _Optional[_Union[_ais_replica_pb2.ObjectVersion, _Mapping]] = ..., drive: _Optional[_Iterable[_Union[DeniedOnDrive, _Mapping]]] = ...) -> None: ...

class DeniedOnDrive(_message.Message):
    __slots__ = ("drive", "copy", "purged_ns")
    DRIVE_FIELD_NUMBER: _ClassVar[int]
    COPY_FIELD_NUMBER: _ClassVar[int]
    PURGED_NS_FIELD_NUMBER: _ClassVar[int]
    drive: str
    copy: _containers.RepeatedCompositeFieldContainer[DeniedCopy]
    purged_ns: int
    def __init__(self, drive: _Optional[str] = ..., copy: _Optional[_Iterable[_Union[DeniedCopy, _Mapping]]] = ..., purged_ns: _Optional[int] = ...) -> None: ...

class DeniedCopy(_message.Message):
    __slots__ = ("kind", "size_bytes", "version", "group", "generation")
    KIND_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    kind: str
    size_bytes: int
    version: str
    group: str
    generation: int
    def __init__(self, kind: _Optional[str] = ..., size_bytes: _Optional[int] = ..., version: _Optional[str] = ..., group: _Optional[str] = ..., generation: _Optional[int] = ...) -> None: ...

class HeadManyRequest(_message.Message):
    __slots__ = ("bucket", "name")
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    bucket: str
    name: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, bucket: _Optional[str] = ..., name: _Optional[_Iterable[str]] = ...) -> None: ...

class HeadManyResponse(_message.Message):
    __slots__ = ("object", "failure")
    OBJECT_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    object: _containers.RepeatedCompositeFieldContainer[_ais_objects_pb2.ObjectInfo]
    failure: _containers.RepeatedCompositeFieldContainer[HeadFailure]
    def __init__(self, object: _Optional[_Iterable[_Union[_ais_objects_pb2.ObjectInfo, _Mapping]]] = ..., failure: _Optional[_Iterable[_Union[HeadFailure, _Mapping]]] = ...) -> None: ...

class HeadFailure(_message.Message):
    __slots__ = ("position", "error")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    position: int
    error: _ais_objects_pb2.Error
    def __init__(self, position: _Optional[int] = ..., error: _Optional[_Union[_ais_objects_pb2.Error, _Mapping]] = ...) -> None: ...

class BuryManyRequest(_message.Message):
    __slots__ = ("bucket", "name", "version", "wall_ms", "writes", "looked_ms", "metadata", "only_known")
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    WALL_MS_FIELD_NUMBER: _ClassVar[int]
    WRITES_FIELD_NUMBER: _ClassVar[int]
    LOOKED_MS_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    ONLY_KNOWN_FIELD_NUMBER: _ClassVar[int]
    bucket: _ais_replica_pb2.BucketRef
    name: _containers.RepeatedScalarFieldContainer[str]
    version: _containers.RepeatedCompositeFieldContainer[_ais_replica_pb2.ObjectVersion]
    wall_ms: int
    writes: _containers.RepeatedScalarFieldContainer[bytes]
    looked_ms: int
    metadata: bytes
    only_known: bool
    def __init__(self, bucket: _Optional[_Union[_ais_replica_pb2.BucketRef, _Mapping]] = ..., name: _Optional[_Iterable[str]] = ..., version: _Optional[_Iterable[_Union[_ais_replica_pb2.ObjectVersion, _Mapping]]] = ..., wall_ms: _Optional[int] = ..., writes: _Optional[_Iterable[bytes]] = ..., looked_ms: _Optional[int] = ..., metadata: _Optional[bytes] = ..., only_known: bool = ...) -> None: ...

class BuryManyResponse(_message.Message):
    __slots__ = ("failure", "map_version")
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    MAP_VERSION_FIELD_NUMBER: _ClassVar[int]
    failure: _containers.RepeatedCompositeFieldContainer[DeleteFailure]
    map_version: int
    def __init__(self, failure: _Optional[_Iterable[_Union[DeleteFailure, _Mapping]]] = ..., map_version: _Optional[int] = ...) -> None: ...

class SummarizeRequest(_message.Message):
    __slots__ = ("bucket", "prefix", "depth")
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    DEPTH_FIELD_NUMBER: _ClassVar[int]
    bucket: str
    prefix: str
    depth: int
    def __init__(self, bucket: _Optional[str] = ..., prefix: _Optional[str] = ..., depth: _Optional[int] = ...) -> None: ...

class SummarizeResponse(_message.Message):
    __slots__ = ("counted", "summary")
    COUNTED_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    counted: int
    summary: Summary
    def __init__(self, counted: _Optional[int] = ..., summary: _Optional[_Union[Summary, _Mapping]] = ...) -> None: ...

class Summary(_message.Message):
    __slots__ = ("objects", "size_bytes", "prefix", "silent", "incomplete")
    OBJECTS_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    SILENT_FIELD_NUMBER: _ClassVar[int]
    INCOMPLETE_FIELD_NUMBER: _ClassVar[int]
    objects: int
    size_bytes: int
    prefix: _containers.RepeatedCompositeFieldContainer[PrefixSummary]
    silent: _containers.RepeatedScalarFieldContainer[str]
    incomplete: bool
    def __init__(self, objects: _Optional[int] = ..., size_bytes: _Optional[int] = ..., prefix: _Optional[_Iterable[_Union[PrefixSummary, _Mapping]]] = ..., silent: _Optional[_Iterable[str]] = ..., incomplete: bool = ...) -> None: ...

class PrefixSummary(_message.Message):
    __slots__ = ("prefix", "objects", "size_bytes")
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    OBJECTS_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    prefix: str
    objects: int
    size_bytes: int
    def __init__(self, prefix: _Optional[str] = ..., objects: _Optional[int] = ..., size_bytes: _Optional[int] = ...) -> None: ...

class ListNamesRequest(_message.Message):
    __slots__ = ("bucket", "prefix", "start_after", "limit", "until")
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    START_AFTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    bucket: _ais_replica_pb2.BucketRef
    prefix: str
    start_after: str
    limit: int
    until: str
    def __init__(self, bucket: _Optional[_Union[_ais_replica_pb2.BucketRef, _Mapping]] = ..., prefix: _Optional[str] = ..., start_after: _Optional[str] = ..., limit: _Optional[int] = ..., until: _Optional[str] = ...) -> None: ...

class ListNamesResponse(_message.Message):
    __slots__ = ("name", "size_bytes", "is_tombstone", "epoch", "counter", "node", "next", "map_version")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    IS_TOMBSTONE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    COUNTER_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    MAP_VERSION_FIELD_NUMBER: _ClassVar[int]
    name: _containers.RepeatedScalarFieldContainer[str]
    size_bytes: _containers.RepeatedScalarFieldContainer[int]
    is_tombstone: _containers.RepeatedScalarFieldContainer[bool]
    epoch: _containers.RepeatedScalarFieldContainer[int]
    counter: _containers.RepeatedScalarFieldContainer[int]
    node: _containers.RepeatedScalarFieldContainer[int]
    next: str
    map_version: int
    def __init__(self, name: _Optional[_Iterable[str]] = ..., size_bytes: _Optional[_Iterable[int]] = ..., is_tombstone: _Optional[_Iterable[bool]] = ..., epoch: _Optional[_Iterable[int]] = ..., counter: _Optional[_Iterable[int]] = ..., node: _Optional[_Iterable[int]] = ..., next: _Optional[str] = ..., map_version: _Optional[int] = ...) -> None: ...
