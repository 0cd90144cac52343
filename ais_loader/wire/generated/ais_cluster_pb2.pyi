from ais_loader.wire.generated import ais_etl_pb2 as _ais_etl_pb2
from ais_loader.wire.generated import ais_objects_pb2 as _ais_objects_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ClusterMap(_message.Message):
    __slots__ = ("cluster_uuid", "version", "ballot", "node", "bucket", "change", "removed", "transform", "job", "revoked_token")
    CLUSTER_UUID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    BALLOT_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    TRANSFORM_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    REVOKED_TOKEN_FIELD_NUMBER: _ClassVar[int]
    cluster_uuid: bytes
    version: int
    ballot: Ballot
    node: _containers.RepeatedCompositeFieldContainer[MapNode]
    bucket: _containers.RepeatedCompositeFieldContainer[MapBucket]
    change: _containers.RepeatedScalarFieldContainer[bytes]
    removed: _containers.RepeatedScalarFieldContainer[bytes]
    transform: _containers.RepeatedCompositeFieldContainer[_ais_etl_pb2.Transform]
    job: _containers.RepeatedCompositeFieldContainer[_ais_etl_pb2.TransformJob]
    revoked_token: _containers.RepeatedCompositeFieldContainer[RevokedToken]
    def __init__(self, cluster_uuid: _Optional[bytes] = ..., version: _Optional[int] = ..., ballot: _Optional[_Union[Ballot, _Mapping]] = ..., node: _Optional[_Iterable[_Union[MapNode, _Mapping]]] = ..., bucket: _Optional[_Iterable[_Union[MapBucket, _Mapping]]] = ..., change: _Optional[_Iterable[bytes]] = ..., removed: _Optional[_Iterable[bytes]] = ..., transform: _Optional[_Iterable[_Union[_ais_etl_pb2.Transform, _Mapping]]] = ..., job: _Optional[_Iterable[_Union[_ais_etl_pb2.TransformJob, _Mapping]]] = ..., revoked_token: _Optional[_Iterable[_Union[RevokedToken, _Mapping]]] = ...) -> None: ...

class MapNode(_message.Message):
    __slots__ = ("uuid", "host", "endpoint", "weight", "state", "number", "peer_endpoint")
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
    PEER_ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    uuid: bytes
    host: str
    endpoint: str
    weight: float
    state: MapNode.State
    number: int
    peer_endpoint: str
    def __init__(self, uuid: _Optional[bytes] = ..., host: _Optional[str] = ..., endpoint: _Optional[str] = ..., weight: _Optional[float] = ..., state: _Optional[_Union[MapNode.State, str]] = ..., number: _Optional[int] = ..., peer_endpoint: _Optional[str] = ...) -> None: ...

class MapBucket(_message.Message):
    __slots__ = ("name", "uuid", "copies", "min_copies", "snapshot", "former_copies", "remote", "coding", "coded_of", "denied")
    NAME_FIELD_NUMBER: _ClassVar[int]
    UUID_FIELD_NUMBER: _ClassVar[int]
    COPIES_FIELD_NUMBER: _ClassVar[int]
    MIN_COPIES_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    FORMER_COPIES_FIELD_NUMBER: _ClassVar[int]
    REMOTE_FIELD_NUMBER: _ClassVar[int]
    CODING_FIELD_NUMBER: _ClassVar[int]
    CODED_OF_FIELD_NUMBER: _ClassVar[int]
    DENIED_FIELD_NUMBER: _ClassVar[int]
    name: str
    uuid: bytes
    copies: int
    min_copies: int
    snapshot: _containers.RepeatedCompositeFieldContainer[MapSnapshot]
    former_copies: _containers.RepeatedScalarFieldContainer[int]
    remote: _ais_objects_pb2.Remote
    coding: Coding
    coded_of: bytes
    denied: Denied
    def __init__(self, name: _Optional[str] = ..., uuid: _Optional[bytes] = ..., copies: _Optional[int] = ..., min_copies: _Optional[int] = ..., snapshot: _Optional[_Iterable[_Union[MapSnapshot, _Mapping]]] = ..., former_copies: _Optional[_Iterable[int]] = ..., remote: _Optional[_Union[_ais_objects_pb2.Remote, _Mapping]] = ..., coding: _Optional[_Union[Coding, _Mapping]] = ..., coded_of: _Optional[bytes] = ..., denied: _Optional[_Union[Denied, _Mapping]] = ...) -> None: ...

class Denied(_message.Message):
    __slots__ = ("content",)
    class ContentEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    content: _containers.ScalarMap[str, str]
    def __init__(self, content: _Optional[_Mapping[str, str]] = ...) -> None: ...

class Coding(_message.Message):
    __slots__ = ("data", "parity")
    DATA_FIELD_NUMBER: _ClassVar[int]
    PARITY_FIELD_NUMBER: _ClassVar[int]
    data: int
    parity: int
    def __init__(self, data: _Optional[int] = ..., parity: _Optional[int] = ...) -> None: ...

class MapSnapshot(_message.Message):
    __slots__ = ("name", "cut", "created_ns", "maker", "objects", "size_bytes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    CREATED_NS_FIELD_NUMBER: _ClassVar[int]
    MAKER_FIELD_NUMBER: _ClassVar[int]
    OBJECTS_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    cut: int
    created_ns: int
    maker: bytes
    objects: int
    size_bytes: int
    def __init__(self, name: _Optional[str] = ..., cut: _Optional[int] = ..., created_ns: _Optional[int] = ..., maker: _Optional[bytes] = ..., objects: _Optional[int] = ..., size_bytes: _Optional[int] = ...) -> None: ...

class MapDelta(_message.Message):
    __slots__ = ("base_version", "inserted", "splice", "checksum")
    BASE_VERSION_FIELD_NUMBER: _ClassVar[int]
    INSERTED_FIELD_NUMBER: _ClassVar[int]
    SPLICE_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    base_version: int
    inserted: ClusterMap
    splice: _containers.RepeatedCompositeFieldContainer[Splice]
    checksum: int
    def __init__(self, base_version: _Optional[int] = ..., inserted: _Optional[_Union[ClusterMap, _Mapping]] = ..., splice: _Optional[_Iterable[_Union[Splice, _Mapping]]] = ..., checksum: _Optional[int] = ...) -> None: ...

class Splice(_message.Message):
    __slots__ = ("field", "dropped", "kept", "removed")
    FIELD_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    field: int
    dropped: int
    kept: int
    removed: int
    def __init__(self, field: _Optional[int] = ..., dropped: _Optional[int] = ..., kept: _Optional[int] = ..., removed: _Optional[int] = ...) -> None: ...

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
    __slots__ = ("map", "node_uuid", "peer_endpoint", "version", "delta")
    MAP_FIELD_NUMBER: _ClassVar[int]
    NODE_UUID_FIELD_NUMBER: _ClassVar[int]
    PEER_ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    map: ClusterMap
    node_uuid: bytes
    peer_endpoint: str
    version: int
    delta: MapDelta
    def __init__(self, map: _Optional[_Union[ClusterMap, _Mapping]] = ..., node_uuid: _Optional[bytes] = ..., peer_endpoint: _Optional[str] = ..., version: _Optional[int] = ..., delta: _Optional[_Union[MapDelta, _Mapping]] = ...) -> None: ...

class LearnRequest(_message.Message):
    __slots__ = ("map", "delta")
    MAP_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    map: ClusterMap
    delta: MapDelta
    def __init__(self, map: _Optional[_Union[ClusterMap, _Mapping]] = ..., delta: _Optional[_Union[MapDelta, _Mapping]] = ...) -> None: ...

class LearnResponse(_message.Message):
    __slots__ = ("version",)
    VERSION_FIELD_NUMBER: _ClassVar[int]
    version: int
    def __init__(self, version: _Optional[int] = ...) -> None: ...

class PrepareRequest(_message.Message):
    __slots__ = ("cluster_uuid", "ballot", "node_uuid", "known_version")
    CLUSTER_UUID_FIELD_NUMBER: _ClassVar[int]
    BALLOT_FIELD_NUMBER: _ClassVar[int]
    NODE_UUID_FIELD_NUMBER: _ClassVar[int]
    KNOWN_VERSION_FIELD_NUMBER: _ClassVar[int]
    cluster_uuid: bytes
    ballot: Ballot
    node_uuid: bytes
    known_version: int
    def __init__(self, cluster_uuid: _Optional[bytes] = ..., ballot: _Optional[_Union[Ballot, _Mapping]] = ..., node_uuid: _Optional[bytes] = ..., known_version: _Optional[int] = ...) -> None: ...

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
    __slots__ = ("map", "node_uuid", "delta")
    MAP_FIELD_NUMBER: _ClassVar[int]
    NODE_UUID_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    map: ClusterMap
    node_uuid: bytes
    delta: MapDelta
    def __init__(self, map: _Optional[_Union[ClusterMap, _Mapping]] = ..., node_uuid: _Optional[bytes] = ..., delta: _Optional[_Union[MapDelta, _Mapping]] = ...) -> None: ...

class AcceptResponse(_message.Message):
    __slots__ = ("accepted", "promise")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    PROMISE_FIELD_NUMBER: _ClassVar[int]
    accepted: bool
    promise: Ballot
    def __init__(self, accepted: bool = ..., promise: _Optional[_Union[Ballot, _Mapping]] = ...) -> None: ...

class WitnessRequest(_message.Message):
    __slots__ = ("cluster_uuid", "version", "digest")
    CLUSTER_UUID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    cluster_uuid: bytes
    version: int
    digest: bytes
    def __init__(self, cluster_uuid: _Optional[bytes] = ..., version: _Optional[int] = ..., digest: _Optional[bytes] = ...) -> None: ...

class WitnessResponse(_message.Message):
    __slots__ = ("accepted",)
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    accepted: bool
    def __init__(self, accepted: bool = ...) -> None: ...

class ListDrivesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class AddDriveRequest(_message.Message):
    __slots__ = ("path",)
    PATH_FIELD_NUMBER: _ClassVar[int]
    path: str
    def __init__(self, path: _Optional[str] = ...) -> None: ...

class DriveRequest(_message.Message):
    __slots__ = ("drive",)
    DRIVE_FIELD_NUMBER: _ClassVar[int]
    drive: str
    def __init__(self, drive: _Optional[str] = ...) -> None: ...

class ForgetDriveRequest(_message.Message):
    __slots__ = ("drive", "lost")
    DRIVE_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    drive: str
    lost: bool
    def __init__(self, drive: _Optional[str] = ..., lost: bool = ...) -> None: ...

class EnableDriveRequest(_message.Message):
    __slots__ = ("drive", "path")
    DRIVE_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    drive: str
    path: str
    def __init__(self, drive: _Optional[str] = ..., path: _Optional[str] = ...) -> None: ...

class DriveCondition(_message.Message):
    __slots__ = ("uuid", "path", "state", "problem", "objects_estimate", "free_bytes", "size_bytes", "io_errors", "forgotten_in_s", "kept_because", "bad_checksums", "device_busy_s", "device_read_bytes", "device_written_bytes")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        ACTIVE: _ClassVar[DriveCondition.State]
        RETIRING: _ClassVar[DriveCondition.State]
        DISABLED: _ClassVar[DriveCondition.State]
        MISSING: _ClassVar[DriveCondition.State]
        FAILING: _ClassVar[DriveCondition.State]
    ACTIVE: DriveCondition.State
    RETIRING: DriveCondition.State
    DISABLED: DriveCondition.State
    MISSING: DriveCondition.State
    FAILING: DriveCondition.State
    UUID_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    OBJECTS_ESTIMATE_FIELD_NUMBER: _ClassVar[int]
    FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    IO_ERRORS_FIELD_NUMBER: _ClassVar[int]
    FORGOTTEN_IN_S_FIELD_NUMBER: _ClassVar[int]
    KEPT_BECAUSE_FIELD_NUMBER: _ClassVar[int]
    BAD_CHECKSUMS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_BUSY_S_FIELD_NUMBER: _ClassVar[int]
    DEVICE_READ_BYTES_FIELD_NUMBER: _ClassVar[int]
    DEVICE_WRITTEN_BYTES_FIELD_NUMBER: _ClassVar[int]
    uuid: str
    path: str
    state: DriveCondition.State
    problem: str
    objects_estimate: int
    free_bytes: int
    size_bytes: int
    io_errors: int
    forgotten_in_s: float
    kept_because: str
    bad_checksums: int
    device_busy_s: float
    device_read_bytes: int
    device_written_bytes: int
    def __init__(self, uuid: _Optional[str] = ..., path: _Optional[str] = ..., state: _Optional[_Union[DriveCondition.State, str]] = ..., problem: _Optional[str] = ..., objects_estimate: _Optional[int] = ..., free_bytes: _Optional[int] = ..., size_bytes: _Optional[int] = ..., io_errors: _Optional[int] = ..., forgotten_in_s: _Optional[float] = ..., kept_because: _Optional[str] = ..., bad_checksums: _Optional[int] = ..., device_busy_s: _Optional[float] = ..., device_read_bytes: _Optional[int] = ..., device_written_bytes: _Optional[int] = ...) -> None: ...

class ListDrivesResponse(_message.Message):
    __slots__ = ("drive", "moving", "objects_left", "objects_moved", "bytes_moved", "refilling")
    DRIVE_FIELD_NUMBER: _ClassVar[int]
    MOVING_FIELD_NUMBER: _ClassVar[int]
    OBJECTS_LEFT_FIELD_NUMBER: _ClassVar[int]
    OBJECTS_MOVED_FIELD_NUMBER: _ClassVar[int]
    BYTES_MOVED_FIELD_NUMBER: _ClassVar[int]
    REFILLING_FIELD_NUMBER: _ClassVar[int]
    drive: _containers.RepeatedCompositeFieldContainer[DriveCondition]
    moving: bool
    objects_left: int
    objects_moved: int
    bytes_moved: int
    refilling: bool
    def __init__(self, drive: _Optional[_Iterable[_Union[DriveCondition, _Mapping]]] = ..., moving: bool = ..., objects_left: _Optional[int] = ..., objects_moved: _Optional[int] = ..., bytes_moved: _Optional[int] = ..., refilling: bool = ...) -> None: ...

class RevokedToken(_message.Message):
    __slots__ = ("id", "expires_s")
    ID_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_S_FIELD_NUMBER: _ClassVar[int]
    id: str
    expires_s: int
    def __init__(self, id: _Optional[str] = ..., expires_s: _Optional[int] = ...) -> None: ...

class RevokeTokenRequest(_message.Message):
    __slots__ = ("token",)
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    token: RevokedToken
    def __init__(self, token: _Optional[_Union[RevokedToken, _Mapping]] = ...) -> None: ...

class ListRevokedTokensRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListRevokedTokensResponse(_message.Message):
    __slots__ = ("token", "audience")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    AUDIENCE_FIELD_NUMBER: _ClassVar[int]
    token: _containers.RepeatedCompositeFieldContainer[RevokedToken]
    audience: str
    def __init__(self, token: _Optional[_Iterable[_Union[RevokedToken, _Mapping]]] = ..., audience: _Optional[str] = ...) -> None: ...
