from ais_loader.wire.generated import ais_objects_pb2 as _ais_objects_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FetchRequest(_message.Message):
    __slots__ = ("bucket", "bucket_uuid", "name", "version", "tenant", "with_bytes")
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    BUCKET_UUID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    WITH_BYTES_FIELD_NUMBER: _ClassVar[int]
    bucket: str
    bucket_uuid: bytes
    name: str
    version: str
    tenant: str
    with_bytes: bool
    def __init__(self, bucket: _Optional[str] = ..., bucket_uuid: _Optional[bytes] = ..., name: _Optional[str] = ..., version: _Optional[str] = ..., tenant: _Optional[str] = ..., with_bytes: bool = ...) -> None: ...

class FetchResponse(_message.Message):
    __slots__ = ("object", "data", "version")
    OBJECT_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    object: FetchedObject
    data: bytes
    version: str
    def __init__(self, object: _Optional[_Union[FetchedObject, _Mapping]] = ..., data: _Optional[bytes] = ..., version: _Optional[str] = ...) -> None: ...

class SettleFetchesRequest(_message.Message):
    __slots__ = ("bucket", "bucket_uuid", "name")
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    BUCKET_UUID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    bucket: str
    bucket_uuid: bytes
    name: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, bucket: _Optional[str] = ..., bucket_uuid: _Optional[bytes] = ..., name: _Optional[_Iterable[str]] = ...) -> None: ...

class SettleFetchesResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListRemoteRequest(_message.Message):
    __slots__ = ("bucket", "prefix", "start_after")
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    START_AFTER_FIELD_NUMBER: _ClassVar[int]
    bucket: str
    prefix: str
    start_after: str
    def __init__(self, bucket: _Optional[str] = ..., prefix: _Optional[str] = ..., start_after: _Optional[str] = ...) -> None: ...

class ListRemoteResponse(_message.Message):
    __slots__ = ("object", "more", "next", "skipped", "skipped_name")
    OBJECT_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_NAME_FIELD_NUMBER: _ClassVar[int]
    object: _containers.RepeatedCompositeFieldContainer[_ais_objects_pb2.ObjectInfo]
    more: bool
    next: str
    skipped: int
    skipped_name: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, object: _Optional[_Iterable[_Union[_ais_objects_pb2.ObjectInfo, _Mapping]]] = ..., more: bool = ..., next: _Optional[str] = ..., skipped: _Optional[int] = ..., skipped_name: _Optional[_Iterable[str]] = ...) -> None: ...

class WarmRequest(_message.Message):
    __slots__ = ("bucket", "name")
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    bucket: str
    name: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, bucket: _Optional[str] = ..., name: _Optional[_Iterable[str]] = ...) -> None: ...

class WarmResponse(_message.Message):
    __slots__ = ("result",)
    RESULT_FIELD_NUMBER: _ClassVar[int]
    result: _containers.RepeatedCompositeFieldContainer[_ais_objects_pb2.PutResult]
    def __init__(self, result: _Optional[_Iterable[_Union[_ais_objects_pb2.PutResult, _Mapping]]] = ...) -> None: ...

class EvictRequest(_message.Message):
    __slots__ = ("bucket", "prefix", "name", "pattern")
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PATTERN_FIELD_NUMBER: _ClassVar[int]
    bucket: str
    prefix: str
    name: _containers.RepeatedScalarFieldContainer[str]
    pattern: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, bucket: _Optional[str] = ..., prefix: _Optional[str] = ..., name: _Optional[_Iterable[str]] = ..., pattern: _Optional[_Iterable[str]] = ...) -> None: ...

class EvictResponse(_message.Message):
    __slots__ = ("objects", "bytes")
    OBJECTS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    objects: int
    bytes: int
    def __init__(self, objects: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class ExpectRequest(_message.Message):
    __slots__ = ("loader", "position", "first_step", "step", "bucket", "lifetime_ms", "done")
    LOADER_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    FIRST_STEP_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    LIFETIME_MS_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    loader: bytes
    position: int
    first_step: int
    step: _containers.RepeatedCompositeFieldContainer[ExpectedStep]
    bucket: _containers.RepeatedScalarFieldContainer[str]
    lifetime_ms: int
    done: bool
    def __init__(self, loader: _Optional[bytes] = ..., position: _Optional[int] = ..., first_step: _Optional[int] = ..., step: _Optional[_Iterable[_Union[ExpectedStep, _Mapping]]] = ..., bucket: _Optional[_Iterable[str]] = ..., lifetime_ms: _Optional[int] = ..., done: bool = ...) -> None: ...

class ExpectedStep(_message.Message):
    __slots__ = ("name", "bucket_index")
    NAME_FIELD_NUMBER: _ClassVar[int]
    BUCKET_INDEX_FIELD_NUMBER: _ClassVar[int]
    name: _containers.RepeatedScalarFieldContainer[str]
    bucket_index: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, name: _Optional[_Iterable[str]] = ..., bucket_index: _Optional[_Iterable[int]] = ...) -> None: ...

class ExpectResponse(_message.Message):
    __slots__ = ("incomplete",)
    INCOMPLETE_FIELD_NUMBER: _ClassVar[int]
    incomplete: bool
    def __init__(self, incomplete: bool = ...) -> None: ...

class RemoteUsageRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RemoteUsageResponse(_message.Message):
    __slots__ = ("row", "expected_keys")
    ROW_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_KEYS_FIELD_NUMBER: _ClassVar[int]
    row: _containers.RepeatedCompositeFieldContainer[RemoteUsageRow]
    expected_keys: int
    def __init__(self, row: _Optional[_Iterable[_Union[RemoteUsageRow, _Mapping]]] = ..., expected_keys: _Optional[int] = ...) -> None: ...

class RemoteUsageRow(_message.Message):
    __slots__ = ("bucket", "tenant", "requests", "bytes_in", "bytes_out", "throttled", "retried", "hedged", "errors", "wait_s")
    class RequestsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    BYTES_IN_FIELD_NUMBER: _ClassVar[int]
    BYTES_OUT_FIELD_NUMBER: _ClassVar[int]
    THROTTLED_FIELD_NUMBER: _ClassVar[int]
    RETRIED_FIELD_NUMBER: _ClassVar[int]
    HEDGED_FIELD_NUMBER: _ClassVar[int]
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    bucket: str
    tenant: str
    requests: _containers.ScalarMap[str, int]
    bytes_in: int
    bytes_out: int
    throttled: int
    retried: int
    hedged: int
    errors: int
    wait_s: float
    def __init__(self, bucket: _Optional[str] = ..., tenant: _Optional[str] = ..., requests: _Optional[_Mapping[str, int]] = ..., bytes_in: _Optional[int] = ..., bytes_out: _Optional[int] = ..., throttled: _Optional[int] = ..., retried: _Optional[int] = ..., hedged: _Optional[int] = ..., errors: _Optional[int] = ..., wait_s: _Optional[float] = ...) -> None: ...

class PendingUploadsRequest(_message.Message):
    __slots__ = ("bucket", "prefix", "wait_ms")
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    bucket: str
    prefix: str
    wait_ms: int
    def __init__(self, bucket: _Optional[str] = ..., prefix: _Optional[str] = ..., wait_ms: _Optional[int] = ...) -> None: ...

class PendingUploadsResponse(_message.Message):
    __slots__ = ("bucket",)
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    bucket: _containers.RepeatedCompositeFieldContainer[PendingBucket]
    def __init__(self, bucket: _Optional[_Iterable[_Union[PendingBucket, _Mapping]]] = ...) -> None: ...

class PendingBucket(_message.Message):
    __slots__ = ("bucket", "count", "bytes", "oldest_s", "conflicts", "failure")
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    OLDEST_S_FIELD_NUMBER: _ClassVar[int]
    CONFLICTS_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    bucket: str
    count: int
    bytes: int
    oldest_s: float
    conflicts: int
    failure: _containers.RepeatedCompositeFieldContainer[PendingFailure]
    def __init__(self, bucket: _Optional[str] = ..., count: _Optional[int] = ..., bytes: _Optional[int] = ..., oldest_s: _Optional[float] = ..., conflicts: _Optional[int] = ..., failure: _Optional[_Iterable[_Union[PendingFailure, _Mapping]]] = ...) -> None: ...

class PendingFailure(_message.Message):
    __slots__ = ("name", "error")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    name: str
    error: _ais_objects_pb2.Error
    def __init__(self, name: _Optional[str] = ..., error: _Optional[_Union[_ais_objects_pb2.Error, _Mapping]] = ...) -> None: ...

class UploadStatesRequest(_message.Message):
    __slots__ = ("bucket", "bucket_uuid", "name", "version")
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    BUCKET_UUID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    bucket: str
    bucket_uuid: bytes
    name: _containers.RepeatedScalarFieldContainer[str]
    version: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, bucket: _Optional[str] = ..., bucket_uuid: _Optional[bytes] = ..., name: _Optional[_Iterable[str]] = ..., version: _Optional[_Iterable[str]] = ...) -> None: ...

class UploadStatesResponse(_message.Message):
    __slots__ = ("state", "pending_bytes")
    STATE_FIELD_NUMBER: _ClassVar[int]
    PENDING_BYTES_FIELD_NUMBER: _ClassVar[int]
    state: _containers.RepeatedCompositeFieldContainer[UploadState]
    pending_bytes: int
    def __init__(self, state: _Optional[_Iterable[_Union[UploadState, _Mapping]]] = ..., pending_bytes: _Optional[int] = ...) -> None: ...

class UploadState(_message.Message):
    __slots__ = ("kind", "metadata")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        UNKNOWN: _ClassVar[UploadState.Kind]
        PENDING: _ClassVar[UploadState.Kind]
        DONE: _ClassVar[UploadState.Kind]
        CONFLICT: _ClassVar[UploadState.Kind]
    UNKNOWN: UploadState.Kind
    PENDING: UploadState.Kind
    DONE: UploadState.Kind
    CONFLICT: UploadState.Kind
    KIND_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    kind: UploadState.Kind
    metadata: bytes
    def __init__(self, kind: _Optional[_Union[UploadState.Kind, str]] = ..., metadata: _Optional[bytes] = ...) -> None: ...

class PendingDeletionsRequest(_message.Message):
    __slots__ = ("bucket_uuid", "prefix", "start_after", "until")
    BUCKET_UUID_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    START_AFTER_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    bucket_uuid: bytes
    prefix: str
    start_after: str
    until: str
    def __init__(self, bucket_uuid: _Optional[bytes] = ..., prefix: _Optional[str] = ..., start_after: _Optional[str] = ..., until: _Optional[str] = ...) -> None: ...

class PendingDeletionsResponse(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[_Iterable[str]] = ...) -> None: ...

class FetchedObject(_message.Message):
    __slots__ = ("size_bytes", "etag")
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    ETAG_FIELD_NUMBER: _ClassVar[int]
    size_bytes: int
    etag: str
    def __init__(self, size_bytes: _Optional[int] = ..., etag: _Optional[str] = ...) -> None: ...

class RefreshInventoryRequest(_message.Message):
    __slots__ = ("bucket", "prefix", "id")
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    bucket: str
    prefix: str
    id: str
    def __init__(self, bucket: _Optional[str] = ..., prefix: _Optional[str] = ..., id: _Optional[str] = ...) -> None: ...

class RefreshInventoryResponse(_message.Message):
    __slots__ = ("listed", "description")
    LISTED_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    listed: int
    description: str
    def __init__(self, listed: _Optional[int] = ..., description: _Optional[str] = ...) -> None: ...
