from protos import ais_objects_pb2 as _ais_objects_pb2
from protos import ais_replica_pb2 as _ais_replica_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DeleteManyRequest(_message.Message):
    __slots__ = ("bucket", "name")
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    bucket: str
    name: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, bucket: _Optional[str] = ..., name: _Optional[_Iterable[str]] = ...) -> None: ...

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

class BuryManyRequest(_message.Message):
    __slots__ = ("bucket", "name", "version")
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    bucket: _ais_replica_pb2.BucketRef
    name: _containers.RepeatedScalarFieldContainer[str]
    version: _containers.RepeatedCompositeFieldContainer[_ais_replica_pb2.ObjectVersion]
    def __init__(self, bucket: _Optional[_Union[_ais_replica_pb2.BucketRef, _Mapping]] = ..., name: _Optional[_Iterable[str]] = ..., version: _Optional[_Iterable[_Union[_ais_replica_pb2.ObjectVersion, _Mapping]]] = ...) -> None: ...

class BuryManyResponse(_message.Message):
    __slots__ = ("failure", "map_version")
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    MAP_VERSION_FIELD_NUMBER: _ClassVar[int]
    failure: _containers.RepeatedCompositeFieldContainer[DeleteFailure]
    map_version: int
    def __init__(self, failure: _Optional[_Iterable[_Union[DeleteFailure, _Mapping]]] = ..., map_version: _Optional[int] = ...) -> None: ...
