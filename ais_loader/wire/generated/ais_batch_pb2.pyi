from ais_loader.wire.generated import ais_objects_pb2 as _ais_objects_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Status(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OK: _ClassVar[Status]
    NOT_FOUND: _ClassVar[Status]
    MEMBER_NOT_FOUND: _ClassVar[Status]
    RANGE: _ClassVar[Status]
    CORRUPT: _ClassVar[Status]
    TIMEOUT: _ClassVar[Status]
    UNAVAILABLE: _ClassVar[Status]
    FAILED: _ClassVar[Status]
    DENIED: _ClassVar[Status]
    OBJECT_DENIED: _ClassVar[Status]

class ChecksumKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NONE: _ClassVar[ChecksumKind]
    STORED: _ClassVar[ChecksumKind]
    COMPUTED: _ClassVar[ChecksumKind]
    TRANSFORMED: _ClassVar[ChecksumKind]
    UNCHECKED: _ClassVar[ChecksumKind]
    CODED: _ClassVar[ChecksumKind]
OK: Status
NOT_FOUND: Status
MEMBER_NOT_FOUND: Status
RANGE: Status
CORRUPT: Status
TIMEOUT: Status
UNAVAILABLE: Status
FAILED: Status
DENIED: Status
OBJECT_DENIED: Status
NONE: ChecksumKind
STORED: ChecksumKind
COMPUTED: ChecksumKind
TRANSFORMED: ChecksumKind
UNCHECKED: ChecksumKind
CODED: ChecksumKind

class OpenLaneRequest(_message.Message):
    __slots__ = ("port", "user")
    PORT_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    port: int
    user: int
    def __init__(self, port: _Optional[int] = ..., user: _Optional[int] = ...) -> None: ...

class OpenLaneResponse(_message.Message):
    __slots__ = ("token", "lifetime_ms", "unix_name", "tcp_port", "method")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    LIFETIME_MS_FIELD_NUMBER: _ClassVar[int]
    UNIX_NAME_FIELD_NUMBER: _ClassVar[int]
    TCP_PORT_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    token: bytes
    lifetime_ms: int
    unix_name: str
    tcp_port: int
    method: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, token: _Optional[bytes] = ..., lifetime_ms: _Optional[int] = ..., unix_name: _Optional[str] = ..., tcp_port: _Optional[int] = ..., method: _Optional[_Iterable[str]] = ...) -> None: ...

class SessionRequest(_message.Message):
    __slots__ = ("batch_id", "request", "credit", "cancel")
    BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    CREDIT_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    batch_id: int
    request: BatchRequest
    credit: Credit
    cancel: Cancel
    def __init__(self, batch_id: _Optional[int] = ..., request: _Optional[_Union[BatchRequest, _Mapping]] = ..., credit: _Optional[_Union[Credit, _Mapping]] = ..., cancel: _Optional[_Union[Cancel, _Mapping]] = ...) -> None: ...

class SessionResponse(_message.Message):
    __slots__ = ("batch_id", "reject", "end", "frame")
    BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    REJECT_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    FRAME_FIELD_NUMBER: _ClassVar[int]
    batch_id: int
    reject: Reject
    end: End
    frame: Frame
    def __init__(self, batch_id: _Optional[int] = ..., reject: _Optional[_Union[Reject, _Mapping]] = ..., end: _Optional[_Union[End, _Mapping]] = ..., frame: _Optional[_Union[Frame, _Mapping]] = ...) -> None: ...

class Credit(_message.Message):
    __slots__ = ("payload_bytes",)
    PAYLOAD_BYTES_FIELD_NUMBER: _ClassVar[int]
    payload_bytes: int
    def __init__(self, payload_bytes: _Optional[int] = ...) -> None: ...

class Cancel(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class BatchRequest(_message.Message):
    __slots__ = ("bucket", "bucket_index", "name", "member", "start", "length", "version", "first_index", "initial_credit_bytes", "fail_fast", "ordered", "buffered", "deadline_ms", "verify_ranges", "receiver_checks", "resume_offset", "resume_checksum", "resume_version", "map_version", "tenant", "request_id", "metadata", "local", "transform", "transform_index", "whole_up_to", "coded_places")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    BUCKET_INDEX_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    FIRST_INDEX_FIELD_NUMBER: _ClassVar[int]
    INITIAL_CREDIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    FAIL_FAST_FIELD_NUMBER: _ClassVar[int]
    ORDERED_FIELD_NUMBER: _ClassVar[int]
    BUFFERED_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    VERIFY_RANGES_FIELD_NUMBER: _ClassVar[int]
    RECEIVER_CHECKS_FIELD_NUMBER: _ClassVar[int]
    RESUME_OFFSET_FIELD_NUMBER: _ClassVar[int]
    RESUME_CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    RESUME_VERSION_FIELD_NUMBER: _ClassVar[int]
    MAP_VERSION_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    LOCAL_FIELD_NUMBER: _ClassVar[int]
    TRANSFORM_FIELD_NUMBER: _ClassVar[int]
    TRANSFORM_INDEX_FIELD_NUMBER: _ClassVar[int]
    WHOLE_UP_TO_FIELD_NUMBER: _ClassVar[int]
    CODED_PLACES_FIELD_NUMBER: _ClassVar[int]
    bucket: _containers.RepeatedScalarFieldContainer[str]
    bucket_index: _containers.RepeatedScalarFieldContainer[int]
    name: _containers.RepeatedScalarFieldContainer[str]
    member: _containers.RepeatedScalarFieldContainer[str]
    start: _containers.RepeatedScalarFieldContainer[int]
    length: _containers.RepeatedScalarFieldContainer[int]
    version: _containers.RepeatedScalarFieldContainer[str]
    first_index: int
    initial_credit_bytes: int
    fail_fast: bool
    ordered: bool
    buffered: bool
    deadline_ms: int
    verify_ranges: bool
    receiver_checks: bool
    resume_offset: int
    resume_checksum: int
    resume_version: str
    map_version: int
    tenant: str
    request_id: str
    metadata: _containers.ScalarMap[str, str]
    local: bool
    transform: _containers.RepeatedCompositeFieldContainer[TransformCall]
    transform_index: _containers.RepeatedScalarFieldContainer[int]
    whole_up_to: int
    coded_places: bool
    def __init__(self, bucket: _Optional[_Iterable[str]] = ..., bucket_index: _Optional[_Iterable[int]] = ..., name: _Optional[_Iterable[str]] = ..., member: _Optional[_Iterable[str]] = ..., start: _Optional[_Iterable[int]] = ..., length: _Optional[_Iterable[int]] = ..., version: _Optional[_Iterable[str]] = ..., first_index: _Optional[int] = ..., initial_credit_bytes: _Optional[int] = ..., fail_fast: bool = ..., ordered: bool = ..., buffered: bool = ..., deadline_ms: _Optional[int] = ..., verify_ranges: bool = ..., receiver_checks: bool = ..., resume_offset: _Optional[int] = ..., resume_checksum: _Optional[int] = ..., resume_version: _Optional[str] = ..., map_version: _Optional[int] = ..., tenant: _Optional[str] = ..., request_id: _Optional[str] = ..., metadata: _Optional[_Mapping[str, str]] = ..., local: bool = ..., transform: _Optional[_Iterable[_Union[TransformCall, _Mapping]]] = ..., transform_index: _Optional[_Iterable[int]] = ..., whole_up_to: _Optional[int] = ..., coded_places: bool = ...) -> None: ...

class TransformCall(_message.Message):
    __slots__ = ("stage",)
    STAGE_FIELD_NUMBER: _ClassVar[int]
    stage: _containers.RepeatedCompositeFieldContainer[TransformStage]
    def __init__(self, stage: _Optional[_Iterable[_Union[TransformStage, _Mapping]]] = ...) -> None: ...

class TransformStage(_message.Message):
    __slots__ = ("name", "args")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ARGS_FIELD_NUMBER: _ClassVar[int]
    name: str
    args: str
    def __init__(self, name: _Optional[str] = ..., args: _Optional[str] = ...) -> None: ...

class Frame(_message.Message):
    __slots__ = ("index", "size", "checksum", "status", "checksum_kind", "piece", "error", "payload")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_KIND_FIELD_NUMBER: _ClassVar[int]
    PIECE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    index: _containers.RepeatedScalarFieldContainer[int]
    size: _containers.RepeatedScalarFieldContainer[int]
    checksum: _containers.RepeatedScalarFieldContainer[int]
    status: bytes
    checksum_kind: bytes
    piece: Piece
    error: _containers.RepeatedCompositeFieldContainer[EntryError]
    payload: bytes
    def __init__(self, index: _Optional[_Iterable[int]] = ..., size: _Optional[_Iterable[int]] = ..., checksum: _Optional[_Iterable[int]] = ..., status: _Optional[bytes] = ..., checksum_kind: _Optional[bytes] = ..., piece: _Optional[_Union[Piece, _Mapping]] = ..., error: _Optional[_Iterable[_Union[EntryError, _Mapping]]] = ..., payload: _Optional[bytes] = ...) -> None: ...

class Piece(_message.Message):
    __slots__ = ("offset", "entry_size", "version")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    ENTRY_SIZE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    offset: int
    entry_size: int
    version: str
    def __init__(self, offset: _Optional[int] = ..., entry_size: _Optional[int] = ..., version: _Optional[str] = ...) -> None: ...

class EntryError(_message.Message):
    __slots__ = ("index", "message", "kind")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    index: int
    message: str
    kind: str
    def __init__(self, index: _Optional[int] = ..., message: _Optional[str] = ..., kind: _Optional[str] = ...) -> None: ...

class End(_message.Message):
    __slots__ = ("outcome", "error_kind", "message", "first_index", "entries", "failed_entries", "payload_bytes", "digest", "wait_us", "object", "waits")
    class Outcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        COMPLETE: _ClassVar[End.Outcome]
        STOPPED: _ClassVar[End.Outcome]
        REFUSED: _ClassVar[End.Outcome]
    COMPLETE: End.Outcome
    STOPPED: End.Outcome
    REFUSED: End.Outcome
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    ERROR_KIND_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    FIRST_INDEX_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    FAILED_ENTRIES_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_BYTES_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    WAIT_US_FIELD_NUMBER: _ClassVar[int]
    OBJECT_FIELD_NUMBER: _ClassVar[int]
    WAITS_FIELD_NUMBER: _ClassVar[int]
    outcome: End.Outcome
    error_kind: str
    message: str
    first_index: int
    entries: int
    failed_entries: int
    payload_bytes: int
    digest: int
    wait_us: int
    object: _ais_objects_pb2.ObjectInfo
    waits: NodeWaits
    def __init__(self, outcome: _Optional[_Union[End.Outcome, str]] = ..., error_kind: _Optional[str] = ..., message: _Optional[str] = ..., first_index: _Optional[int] = ..., entries: _Optional[int] = ..., failed_entries: _Optional[int] = ..., payload_bytes: _Optional[int] = ..., digest: _Optional[int] = ..., wait_us: _Optional[int] = ..., object: _Optional[_Union[_ais_objects_pb2.ObjectInfo, _Mapping]] = ..., waits: _Optional[_Union[NodeWaits, _Mapping]] = ...) -> None: ...

class NodeWaits(_message.Message):
    __slots__ = ("queue_us", "drive_us", "peer_us", "cloud_us", "throttle_us", "node")
    QUEUE_US_FIELD_NUMBER: _ClassVar[int]
    DRIVE_US_FIELD_NUMBER: _ClassVar[int]
    PEER_US_FIELD_NUMBER: _ClassVar[int]
    CLOUD_US_FIELD_NUMBER: _ClassVar[int]
    THROTTLE_US_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    queue_us: int
    drive_us: int
    peer_us: int
    cloud_us: int
    throttle_us: int
    node: str
    def __init__(self, queue_us: _Optional[int] = ..., drive_us: _Optional[int] = ..., peer_us: _Optional[int] = ..., cloud_us: _Optional[int] = ..., throttle_us: _Optional[int] = ..., node: _Optional[str] = ...) -> None: ...

class Reject(_message.Message):
    __slots__ = ("retry_after_ms", "reason", "wait_us")
    RETRY_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    WAIT_US_FIELD_NUMBER: _ClassVar[int]
    retry_after_ms: int
    reason: str
    wait_us: int
    def __init__(self, retry_after_ms: _Optional[int] = ..., reason: _Optional[str] = ..., wait_us: _Optional[int] = ...) -> None: ...
