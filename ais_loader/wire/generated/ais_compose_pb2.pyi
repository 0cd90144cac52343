from ais_loader.wire.generated import ais_objects_pb2 as _ais_objects_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ComposeRequest(_message.Message):
    __slots__ = ("object", "part", "inherit_metadata")
    OBJECT_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    INHERIT_METADATA_FIELD_NUMBER: _ClassVar[int]
    object: _ais_objects_pb2.PutHeader
    part: _containers.RepeatedCompositeFieldContainer[ComposePart]
    inherit_metadata: bool
    def __init__(self, object: _Optional[_Union[_ais_objects_pb2.PutHeader, _Mapping]] = ..., part: _Optional[_Iterable[_Union[ComposePart, _Mapping]]] = ..., inherit_metadata: bool = ...) -> None: ...

class ComposePart(_message.Message):
    __slots__ = ("range", "data")
    RANGE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    range: ComposeRange
    data: bytes
    def __init__(self, range: _Optional[_Union[ComposeRange, _Mapping]] = ..., data: _Optional[bytes] = ...) -> None: ...

class ComposeRange(_message.Message):
    __slots__ = ("bucket", "name", "version", "start", "length")
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    bucket: str
    name: str
    version: str
    start: int
    length: int
    def __init__(self, bucket: _Optional[str] = ..., name: _Optional[str] = ..., version: _Optional[str] = ..., start: _Optional[int] = ..., length: _Optional[int] = ...) -> None: ...

class ComposeResponse(_message.Message):
    __slots__ = ("moved_bytes", "info")
    MOVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    INFO_FIELD_NUMBER: _ClassVar[int]
    moved_bytes: int
    info: _ais_objects_pb2.ObjectInfo
    def __init__(self, moved_bytes: _Optional[int] = ..., info: _Optional[_Union[_ais_objects_pb2.ObjectInfo, _Mapping]] = ...) -> None: ...
