from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Bucket(_message.Message):
    __slots__ = ("name", "uuid", "copies", "min_copies", "settling", "remote", "quota_bytes", "quota_objects", "redundancy")
    NAME_FIELD_NUMBER: _ClassVar[int]
    UUID_FIELD_NUMBER: _ClassVar[int]
    COPIES_FIELD_NUMBER: _ClassVar[int]
    MIN_COPIES_FIELD_NUMBER: _ClassVar[int]
    SETTLING_FIELD_NUMBER: _ClassVar[int]
    REMOTE_FIELD_NUMBER: _ClassVar[int]
    QUOTA_BYTES_FIELD_NUMBER: _ClassVar[int]
    QUOTA_OBJECTS_FIELD_NUMBER: _ClassVar[int]
    REDUNDANCY_FIELD_NUMBER: _ClassVar[int]
    name: str
    uuid: bytes
    copies: int
    min_copies: int
    settling: bool
    remote: Remote
    quota_bytes: int
    quota_objects: int
    redundancy: str
    def __init__(self, name: _Optional[str] = ..., uuid: _Optional[bytes] = ..., copies: _Optional[int] = ..., min_copies: _Optional[int] = ..., settling: bool = ..., remote: _Optional[_Union[Remote, _Mapping]] = ..., quota_bytes: _Optional[int] = ..., quota_objects: _Optional[int] = ..., redundancy: _Optional[str] = ...) -> None: ...

class Remote(_message.Message):
    __slots__ = ("url", "endpoint", "region", "profile", "validate_after_s", "cache_bytes", "write_back", "max_requests_per_s", "max_bytes_per_day", "inventory", "verify_md5")
    URL_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    REGION_FIELD_NUMBER: _ClassVar[int]
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_AFTER_S_FIELD_NUMBER: _ClassVar[int]
    CACHE_BYTES_FIELD_NUMBER: _ClassVar[int]
    WRITE_BACK_FIELD_NUMBER: _ClassVar[int]
    MAX_REQUESTS_PER_S_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_PER_DAY_FIELD_NUMBER: _ClassVar[int]
    INVENTORY_FIELD_NUMBER: _ClassVar[int]
    VERIFY_MD5_FIELD_NUMBER: _ClassVar[int]
    url: str
    endpoint: str
    region: str
    profile: str
    validate_after_s: float
    cache_bytes: int
    write_back: bool
    max_requests_per_s: float
    max_bytes_per_day: int
    inventory: str
    verify_md5: bool
    def __init__(self, url: _Optional[str] = ..., endpoint: _Optional[str] = ..., region: _Optional[str] = ..., profile: _Optional[str] = ..., validate_after_s: _Optional[float] = ..., cache_bytes: _Optional[int] = ..., write_back: bool = ..., max_requests_per_s: _Optional[float] = ..., max_bytes_per_day: _Optional[int] = ..., inventory: _Optional[str] = ..., verify_md5: bool = ...) -> None: ...

class CreateBucketRequest(_message.Message):
    __slots__ = ("name", "copies", "exist_ok", "min_copies", "remote", "quota_bytes", "quota_objects", "redundancy")
    NAME_FIELD_NUMBER: _ClassVar[int]
    COPIES_FIELD_NUMBER: _ClassVar[int]
    EXIST_OK_FIELD_NUMBER: _ClassVar[int]
    MIN_COPIES_FIELD_NUMBER: _ClassVar[int]
    REMOTE_FIELD_NUMBER: _ClassVar[int]
    QUOTA_BYTES_FIELD_NUMBER: _ClassVar[int]
    QUOTA_OBJECTS_FIELD_NUMBER: _ClassVar[int]
    REDUNDANCY_FIELD_NUMBER: _ClassVar[int]
    name: str
    copies: int
    exist_ok: bool
    min_copies: int
    remote: Remote
    quota_bytes: int
    quota_objects: int
    redundancy: str
    def __init__(self, name: _Optional[str] = ..., copies: _Optional[int] = ..., exist_ok: bool = ..., min_copies: _Optional[int] = ..., remote: _Optional[_Union[Remote, _Mapping]] = ..., quota_bytes: _Optional[int] = ..., quota_objects: _Optional[int] = ..., redundancy: _Optional[str] = ...) -> None: ...

class SetBucketRequest(_message.Message):
    __slots__ = ("name", "copies", "min_copies", "remote", "quota_bytes", "quota_objects", "redundancy")
    NAME_FIELD_NUMBER: _ClassVar[int]
    COPIES_FIELD_NUMBER: _ClassVar[int]
    MIN_COPIES_FIELD_NUMBER: _ClassVar[int]
    REMOTE_FIELD_NUMBER: _ClassVar[int]
    QUOTA_BYTES_FIELD_NUMBER: _ClassVar[int]
    QUOTA_OBJECTS_FIELD_NUMBER: _ClassVar[int]
    REDUNDANCY_FIELD_NUMBER: _ClassVar[int]
    name: str
    copies: int
    min_copies: int
    remote: Remote
    quota_bytes: int
    quota_objects: int
    redundancy: str
    def __init__(self, name: _Optional[str] = ..., copies: _Optional[int] = ..., min_copies: _Optional[int] = ..., remote: _Optional[_Union[Remote, _Mapping]] = ..., quota_bytes: _Optional[int] = ..., quota_objects: _Optional[int] = ..., redundancy: _Optional[str] = ...) -> None: ...

class GetBucketRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class ListBucketsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListBucketsResponse(_message.Message):
    __slots__ = ("bucket",)
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    bucket: _containers.RepeatedCompositeFieldContainer[Bucket]
    def __init__(self, bucket: _Optional[_Iterable[_Union[Bucket, _Mapping]]] = ...) -> None: ...

class DeleteBucketRequest(_message.Message):
    __slots__ = ("name", "force")
    NAME_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    name: str
    force: bool
    def __init__(self, name: _Optional[str] = ..., force: bool = ...) -> None: ...

class DeleteBucketResponse(_message.Message):
    __slots__ = ("deleted_objects",)
    DELETED_OBJECTS_FIELD_NUMBER: _ClassVar[int]
    deleted_objects: int
    def __init__(self, deleted_objects: _Optional[int] = ...) -> None: ...

class ObjectInfo(_message.Message):
    __slots__ = ("bucket", "name", "size_bytes", "version", "checksum", "modified_ns", "metadata")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    MODIFIED_NS_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    bucket: str
    name: str
    size_bytes: int
    version: str
    checksum: int
    modified_ns: int
    metadata: _containers.ScalarMap[str, str]
    def __init__(self, bucket: _Optional[str] = ..., name: _Optional[str] = ..., size_bytes: _Optional[int] = ..., version: _Optional[str] = ..., checksum: _Optional[int] = ..., modified_ns: _Optional[int] = ..., metadata: _Optional[_Mapping[str, str]] = ...) -> None: ...

class PutRequest(_message.Message):
    __slots__ = ("header", "data", "end")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    header: PutHeader
    data: bytes
    end: PutEnd
    def __init__(self, header: _Optional[_Union[PutHeader, _Mapping]] = ..., data: _Optional[bytes] = ..., end: _Optional[_Union[PutEnd, _Mapping]] = ...) -> None: ...

class PutHeader(_message.Message):
    __slots__ = ("bucket", "name", "metadata", "size_bytes", "checksum", "condition")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    CONDITION_FIELD_NUMBER: _ClassVar[int]
    bucket: str
    name: str
    metadata: _containers.ScalarMap[str, str]
    size_bytes: int
    checksum: int
    condition: PutCondition
    def __init__(self, bucket: _Optional[str] = ..., name: _Optional[str] = ..., metadata: _Optional[_Mapping[str, str]] = ..., size_bytes: _Optional[int] = ..., checksum: _Optional[int] = ..., condition: _Optional[_Union[PutCondition, _Mapping]] = ...) -> None: ...

class PutCondition(_message.Message):
    __slots__ = ("if_absent", "if_version", "write_id", "repeat_ms")
    IF_ABSENT_FIELD_NUMBER: _ClassVar[int]
    IF_VERSION_FIELD_NUMBER: _ClassVar[int]
    WRITE_ID_FIELD_NUMBER: _ClassVar[int]
    REPEAT_MS_FIELD_NUMBER: _ClassVar[int]
    if_absent: bool
    if_version: str
    write_id: bytes
    repeat_ms: int
    def __init__(self, if_absent: bool = ..., if_version: _Optional[str] = ..., write_id: _Optional[bytes] = ..., repeat_ms: _Optional[int] = ...) -> None: ...

class PutEnd(_message.Message):
    __slots__ = ("size_bytes", "checksum")
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    size_bytes: int
    checksum: int
    def __init__(self, size_bytes: _Optional[int] = ..., checksum: _Optional[int] = ...) -> None: ...

class PutManyRequest(_message.Message):
    __slots__ = ("object",)
    OBJECT_FIELD_NUMBER: _ClassVar[int]
    object: _containers.RepeatedCompositeFieldContainer[SmallObject]
    def __init__(self, object: _Optional[_Iterable[_Union[SmallObject, _Mapping]]] = ...) -> None: ...

class SmallObject(_message.Message):
    __slots__ = ("bucket", "name", "checksum", "metadata", "condition", "data")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    CONDITION_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    bucket: str
    name: str
    checksum: int
    metadata: _containers.ScalarMap[str, str]
    condition: PutCondition
    data: bytes
    def __init__(self, bucket: _Optional[str] = ..., name: _Optional[str] = ..., checksum: _Optional[int] = ..., metadata: _Optional[_Mapping[str, str]] = ..., condition: _Optional[_Union[PutCondition, _Mapping]] = ..., data: _Optional[bytes] = ...) -> None: ...

class PutManyResponse(_message.Message):
    __slots__ = ("result",)
    RESULT_FIELD_NUMBER: _ClassVar[int]
    result: _containers.RepeatedCompositeFieldContainer[PutResult]
    def __init__(self, result: _Optional[_Iterable[_Union[PutResult, _Mapping]]] = ...) -> None: ...

class PutResult(_message.Message):
    __slots__ = ("info", "error")
    INFO_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    info: ObjectInfo
    error: Error
    def __init__(self, info: _Optional[_Union[ObjectInfo, _Mapping]] = ..., error: _Optional[_Union[Error, _Mapping]] = ...) -> None: ...

class Error(_message.Message):
    __slots__ = ("kind", "message")
    KIND_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    kind: str
    message: str
    def __init__(self, kind: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class GetRequest(_message.Message):
    __slots__ = ("bucket", "name", "member", "start", "length", "version", "verify_range")
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    VERIFY_RANGE_FIELD_NUMBER: _ClassVar[int]
    bucket: str
    name: str
    member: str
    start: int
    length: int
    version: str
    verify_range: bool
    def __init__(self, bucket: _Optional[str] = ..., name: _Optional[str] = ..., member: _Optional[str] = ..., start: _Optional[int] = ..., length: _Optional[int] = ..., version: _Optional[str] = ..., verify_range: bool = ...) -> None: ...

class GetResponse(_message.Message):
    __slots__ = ("header", "data")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    header: GetHeader
    data: bytes
    def __init__(self, header: _Optional[_Union[GetHeader, _Mapping]] = ..., data: _Optional[bytes] = ...) -> None: ...

class GetHeader(_message.Message):
    __slots__ = ("info", "length")
    INFO_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    info: ObjectInfo
    length: int
    def __init__(self, info: _Optional[_Union[ObjectInfo, _Mapping]] = ..., length: _Optional[int] = ...) -> None: ...

class HeadRequest(_message.Message):
    __slots__ = ("bucket", "name")
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    bucket: str
    name: str
    def __init__(self, bucket: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class DeleteRequest(_message.Message):
    __slots__ = ("bucket", "name", "if_version", "write_id", "repeat_ms")
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    IF_VERSION_FIELD_NUMBER: _ClassVar[int]
    WRITE_ID_FIELD_NUMBER: _ClassVar[int]
    REPEAT_MS_FIELD_NUMBER: _ClassVar[int]
    bucket: str
    name: str
    if_version: str
    write_id: bytes
    repeat_ms: int
    def __init__(self, bucket: _Optional[str] = ..., name: _Optional[str] = ..., if_version: _Optional[str] = ..., write_id: _Optional[bytes] = ..., repeat_ms: _Optional[int] = ...) -> None: ...

class DeleteResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListRequest(_message.Message):
    __slots__ = ("bucket", "prefix", "start_after", "page_size", "skip_missing_drives", "names_only", "one_level")
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    START_AFTER_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    SKIP_MISSING_DRIVES_FIELD_NUMBER: _ClassVar[int]
    NAMES_ONLY_FIELD_NUMBER: _ClassVar[int]
    ONE_LEVEL_FIELD_NUMBER: _ClassVar[int]
    bucket: str
    prefix: str
    start_after: str
    page_size: int
    skip_missing_drives: bool
    names_only: bool
    one_level: bool
    def __init__(self, bucket: _Optional[str] = ..., prefix: _Optional[str] = ..., start_after: _Optional[str] = ..., page_size: _Optional[int] = ..., skip_missing_drives: bool = ..., names_only: bool = ..., one_level: bool = ...) -> None: ...

class ListResponse(_message.Message):
    __slots__ = ("object", "more", "next", "map_version", "oldest_map_version", "in_doubt", "let_go_ms", "names", "name_lengths", "folder")
    OBJECT_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    MAP_VERSION_FIELD_NUMBER: _ClassVar[int]
    OLDEST_MAP_VERSION_FIELD_NUMBER: _ClassVar[int]
    IN_DOUBT_FIELD_NUMBER: _ClassVar[int]
    LET_GO_MS_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    NAME_LENGTHS_FIELD_NUMBER: _ClassVar[int]
    FOLDER_FIELD_NUMBER: _ClassVar[int]
    object: _containers.RepeatedCompositeFieldContainer[ObjectInfo]
    more: bool
    next: str
    map_version: int
    oldest_map_version: int
    in_doubt: _containers.RepeatedScalarFieldContainer[str]
    let_go_ms: int
    names: bytes
    name_lengths: bytes
    folder: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, object: _Optional[_Iterable[_Union[ObjectInfo, _Mapping]]] = ..., more: bool = ..., next: _Optional[str] = ..., map_version: _Optional[int] = ..., oldest_map_version: _Optional[int] = ..., in_doubt: _Optional[_Iterable[str]] = ..., let_go_ms: _Optional[int] = ..., names: _Optional[bytes] = ..., name_lengths: _Optional[bytes] = ..., folder: _Optional[_Iterable[str]] = ...) -> None: ...

class ListMembersRequest(_message.Message):
    __slots__ = ("bucket", "name", "prefix", "first", "page_size", "version")
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    bucket: str
    name: str
    prefix: str
    first: int
    page_size: int
    version: str
    def __init__(self, bucket: _Optional[str] = ..., name: _Optional[str] = ..., prefix: _Optional[str] = ..., first: _Optional[int] = ..., page_size: _Optional[int] = ..., version: _Optional[str] = ...) -> None: ...

class ListMembersResponse(_message.Message):
    __slots__ = ("name", "size", "checksum", "version", "next", "hidden")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_FIELD_NUMBER: _ClassVar[int]
    name: _containers.RepeatedScalarFieldContainer[str]
    size: _containers.RepeatedScalarFieldContainer[int]
    checksum: _containers.RepeatedScalarFieldContainer[int]
    version: str
    next: int
    hidden: int
    def __init__(self, name: _Optional[_Iterable[str]] = ..., size: _Optional[_Iterable[int]] = ..., checksum: _Optional[_Iterable[int]] = ..., version: _Optional[str] = ..., next: _Optional[int] = ..., hidden: _Optional[int] = ...) -> None: ...

class DescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeResponse(_message.Message):
    __slots__ = ("version", "store_uuid", "drive", "pid", "open_sessions", "active_batches", "reserved_bytes", "limits", "batches", "entries", "entry_bytes", "etl_command", "etl_sandbox", "pending_uploads", "pending_upload_bytes", "oldest_pending_upload_s", "upload_conflicts")
    class LimitsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class EtlCommandEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STORE_UUID_FIELD_NUMBER: _ClassVar[int]
    DRIVE_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    OPEN_SESSIONS_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_BATCHES_FIELD_NUMBER: _ClassVar[int]
    RESERVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    ENTRY_BYTES_FIELD_NUMBER: _ClassVar[int]
    ETL_COMMAND_FIELD_NUMBER: _ClassVar[int]
    ETL_SANDBOX_FIELD_NUMBER: _ClassVar[int]
    PENDING_UPLOADS_FIELD_NUMBER: _ClassVar[int]
    PENDING_UPLOAD_BYTES_FIELD_NUMBER: _ClassVar[int]
    OLDEST_PENDING_UPLOAD_S_FIELD_NUMBER: _ClassVar[int]
    UPLOAD_CONFLICTS_FIELD_NUMBER: _ClassVar[int]
    version: str
    store_uuid: str
    drive: _containers.RepeatedCompositeFieldContainer[Drive]
    pid: int
    open_sessions: int
    active_batches: int
    reserved_bytes: int
    limits: _containers.ScalarMap[str, str]
    batches: int
    entries: int
    entry_bytes: int
    etl_command: _containers.ScalarMap[str, str]
    etl_sandbox: str
    pending_uploads: int
    pending_upload_bytes: int
    oldest_pending_upload_s: float
    upload_conflicts: int
    def __init__(self, version: _Optional[str] = ..., store_uuid: _Optional[str] = ..., drive: _Optional[_Iterable[_Union[Drive, _Mapping]]] = ..., pid: _Optional[int] = ..., open_sessions: _Optional[int] = ..., active_batches: _Optional[int] = ..., reserved_bytes: _Optional[int] = ..., limits: _Optional[_Mapping[str, str]] = ..., batches: _Optional[int] = ..., entries: _Optional[int] = ..., entry_bytes: _Optional[int] = ..., etl_command: _Optional[_Mapping[str, str]] = ..., etl_sandbox: _Optional[str] = ..., pending_uploads: _Optional[int] = ..., pending_upload_bytes: _Optional[int] = ..., oldest_pending_upload_s: _Optional[float] = ..., upload_conflicts: _Optional[int] = ...) -> None: ...

class Drive(_message.Message):
    __slots__ = ("uuid", "path", "state", "objects_estimate", "free_bytes", "size_bytes")
    UUID_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    OBJECTS_ESTIMATE_FIELD_NUMBER: _ClassVar[int]
    FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    uuid: str
    path: str
    state: str
    objects_estimate: int
    free_bytes: int
    size_bytes: int
    def __init__(self, uuid: _Optional[str] = ..., path: _Optional[str] = ..., state: _Optional[str] = ..., objects_estimate: _Optional[int] = ..., free_bytes: _Optional[int] = ..., size_bytes: _Optional[int] = ...) -> None: ...
