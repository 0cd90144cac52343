"""ETL: transforms that run beside the data, as clients make, show, stop and delete them (`client.etl`).

    client.etl.init("upper", lambda data: bytes(data).upper())
    client.etl.init("wav", Command(["ffmpeg", "-i", "{input}", "-ar", "{args.rate:8000}", "{output}"], ".flac", ".wav"))
    client.etl.init("embed", Server("http://10.0.0.7:9000", "ws"))
    client.get_batch([Entry("speech", "a.flac", etl=Stage("wav", {"rate": 8000}) >> "upper")])

What a function or a class has to look like is said in docs/etl.md.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from ais_loader.errors import InvalidRequest
from ais_loader.extras import needs
from ais_loader.pipeline import Stage
from ais_loader.transport.base import Transport
from ais_loader.wire.generated import ais_etl_pb2 as pb

Communication: TypeAlias = Literal["hpush", "hpull", "ws", "grpc"]
_COMMUNICATION = {
    "hpush": pb.TransformServer.HPUSH,
    "hpull": pb.TransformServer.HPULL,
    "ws": pb.TransformServer.WEBSOCKET,
    "grpc": pb.TransformServer.GRPC,
}
_KINDS = {"python": "function", "command": "command", "server": "server"}
State: TypeAlias = Literal["idle", "running", "stopped", "failed", "unknown"]


@dataclass(frozen=True, slots=True)
class Command:
    """A program that the nodes' operator allows, run for each object without a shell.

    `words` may have {input} and {output}, which stand for files with these suffixes, and {args.NAME} or
    {args.NAME:DEFAULT} for arguments. Without files, bytes come by stdin and go by stdout.
    """

    words: Sequence[str]
    input_suffix: str = ""
    output_suffix: str = ""


@dataclass(frozen=True, slots=True)
class Server:
    """A server of yours, at an address that the nodes' operator allows; see `storage_node.etl.webserver`."""

    address: str
    """http://HOST:PORT, or grpc://HOST:PORT."""
    communication: Communication = "hpush"
    fqn: bool = False
    """Give it the path of an object's file in place of its bytes, where it runs on the node's machine."""
    direct_put: bool = False
    """Have it put what a job makes to the node that will own it."""
    connections: int = 0
    """Of each node; 0: as many as there is use for."""


@dataclass(frozen=True, slots=True)
class NodeState:
    """A transform on one node."""

    node: str
    """Its uuid; "" of an embedded store."""
    state: State
    problem: str
    workers: int
    objects: int
    failed: int
    input_bytes: int
    output_bytes: int
    busy_s: float
    cache_hits: int
    restarts: int
    errors: tuple[str, ...]
    """The latest, last first."""
    log: str
    """The end of what its processes have written; of `get` alone."""


@dataclass(frozen=True, slots=True)
class TransformInfo:
    """A transform as the store knows it."""

    name: str
    version: str
    """Drawn whenever it is made or replaced."""
    kind: Literal["function", "command", "server"]
    source: str
    """What the function is called, the command's words, or the server's address."""
    stopped: bool
    nodes: tuple[NodeState, ...]


class Transforms:
    """The transforms of a store: `client.etl`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def init(
        self,
        name: str,
        transform: Callable[..., Any] | type | Command | Server,
        *,
        requirements: Sequence[str] = (),
        streaming: bool = False,
        path: bool = False,
        timeout_s: float = 0.0,
        memory_bytes: int = 0,
        output_bytes: int = 0,
        inflation: float = 0.0,
        retries: int = 0,
        workers: int = 0,
        replace: bool = False,
    ) -> TransformInfo:
        """Make a transform, or put it in the place of the one of this name. It is tried: a worker has started.

        Args:
            transform: a function of an object's bytes, or a class that is made once in each worker and then called, or
                has a method `transform`; a Command; a Server. Code is pickled by value if it is of a script, and by
                name if it is of an installed module.
            requirements: packages, with versions, that code needs where it runs, as "numpy>=1.26".
            streaming: it takes an iterator of chunks and yields chunks, in constant memory.
            path: it takes the path of a file in place of bytes.
            timeout_s, memory_bytes, output_bytes: for one object; 0: the node's own limits, which nothing exceeds.
            inflation: bytes that may come out for each that goes in; 0: any.
            retries: further tries of an object whose worker has died.
            workers: processes on each node, at most; 0: as many as the node has for all transforms.
            replace: what runs is finished by the version before; nothing that was kept of it is used again.

        Raises TransformRefused for what the operator of a node has not allowed, TransformFailed with what the worker
        said, TransformExists, InvalidName, InvalidRequest, MissingExtra, NodeUnavailable.
        """
        if isinstance(requirements, str):
            raise TypeError(f"requirements are a list, as [{requirements!r}]")
        made = pb.Transform(name=_name(name))
        limits = made.limits
        try:
            made.workers = workers
            limits.timeout_s, limits.inflation = timeout_s, inflation
            limits.memory_bytes, limits.output_bytes, limits.retries = memory_bytes, output_bytes, retries
        except (TypeError, ValueError) as error:
            raise InvalidRequest(f"a limit of transform {name!r} is none: {error}") from error
        if isinstance(transform, Command):
            if isinstance(transform.words, str):
                raise TypeError("a command is a list of words, as ['cat']: it is run without a shell")
            made.command.argument.extend(map(str, transform.words))
            made.command.input_suffix, made.command.output_suffix = transform.input_suffix, transform.output_suffix
        elif isinstance(transform, Server):
            if transform.communication not in _COMMUNICATION:
                known = ", ".join(map(repr, _COMMUNICATION))
                raise InvalidRequest(f"communication={transform.communication!r}: one of {known}")
            server = made.server
            server.address, server.communication = transform.address, _COMMUNICATION[transform.communication]
            server.fqn, server.direct_put = transform.fqn, transform.direct_put
            server.connections = transform.connections
        elif callable(transform):
            code = made.python
            code.pickle, code.qualified_name = _pickled(transform), getattr(transform, "__qualname__", repr(transform))
            code.python = f"{sys.version_info[0]}.{sys.version_info[1]}"
            code.requirement.extend(requirements)
            code.streaming, code.path = streaming, path
        else:
            raise TypeError(
                f"a transform is a function, a class, a Command or a Server, got {type(transform).__name__}"
            )
        return _info(self._transport.etl("InitTransform", pb.InitTransformRequest(transform=made, replace=replace)))

    def list(self) -> list[TransformInfo]:
        """All of them, in the order of their making, with their states on every node."""
        return [_info(one) for one in self._transport.etl("ListTransforms", pb.ListTransformsRequest()).transform]

    def get(self, name: str) -> TransformInfo:
        """One of them, with its log. Raises TransformNotFound."""
        return _info(self._transport.etl("GetTransform", pb.GetTransformRequest(name=_name(name))))

    def stop(self, name: str) -> TransformInfo:
        """Let what runs end, and have its processes ended; whoever asks for it gets TransformGone.

        Raises TransformNotFound.
        """
        return _info(self._transport.etl("SetTransform", pb.SetTransformRequest(name=_name(name), stopped=True)))

    def start(self, name: str) -> TransformInfo:
        """Serve it again, in the same version. Raises TransformNotFound."""
        return _info(self._transport.etl("SetTransform", pb.SetTransformRequest(name=_name(name))))

    def delete(self, name: str) -> None:
        """Raises TransformNotFound."""
        self._transport.etl("DeleteTransform", pb.DeleteTransformRequest(name=_name(name)))

    def log(self, name: str) -> str:
        """The end of what its processes have written, of all nodes. Raises TransformNotFound."""
        return "".join(node.log for node in self.get(name).nodes)

    def __getitem__(self, name: str) -> Stage:
        """A stage of a pipeline: `client.etl["a"] >> client.etl["b"]`. Whether it is there, the request tells."""
        return Stage(name)

    def __iter__(self) -> Iterator[TransformInfo]:
        return iter(self.list())

    def __contains__(self, name: object) -> bool:
        return any(one.name == name for one in self.list())


def _name(name: str) -> str:
    if not isinstance(name, str):
        raise TypeError(f"a transform's name is a str, got {type(name).__name__}")
    return name


def _pickled(transform: Callable[..., Any]) -> bytes:
    """By value if it is of a script or a notebook, or of a module that is not installed: a node could not import it."""
    with needs("cloudpickle", "a transform of Python code"):
        import cloudpickle
    module = sys.modules.get(getattr(transform, "__module__", "") or "")
    by_value = module is not None and module.__name__ != "__main__" and not _is_installed(module)
    with contextlib.ExitStack() as held:
        if by_value:
            cloudpickle.register_pickle_by_value(module)
            held.callback(cloudpickle.unregister_pickle_by_value, module)
        try:
            return bytes(cloudpickle.dumps(transform))
        except Exception as error:
            raise InvalidRequest(f"{transform!r} cannot be pickled: {type(error).__name__}: {error}") from error


def _is_installed(module: Any) -> bool:
    file = getattr(module, "__file__", None) or ""
    return not file or "site-packages" in file or "dist-packages" in file or file.startswith(sys.base_prefix)


def _info(message: pb.TransformInfo) -> TransformInfo:
    transform = message.transform
    source = transform.WhichOneof("source") or "python"
    shown = {
        "python": transform.python.qualified_name,
        "command": " ".join(transform.command.argument),
        "server": transform.server.address,
    }
    return TransformInfo(
        transform.name,
        transform.uuid.hex(),
        _KINDS[source],  # type: ignore[arg-type]
        shown[source],
        transform.stopped,
        tuple(
            NodeState(
                node.node_uuid.hex(),
                pb.NodeTransform.State.Name(node.state).lower(),  # type: ignore[arg-type]
                node.problem,
                node.workers,
                node.objects,
                node.failed,
                node.input_bytes,
                node.output_bytes,
                node.busy_s,
                node.cache_hits,
                node.restarts,
                tuple(node.error),
                node.log,
            )
            for node in message.node
        ),
    )
