from ais_loader.wire.generated import ais_objects_pb2 as _ais_objects_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class LookRequest(_message.Message):
    __slots__ = ("path", "recursive")
    PATH_FIELD_NUMBER: _ClassVar[int]
    RECURSIVE_FIELD_NUMBER: _ClassVar[int]
    path: bytes
    recursive: bool
    def __init__(self, path: _Optional[bytes] = ..., recursive: bool = ...) -> None: ...

class LookResponse(_message.Message):
    __slots__ = ("error", "machine", "device", "inode", "map_version", "outside")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    MACHINE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    INODE_FIELD_NUMBER: _ClassVar[int]
    MAP_VERSION_FIELD_NUMBER: _ClassVar[int]
    OUTSIDE_FIELD_NUMBER: _ClassVar[int]
    error: _ais_objects_pb2.Error
    machine: str
    device: int
    inode: int
    map_version: int
    outside: bool
    def __init__(self, error: _Optional[_Union[_ais_objects_pb2.Error, _Mapping]] = ..., machine: _Optional[str] = ..., device: _Optional[int] = ..., inode: _Optional[int] = ..., map_version: _Optional[int] = ..., outside: bool = ...) -> None: ...

class PromoteRequest(_message.Message):
    __slots__ = ("bucket", "path", "prefix", "recursive", "move", "overwrite", "include", "exclude", "participant", "map_version")
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    RECURSIVE_FIELD_NUMBER: _ClassVar[int]
    MOVE_FIELD_NUMBER: _ClassVar[int]
    OVERWRITE_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_FIELD_NUMBER: _ClassVar[int]
    EXCLUDE_FIELD_NUMBER: _ClassVar[int]
    PARTICIPANT_FIELD_NUMBER: _ClassVar[int]
    MAP_VERSION_FIELD_NUMBER: _ClassVar[int]
    bucket: str
    path: bytes
    prefix: str
    recursive: bool
    move: bool
    overwrite: str
    include: _containers.RepeatedScalarFieldContainer[str]
    exclude: _containers.RepeatedScalarFieldContainer[str]
    participant: _containers.RepeatedScalarFieldContainer[bytes]
    map_version: int
    def __init__(self, bucket: _Optional[str] = ..., path: _Optional[bytes] = ..., prefix: _Optional[str] = ..., recursive: bool = ..., move: bool = ..., overwrite: _Optional[str] = ..., include: _Optional[_Iterable[str]] = ..., exclude: _Optional[_Iterable[str]] = ..., participant: _Optional[_Iterable[bytes]] = ..., map_version: _Optional[int] = ...) -> None: ...

class PromoteResponse(_message.Message):
    __slots__ = ("result", "files_seen", "done")
    RESULT_FIELD_NUMBER: _ClassVar[int]
    FILES_SEEN_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    result: _containers.RepeatedCompositeFieldContainer[PromoteResult]
    files_seen: int
    done: bool
    def __init__(self, result: _Optional[_Iterable[_Union[PromoteResult, _Mapping]]] = ..., files_seen: _Optional[int] = ..., done: bool = ...) -> None: ...

class PromoteResult(_message.Message):
    __slots__ = ("path", "name", "info", "skipped", "error")
    PATH_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    INFO_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    path: str
    name: str
    info: _ais_objects_pb2.ObjectInfo
    skipped: bool
    error: _ais_objects_pb2.Error
    def __init__(self, path: _Optional[str] = ..., name: _Optional[str] = ..., info: _Optional[_Union[_ais_objects_pb2.ObjectInfo, _Mapping]] = ..., skipped: bool = ..., error: _Optional[_Union[_ais_objects_pb2.Error, _Mapping]] = ...) -> None: ...

class HaveRequest(_message.Message):
    __slots__ = ("bucket", "name")
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    bucket: str
    name: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, bucket: _Optional[str] = ..., name: _Optional[_Iterable[str]] = ...) -> None: ...

class HaveResponse(_message.Message):
    __slots__ = ("object",)
    OBJECT_FIELD_NUMBER: _ClassVar[int]
    object: _containers.RepeatedCompositeFieldContainer[_ais_objects_pb2.ObjectInfo]
    def __init__(self, object: _Optional[_Iterable[_Union[_ais_objects_pb2.ObjectInfo, _Mapping]]] = ...) -> None: ...
