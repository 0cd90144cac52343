from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ClusterMap(_message.Message):
    __slots__ = ("cluster_uuid", "version", "ballot", "node", "bucket", "change")
    CLUSTER_UUID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    BALLOT_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    cluster_uuid: bytes
    version: int
    ballot: Ballot
    node: _containers.RepeatedCompositeFieldContainer[MapNode]
    bucket: _containers.RepeatedCompositeFieldContainer[MapBucket]
    change: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, cluster_uuid: _Optional[bytes] = ..., version: _Optional[int] = ..., ballot: _Optional[_Union[Ballot, _Mapping]] = ..., node: _Optional[_Iterable[_Union[MapNode, _Mapping]]] = ..., bucket: _Optional[_Iterable[_Union[MapBucket, _Mapping]]] = ..., change: _Optional[_Iterable[bytes]] = ...) -> None: ...

class MapNode(_message.Message):
    __slots__ = ("uuid", "host", "endpoint", "weight", "state", "number")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        ACTIVE: _ClassVar[MapNode.State]
        JOINING: _ClassVar[MapNode.State]
        LEAVING: _ClassVar[MapNode.State]
    ACTIVE: MapNode.State
    JOINING: MapNode.State
    LEAVING: MapNode.State
    UUID_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    uuid: bytes
    host: str
    endpoint: str
    weight: float
    state: MapNode.State
    number: int
    def __init__(self, uuid: _Optional[bytes] = ..., host: _Optional[str] = ..., endpoint: _Optional[str] = ..., weight: _Optional[float] = ..., state: _Optional[_Union[MapNode.State, str]] = ..., number: _Optional[int] = ...) -> None: ...

class MapBucket(_message.Message):
    __slots__ = ("name", "uuid", "copies", "min_copies")
    NAME_FIELD_NUMBER: _ClassVar[int]
    UUID_FIELD_NUMBER: _ClassVar[int]
    COPIES_FIELD_NUMBER: _ClassVar[int]
    MIN_COPIES_FIELD_NUMBER: _ClassVar[int]
    name: str
    uuid: bytes
    copies: int
    min_copies: int
    def __init__(self, name: _Optional[str] = ..., uuid: _Optional[bytes] = ..., copies: _Optional[int] = ..., min_copies: _Optional[int] = ...) -> None: ...

class Ballot(_message.Message):
    __slots__ = ("number", "proposer")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    PROPOSER_FIELD_NUMBER: _ClassVar[int]
    number: int
    proposer: bytes
    def __init__(self, number: _Optional[int] = ..., proposer: _Optional[bytes] = ...) -> None: ...

class GetMapRequest(_message.Message):
    __slots__ = ("known_version",)
    KNOWN_VERSION_FIELD_NUMBER: _ClassVar[int]
    known_version: int
    def __init__(self, known_version: _Optional[int] = ...) -> None: ...

class GetMapResponse(_message.Message):
    __slots__ = ("map", "node_uuid")
    MAP_FIELD_NUMBER: _ClassVar[int]
    NODE_UUID_FIELD_NUMBER: _ClassVar[int]
    map: ClusterMap
    node_uuid: bytes
    def __init__(self, map: _Optional[_Union[ClusterMap, _Mapping]] = ..., node_uuid: _Optional[bytes] = ...) -> None: ...

class LearnRequest(_message.Message):
    __slots__ = ("map",)
    MAP_FIELD_NUMBER: _ClassVar[int]
    map: ClusterMap
    def __init__(self, map: _Optional[_Union[ClusterMap, _Mapping]] = ...) -> None: ...

class LearnResponse(_message.Message):
    __slots__ = ("version",)
    VERSION_FIELD_NUMBER: _ClassVar[int]
    version: int
    def __init__(self, version: _Optional[int] = ...) -> None: ...

class PrepareRequest(_message.Message):
    __slots__ = ("cluster_uuid", "ballot", "node_uuid")
    CLUSTER_UUID_FIELD_NUMBER: _ClassVar[int]
    BALLOT_FIELD_NUMBER: _ClassVar[int]
    NODE_UUID_FIELD_NUMBER: _ClassVar[int]
    cluster_uuid: bytes
    ballot: Ballot
    node_uuid: bytes
    def __init__(self, cluster_uuid: _Optional[bytes] = ..., ballot: _Optional[_Union[Ballot, _Mapping]] = ..., node_uuid: _Optional[bytes] = ...) -> None: ...

class PrepareResponse(_message.Message):
    __slots__ = ("promised", "promise", "accepted")
    PROMISED_FIELD_NUMBER: _ClassVar[int]
    PROMISE_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    promised: bool
    promise: Ballot
    accepted: ClusterMap
    def __init__(self, promised: bool = ..., promise: _Optional[_Union[Ballot, _Mapping]] = ..., accepted: _Optional[_Union[ClusterMap, _Mapping]] = ...) -> None: ...

class AcceptRequest(_message.Message):
    __slots__ = ("map", "node_uuid")
    MAP_FIELD_NUMBER: _ClassVar[int]
    NODE_UUID_FIELD_NUMBER: _ClassVar[int]
    map: ClusterMap
    node_uuid: bytes
    def __init__(self, map: _Optional[_Union[ClusterMap, _Mapping]] = ..., node_uuid: _Optional[bytes] = ...) -> None: ...

class AcceptResponse(_message.Message):
    __slots__ = ("accepted", "promise")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    PROMISE_FIELD_NUMBER: _ClassVar[int]
    accepted: bool
    promise: Ballot
    def __init__(self, accepted: bool = ..., promise: _Optional[_Union[Ballot, _Mapping]] = ...) -> None: ...
