from ais_loader.wire.generated import ais_objects_pb2 as _ais_objects_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Transform(_message.Message):
    __slots__ = ("name", "uuid", "stopped", "python", "command", "server", "limits", "workers", "created_ns")
    NAME_FIELD_NUMBER: _ClassVar[int]
    UUID_FIELD_NUMBER: _ClassVar[int]
    STOPPED_FIELD_NUMBER: _ClassVar[int]
    PYTHON_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    SERVER_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    CREATED_NS_FIELD_NUMBER: _ClassVar[int]
    name: str
    uuid: bytes
    stopped: bool
    python: PythonCode
    command: Command
    server: TransformServer
    limits: TransformLimits
    workers: int
    created_ns: int
    def __init__(self, name: _Optional[str] = ..., uuid: _Optional[bytes] = ..., stopped: bool = ..., python: _Optional[_Union[PythonCode, _Mapping]] = ..., command: _Optional[_Union[Command, _Mapping]] = ..., server: _Optional[_Union[TransformServer, _Mapping]] = ..., limits: _Optional[_Union[TransformLimits, _Mapping]] = ..., workers: _Optional[int] = ..., created_ns: _Optional[int] = ...) -> None: ...

class PythonCode(_message.Message):
    __slots__ = ("pickle", "python", "requirement", "streaming", "path", "qualified_name")
    PICKLE_FIELD_NUMBER: _ClassVar[int]
    PYTHON_FIELD_NUMBER: _ClassVar[int]
    REQUIREMENT_FIELD_NUMBER: _ClassVar[int]
    STREAMING_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    QUALIFIED_NAME_FIELD_NUMBER: _ClassVar[int]
    pickle: bytes
    python: str
    requirement: _containers.RepeatedScalarFieldContainer[str]
    streaming: bool
    path: bool
    qualified_name: str
    def __init__(self, pickle: _Optional[bytes] = ..., python: _Optional[str] = ..., requirement: _Optional[_Iterable[str]] = ..., streaming: bool = ..., path: bool = ..., qualified_name: _Optional[str] = ...) -> None: ...

class Command(_message.Message):
    __slots__ = ("argument", "input_suffix", "output_suffix", "template", "args")
    ARGUMENT_FIELD_NUMBER: _ClassVar[int]
    INPUT_SUFFIX_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_SUFFIX_FIELD_NUMBER: _ClassVar[int]
    TEMPLATE_FIELD_NUMBER: _ClassVar[int]
    ARGS_FIELD_NUMBER: _ClassVar[int]
    argument: _containers.RepeatedScalarFieldContainer[str]
    input_suffix: str
    output_suffix: str
    template: str
    args: str
    def __init__(self, argument: _Optional[_Iterable[str]] = ..., input_suffix: _Optional[str] = ..., output_suffix: _Optional[str] = ..., template: _Optional[str] = ..., args: _Optional[str] = ...) -> None: ...

class TransformServer(_message.Message):
    __slots__ = ("address", "communication", "fqn", "direct_put", "connections")
    class Communication(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        HPUSH: _ClassVar[TransformServer.Communication]
        HPULL: _ClassVar[TransformServer.Communication]
        WEBSOCKET: _ClassVar[TransformServer.Communication]
    HPUSH: TransformServer.Communication
    HPULL: TransformServer.Communication
    WEBSOCKET: TransformServer.Communication
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    COMMUNICATION_FIELD_NUMBER: _ClassVar[int]
    FQN_FIELD_NUMBER: _ClassVar[int]
    DIRECT_PUT_FIELD_NUMBER: _ClassVar[int]
    CONNECTIONS_FIELD_NUMBER: _ClassVar[int]
    address: str
    communication: TransformServer.Communication
    fqn: bool
    direct_put: bool
    connections: int
    def __init__(self, address: _Optional[str] = ..., communication: _Optional[_Union[TransformServer.Communication, str]] = ..., fqn: bool = ..., direct_put: bool = ..., connections: _Optional[int] = ...) -> None: ...

class TransformLimits(_message.Message):
    __slots__ = ("timeout_s", "memory_bytes", "output_bytes", "inflation", "retries")
    TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_BYTES_FIELD_NUMBER: _ClassVar[int]
    INFLATION_FIELD_NUMBER: _ClassVar[int]
    RETRIES_FIELD_NUMBER: _ClassVar[int]
    timeout_s: float
    memory_bytes: int
    output_bytes: int
    inflation: float
    retries: int
    def __init__(self, timeout_s: _Optional[float] = ..., memory_bytes: _Optional[int] = ..., output_bytes: _Optional[int] = ..., inflation: _Optional[float] = ..., retries: _Optional[int] = ...) -> None: ...

class InitTransformRequest(_message.Message):
    __slots__ = ("transform", "replace")
    TRANSFORM_FIELD_NUMBER: _ClassVar[int]
    REPLACE_FIELD_NUMBER: _ClassVar[int]
    transform: Transform
    replace: bool
    def __init__(self, transform: _Optional[_Union[Transform, _Mapping]] = ..., replace: bool = ...) -> None: ...

class TransformInfo(_message.Message):
    __slots__ = ("transform", "node")
    TRANSFORM_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    transform: Transform
    node: _containers.RepeatedCompositeFieldContainer[NodeTransform]
    def __init__(self, transform: _Optional[_Union[Transform, _Mapping]] = ..., node: _Optional[_Iterable[_Union[NodeTransform, _Mapping]]] = ...) -> None: ...

class NodeTransform(_message.Message):
    __slots__ = ("node_uuid", "state", "problem", "workers", "objects", "failed", "input_bytes", "output_bytes", "busy_s", "cache_hits", "restarts", "error", "log")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        IDLE: _ClassVar[NodeTransform.State]
        RUNNING: _ClassVar[NodeTransform.State]
        STOPPED: _ClassVar[NodeTransform.State]
        FAILED: _ClassVar[NodeTransform.State]
        UNKNOWN: _ClassVar[NodeTransform.State]
    IDLE: NodeTransform.State
    RUNNING: NodeTransform.State
    STOPPED: NodeTransform.State
    FAILED: NodeTransform.State
    UNKNOWN: NodeTransform.State
    NODE_UUID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    OBJECTS_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    INPUT_BYTES_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_BYTES_FIELD_NUMBER: _ClassVar[int]
    BUSY_S_FIELD_NUMBER: _ClassVar[int]
    CACHE_HITS_FIELD_NUMBER: _ClassVar[int]
    RESTARTS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    LOG_FIELD_NUMBER: _ClassVar[int]
    node_uuid: bytes
    state: NodeTransform.State
    problem: str
    workers: int
    objects: int
    failed: int
    input_bytes: int
    output_bytes: int
    busy_s: float
    cache_hits: int
    restarts: int
    error: _containers.RepeatedScalarFieldContainer[str]
    log: str
    def __init__(self, node_uuid: _Optional[bytes] = ..., state: _Optional[_Union[NodeTransform.State, str]] = ..., problem: _Optional[str] = ..., workers: _Optional[int] = ..., objects: _Optional[int] = ..., failed: _Optional[int] = ..., input_bytes: _Optional[int] = ..., output_bytes: _Optional[int] = ..., busy_s: _Optional[float] = ..., cache_hits: _Optional[int] = ..., restarts: _Optional[int] = ..., error: _Optional[_Iterable[str]] = ..., log: _Optional[str] = ...) -> None: ...

class ListTransformsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListTransformsResponse(_message.Message):
    __slots__ = ("transform",)
    TRANSFORM_FIELD_NUMBER: _ClassVar[int]
    transform: _containers.RepeatedCompositeFieldContainer[TransformInfo]
    def __init__(self, transform: _Optional[_Iterable[_Union[TransformInfo, _Mapping]]] = ...) -> None: ...

class GetTransformRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class SetTransformRequest(_message.Message):
    __slots__ = ("name", "stopped")
    NAME_FIELD_NUMBER: _ClassVar[int]
    STOPPED_FIELD_NUMBER: _ClassVar[int]
    name: str
    stopped: bool
    def __init__(self, name: _Optional[str] = ..., stopped: bool = ...) -> None: ...

class DeleteTransformRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class DeleteTransformResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TransformStateRequest(_message.Message):
    __slots__ = ("name", "with_log")
    NAME_FIELD_NUMBER: _ClassVar[int]
    WITH_LOG_FIELD_NUMBER: _ClassVar[int]
    name: _containers.RepeatedScalarFieldContainer[str]
    with_log: bool
    def __init__(self, name: _Optional[_Iterable[str]] = ..., with_log: bool = ...) -> None: ...

class TransformStateResponse(_message.Message):
    __slots__ = ("transform",)
    class TransformEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: NodeTransform
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[NodeTransform, _Mapping]] = ...) -> None: ...
    TRANSFORM_FIELD_NUMBER: _ClassVar[int]
    transform: _containers.MessageMap[str, NodeTransform]
    def __init__(self, transform: _Optional[_Mapping[str, NodeTransform]] = ...) -> None: ...

class TransformJob(_message.Message):
    __slots__ = ("name", "uuid", "bucket", "to_bucket", "stage", "prefix", "pattern", "object", "to_prefix", "strip_prefix", "extension", "inspect", "continue_on_error", "concurrency", "synchronize", "state", "problem", "created_ns", "ended_ns", "counts", "token")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        RUNNING: _ClassVar[TransformJob.State]
        DONE: _ClassVar[TransformJob.State]
        STOPPED: _ClassVar[TransformJob.State]
        FAILED: _ClassVar[TransformJob.State]
    RUNNING: TransformJob.State
    DONE: TransformJob.State
    STOPPED: TransformJob.State
    FAILED: TransformJob.State
    class ExtensionEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    UUID_FIELD_NUMBER: _ClassVar[int]
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    TO_BUCKET_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    PATTERN_FIELD_NUMBER: _ClassVar[int]
    OBJECT_FIELD_NUMBER: _ClassVar[int]
    TO_PREFIX_FIELD_NUMBER: _ClassVar[int]
    STRIP_PREFIX_FIELD_NUMBER: _ClassVar[int]
    EXTENSION_FIELD_NUMBER: _ClassVar[int]
    INSPECT_FIELD_NUMBER: _ClassVar[int]
    CONTINUE_ON_ERROR_FIELD_NUMBER: _ClassVar[int]
    CONCURRENCY_FIELD_NUMBER: _ClassVar[int]
    SYNCHRONIZE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    CREATED_NS_FIELD_NUMBER: _ClassVar[int]
    ENDED_NS_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    name: str
    uuid: bytes
    bucket: str
    to_bucket: str
    stage: _containers.RepeatedCompositeFieldContainer[JobStage]
    prefix: str
    pattern: _containers.RepeatedScalarFieldContainer[str]
    object: _containers.RepeatedScalarFieldContainer[str]
    to_prefix: str
    strip_prefix: str
    extension: _containers.ScalarMap[str, str]
    inspect: bool
    continue_on_error: bool
    concurrency: int
    synchronize: bool
    state: TransformJob.State
    problem: str
    created_ns: int
    ended_ns: int
    counts: JobCounts
    token: JobToken
    def __init__(self, name: _Optional[str] = ..., uuid: _Optional[bytes] = ..., bucket: _Optional[str] = ..., to_bucket: _Optional[str] = ..., stage: _Optional[_Iterable[_Union[JobStage, _Mapping]]] = ..., prefix: _Optional[str] = ..., pattern: _Optional[_Iterable[str]] = ..., object: _Optional[_Iterable[str]] = ..., to_prefix: _Optional[str] = ..., strip_prefix: _Optional[str] = ..., extension: _Optional[_Mapping[str, str]] = ..., inspect: bool = ..., continue_on_error: bool = ..., concurrency: _Optional[int] = ..., synchronize: bool = ..., state: _Optional[_Union[TransformJob.State, str]] = ..., problem: _Optional[str] = ..., created_ns: _Optional[int] = ..., ended_ns: _Optional[int] = ..., counts: _Optional[_Union[JobCounts, _Mapping]] = ..., token: _Optional[_Union[JobToken, _Mapping]] = ...) -> None: ...

class JobStage(_message.Message):
    __slots__ = ("name", "args", "uuid")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ARGS_FIELD_NUMBER: _ClassVar[int]
    UUID_FIELD_NUMBER: _ClassVar[int]
    name: str
    args: str
    uuid: bytes
    def __init__(self, name: _Optional[str] = ..., args: _Optional[str] = ..., uuid: _Optional[bytes] = ...) -> None: ...

class JobCounts(_message.Message):
    __slots__ = ("seen", "transformed", "skipped", "failed", "deleted", "input_bytes", "output_bytes", "busy_s")
    SEEN_FIELD_NUMBER: _ClassVar[int]
    TRANSFORMED_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    DELETED_FIELD_NUMBER: _ClassVar[int]
    INPUT_BYTES_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_BYTES_FIELD_NUMBER: _ClassVar[int]
    BUSY_S_FIELD_NUMBER: _ClassVar[int]
    seen: int
    transformed: int
    skipped: int
    failed: int
    deleted: int
    input_bytes: int
    output_bytes: int
    busy_s: float
    def __init__(self, seen: _Optional[int] = ..., transformed: _Optional[int] = ..., skipped: _Optional[int] = ..., failed: _Optional[int] = ..., deleted: _Optional[int] = ..., input_bytes: _Optional[int] = ..., output_bytes: _Optional[int] = ..., busy_s: _Optional[float] = ...) -> None: ...

class StartJobRequest(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: TransformJob
    def __init__(self, job: _Optional[_Union[TransformJob, _Mapping]] = ...) -> None: ...

class WatchJobRequest(_message.Message):
    __slots__ = ("name", "wait")
    NAME_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    name: str
    wait: bool
    def __init__(self, name: _Optional[str] = ..., wait: bool = ...) -> None: ...

class ListJobsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListJobsResponse(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: _containers.RepeatedCompositeFieldContainer[JobInfo]
    def __init__(self, job: _Optional[_Iterable[_Union[JobInfo, _Mapping]]] = ...) -> None: ...

class JobInfo(_message.Message):
    __slots__ = ("job", "counts", "node")
    JOB_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    job: TransformJob
    counts: JobCounts
    node: _containers.RepeatedCompositeFieldContainer[NodeJob]
    def __init__(self, job: _Optional[_Union[TransformJob, _Mapping]] = ..., counts: _Optional[_Union[JobCounts, _Mapping]] = ..., node: _Optional[_Iterable[_Union[NodeJob, _Mapping]]] = ...) -> None: ...

class NodeJob(_message.Message):
    __slots__ = ("node_uuid", "layout", "finished", "counts", "answers", "without")
    NODE_UUID_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    WITHOUT_FIELD_NUMBER: _ClassVar[int]
    node_uuid: bytes
    layout: int
    finished: bool
    counts: JobCounts
    answers: bool
    without: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, node_uuid: _Optional[bytes] = ..., layout: _Optional[int] = ..., finished: bool = ..., counts: _Optional[_Union[JobCounts, _Mapping]] = ..., answers: bool = ..., without: _Optional[_Iterable[bytes]] = ...) -> None: ...

class ListJobFailuresRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class JobFailure(_message.Message):
    __slots__ = ("object", "version", "error")
    OBJECT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    object: str
    version: str
    error: _ais_objects_pb2.Error
    def __init__(self, object: _Optional[str] = ..., version: _Optional[str] = ..., error: _Optional[_Union[_ais_objects_pb2.Error, _Mapping]] = ...) -> None: ...

class ListJobFailuresResponse(_message.Message):
    __slots__ = ("failure", "more")
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    failure: _containers.RepeatedCompositeFieldContainer[JobFailure]
    more: bool
    def __init__(self, failure: _Optional[_Iterable[_Union[JobFailure, _Mapping]]] = ..., more: bool = ...) -> None: ...

class StopJobRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class DeleteJobRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class DeleteJobResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class JobPartRequest(_message.Message):
    __slots__ = ("job_uuid", "with_failures", "with_results_url")
    JOB_UUID_FIELD_NUMBER: _ClassVar[int]
    WITH_FAILURES_FIELD_NUMBER: _ClassVar[int]
    WITH_RESULTS_URL_FIELD_NUMBER: _ClassVar[int]
    job_uuid: bytes
    with_failures: bool
    with_results_url: bool
    def __init__(self, job_uuid: _Optional[bytes] = ..., with_failures: bool = ..., with_results_url: bool = ...) -> None: ...

class JobPartResponse(_message.Message):
    __slots__ = ("part", "failure", "results_url")
    PART_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    RESULTS_URL_FIELD_NUMBER: _ClassVar[int]
    part: NodeJob
    failure: _containers.RepeatedCompositeFieldContainer[JobFailure]
    results_url: str
    def __init__(self, part: _Optional[_Union[NodeJob, _Mapping]] = ..., failure: _Optional[_Iterable[_Union[JobFailure, _Mapping]]] = ..., results_url: _Optional[str] = ...) -> None: ...

class CopyObjectRequest(_message.Message):
    __slots__ = ("bucket", "name", "to_bucket", "to_name", "stage")
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    TO_BUCKET_FIELD_NUMBER: _ClassVar[int]
    TO_NAME_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    bucket: str
    name: str
    to_bucket: str
    to_name: str
    stage: _containers.RepeatedCompositeFieldContainer[JobStage]
    def __init__(self, bucket: _Optional[str] = ..., name: _Optional[str] = ..., to_bucket: _Optional[str] = ..., to_name: _Optional[str] = ..., stage: _Optional[_Iterable[_Union[JobStage, _Mapping]]] = ...) -> None: ...

class CopyObjectResponse(_message.Message):
    __slots__ = ("info",)
    INFO_FIELD_NUMBER: _ClassVar[int]
    info: _ais_objects_pb2.ObjectInfo
    def __init__(self, info: _Optional[_Union[_ais_objects_pb2.ObjectInfo, _Mapping]] = ...) -> None: ...

class EtlRecord(_message.Message):
    __slots__ = ("transform", "job")
    TRANSFORM_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    transform: _containers.RepeatedCompositeFieldContainer[Transform]
    job: _containers.RepeatedCompositeFieldContainer[TransformJob]
    def __init__(self, transform: _Optional[_Iterable[_Union[Transform, _Mapping]]] = ..., job: _Optional[_Iterable[_Union[TransformJob, _Mapping]]] = ...) -> None: ...

class JobToken(_message.Message):
    __slots__ = ("id", "expires_s", "tenant", "scope")
    ID_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_S_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    id: str
    expires_s: int
    tenant: str
    scope: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, id: _Optional[str] = ..., expires_s: _Optional[int] = ..., tenant: _Optional[str] = ..., scope: _Optional[_Iterable[str]] = ...) -> None: ...
