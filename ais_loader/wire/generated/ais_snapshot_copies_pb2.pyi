from ais_loader.wire.generated import ais_replica_pb2 as _ais_replica_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class HoldRequest(_message.Message):
    __slots__ = ("bucket", "attempt")
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    bucket: _ais_replica_pb2.BucketRef
    attempt: bytes
    def __init__(self, bucket: _Optional[_Union[_ais_replica_pb2.BucketRef, _Mapping]] = ..., attempt: _Optional[bytes] = ...) -> None: ...

class HoldResponse(_message.Message):
    __slots__ = ("clock", "map_version", "wall_ms")
    CLOCK_FIELD_NUMBER: _ClassVar[int]
    MAP_VERSION_FIELD_NUMBER: _ClassVar[int]
    WALL_MS_FIELD_NUMBER: _ClassVar[int]
    clock: int
    map_version: int
    wall_ms: int
    def __init__(self, clock: _Optional[int] = ..., map_version: _Optional[int] = ..., wall_ms: _Optional[int] = ...) -> None: ...

class ArmedRequest(_message.Message):
    __slots__ = ("bucket", "attempt", "cut")
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    bucket: _ais_replica_pb2.BucketRef
    attempt: bytes
    cut: int
    def __init__(self, bucket: _Optional[_Union[_ais_replica_pb2.BucketRef, _Mapping]] = ..., attempt: _Optional[bytes] = ..., cut: _Optional[int] = ...) -> None: ...

class ArmedResponse(_message.Message):
    __slots__ = ("armed",)
    ARMED_FIELD_NUMBER: _ClassVar[int]
    armed: bool
    def __init__(self, armed: bool = ...) -> None: ...

class ReleaseRequest(_message.Message):
    __slots__ = ("bucket", "attempt")
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    bucket: _ais_replica_pb2.BucketRef
    attempt: bytes
    def __init__(self, bucket: _Optional[_Union[_ais_replica_pb2.BucketRef, _Mapping]] = ..., attempt: _Optional[bytes] = ...) -> None: ...

class ReleaseResponse(_message.Message):
    __slots__ = ("held",)
    HELD_FIELD_NUMBER: _ClassVar[int]
    held: bool
    def __init__(self, held: bool = ...) -> None: ...

class SeenRequest(_message.Message):
    __slots__ = ("bucket", "cut", "name", "start_after", "limit")
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    START_AFTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    bucket: _ais_replica_pb2.BucketRef
    cut: int
    name: _containers.RepeatedScalarFieldContainer[str]
    start_after: str
    limit: int
    def __init__(self, bucket: _Optional[_Union[_ais_replica_pb2.BucketRef, _Mapping]] = ..., cut: _Optional[int] = ..., name: _Optional[_Iterable[str]] = ..., start_after: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class SeenResponse(_message.Message):
    __slots__ = ("object", "more", "map_version")
    OBJECT_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    MAP_VERSION_FIELD_NUMBER: _ClassVar[int]
    object: _containers.RepeatedCompositeFieldContainer[_ais_replica_pb2.ObjectState]
    more: bool
    map_version: int
    def __init__(self, object: _Optional[_Iterable[_Union[_ais_replica_pb2.ObjectState, _Mapping]]] = ..., more: bool = ..., map_version: _Optional[int] = ...) -> None: ...

class SettleRequest(_message.Message):
    __slots__ = ("bucket", "cut", "start_after")
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    START_AFTER_FIELD_NUMBER: _ClassVar[int]
    bucket: _ais_replica_pb2.BucketRef
    cut: int
    start_after: str
    def __init__(self, bucket: _Optional[_Union[_ais_replica_pb2.BucketRef, _Mapping]] = ..., cut: _Optional[int] = ..., start_after: _Optional[str] = ...) -> None: ...

class SettleResponse(_message.Message):
    __slots__ = ("last", "more", "differing", "objects", "size_bytes", "problem")
    LAST_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    DIFFERING_FIELD_NUMBER: _ClassVar[int]
    OBJECTS_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    last: str
    more: bool
    differing: int
    objects: int
    size_bytes: int
    problem: str
    def __init__(self, last: _Optional[str] = ..., more: bool = ..., differing: _Optional[int] = ..., objects: _Optional[int] = ..., size_bytes: _Optional[int] = ..., problem: _Optional[str] = ...) -> None: ...

class KeepRequest(_message.Message):
    __slots__ = ("header", "data")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    header: KeepHeader
    data: bytes
    def __init__(self, header: _Optional[_Union[KeepHeader, _Mapping]] = ..., data: _Optional[bytes] = ...) -> None: ...

class KeepHeader(_message.Message):
    __slots__ = ("bucket", "name", "version", "is_tombstone", "size_bytes", "checksum", "modified_ns", "metadata", "ended", "group", "offset")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    IS_TOMBSTONE_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    MODIFIED_NS_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    bucket: _ais_replica_pb2.BucketRef
    name: str
    version: _ais_replica_pb2.ObjectVersion
    is_tombstone: bool
    size_bytes: int
    checksum: int
    modified_ns: int
    metadata: _containers.ScalarMap[str, str]
    ended: int
    group: bytes
    offset: int
    def __init__(self, bucket: _Optional[_Union[_ais_replica_pb2.BucketRef, _Mapping]] = ..., name: _Optional[str] = ..., version: _Optional[_Union[_ais_replica_pb2.ObjectVersion, _Mapping]] = ..., is_tombstone: bool = ..., size_bytes: _Optional[int] = ..., checksum: _Optional[int] = ..., modified_ns: _Optional[int] = ..., metadata: _Optional[_Mapping[str, str]] = ..., ended: _Optional[int] = ..., group: _Optional[bytes] = ..., offset: _Optional[int] = ...) -> None: ...

class KeepResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class MakingRequest(_message.Message):
    __slots__ = ("bucket_uuid", "name", "created_ns")
    BUCKET_UUID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    CREATED_NS_FIELD_NUMBER: _ClassVar[int]
    bucket_uuid: bytes
    name: str
    created_ns: int
    def __init__(self, bucket_uuid: _Optional[bytes] = ..., name: _Optional[str] = ..., created_ns: _Optional[int] = ...) -> None: ...

class MakingResponse(_message.Message):
    __slots__ = ("making",)
    MAKING_FIELD_NUMBER: _ClassVar[int]
    making: bool
    def __init__(self, making: bool = ...) -> None: ...
