"""ETL: how clients create, show, stop and delete transforms that run where the data is (`client.etl`).

    client.etl.init("upper", lambda data: bytes(data).upper())
    client.etl.init("wav", NodeCommand("wav", {"rate": 8000}))
    client.etl.init("tr", Command(["tr", "a-z", "{args.to:A-Z}"]))
    client.etl.init("embed", Server("http://10.0.0.7:9000", "ws"))
    client.get_batch([Entry("speech", "a.flac", etl=Stage("wav", {"rate": 16000}) >> "upper")])

docs/etl.md describes the signatures of functions and classes.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from ais_loader.errors import InvalidRequest, JobNotFound
from ais_loader.extras import needs
from ais_loader.transforms.transform_job import TransformJob
from ais_loader.transport.base import Transport
from ais_loader.values.pipeline import Stage
from ais_loader.wire.generated import ais_etl_pb2 as pb
from ais_loader.wire.plain import plain

Communication: TypeAlias = Literal["hpush", "hpull", "ws"]
_COMMUNICATION = {
    "hpush": pb.TransformServer.HPUSH,
    "hpull": pb.TransformServer.HPULL,
    "ws": pb.TransformServer.WEBSOCKET,
}
_KINDS = {"python": "function", "command": "command", "server": "server"}
State: TypeAlias = Literal["idle", "running", "stopped", "failed", "unknown"]


@dataclass(frozen=True, slots=True)
class Command:
    """A program to run for each object, without a shell. Only nodes that run clients' code (`etl_code`) run it.

    `words` may contain {input} and {output}, which stand for files with these suffixes, and {args.NAME} or
    {args.NAME:DEFAULT}, which stand for arguments. Without {input}, the program reads stdin; without {output}, it
    writes stdout.
    """

    words: Sequence[str]
    input_suffix: str = ""
    """The end of the name of the input file, such as `.flac`, for programs that look at it."""
    output_suffix: str = ""
    """The end of the name of the output file."""


@dataclass(frozen=True, slots=True)
class NodeCommand:
    """A command that the nodes' operator has listed, by its name. `client.etl.commands()` lists them.

    A request may add arguments to `args`, or give others: `Stage("wav", {"rate": 8000})`.
    """

    name: str
    args: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NodeCommandInfo:
    """A command that the operator of some nodes has listed."""

    name: str
    """The name that a NodeCommand refers to it by."""
    arguments: str
    """The arguments with their types and defaults, such as "rate:int(8000,48000)=16000"."""
    nodes: tuple[str, ...]
    """The addresses of the nodes that have it in this form."""


@dataclass(frozen=True, slots=True)
class Server:
    """A server of yours, at an address that the nodes' operator allows. See `storage_node.etl.webserver`."""

    address: str
    """The address: http://HOST:PORT."""
    communication: Communication = "hpush"
    """How a node and the server exchange objects; docs/etl.md describes each way."""
    fqn: bool = False
    """Whether to send the path of an object's file instead of its bytes, if the server runs on the node's machine."""
    direct_put: bool = False
    """Whether the server itself puts the results of a job to the node that will own them."""
    connections: int = 0
    """The maximum number of connections from each node. 0 means twice the number of its CPUs, and at least 4."""


@dataclass(frozen=True, slots=True)
class NodeState:
    """A transform on one node."""

    node: str
    """The node's UUID. "" for an embedded store."""
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
    """The latest errors, most recent first."""
    log: str
    """The end of the output of its processes. Only `get` returns it."""


@dataclass(frozen=True, slots=True)
class TransformInfo:
    """A transform in the store, with its state on every node."""

    name: str
    """The name that entries and jobs use."""
    version: str
    """A random id, new whenever the transform is created or replaced."""
    kind: Literal["function", "command", "server"]
    """Python code, a program, or a server of yours."""
    source: str
    """The function's name, the command's words or its name and arguments, or the server's address."""
    stopped: bool
    """Whether it was stopped, with `client.etl.stop`."""
    nodes: tuple[NodeState, ...]
    """Its state on each node."""


class Transforms:
    """The transforms of a store: `client.etl`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def init(
        self,
        name: str,
        transform: Callable[..., Any] | type | NodeCommand | Command | Server,
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
        """Create a transform, or replace the one of this name. Code and commands are tried first: a worker must start.

        Args:
            transform: A function of an object's bytes. Or a class, of which each worker creates one instance, which it
                then calls, or whose method `transform` it calls. Or a NodeCommand, a Command or a Server. Code from a
                script is pickled by value, and code from an installed module by name.
            requirements: The packages, with versions, that the code needs where it runs, such as "numpy>=1.26".
            streaming: Whether the function takes an iterator of chunks and yields chunks, in constant memory.
            path: Whether the function takes the path of a file instead of bytes.
            timeout_s, memory_bytes, output_bytes: Limits for one object. 0 means the node's own limits, which always
                apply as well.
            inflation: The maximum number of output bytes per input byte. 0 means no limit.
            retries: How often to retry an object whose worker has died. 0 means the default: 1, or 2 for a Server.
            workers: The maximum number of processes on each node. 0 means as many as the node has for all transforms.
            replace: Whether to replace an existing transform. Running work is finished by the previous version. Cached
                results of that version are not used again.

        Raises TransformRefused for anything that the operator of a node does not allow, TransformFailed with the
        worker's message, TransformExists, InvalidName, InvalidRequest, MissingExtra, NodeUnavailable.
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
            raise InvalidRequest(f"transform {name!r}: invalid limit: {error}").caused_by(error) from None
        if isinstance(transform, Command):
            if isinstance(transform.words, str):
                raise TypeError("a command is a list of words, as ['cat']: it is run without a shell")
            made.command.argument.extend(map(str, transform.words))
            made.command.input_suffix, made.command.output_suffix = transform.input_suffix, transform.output_suffix
        elif isinstance(transform, NodeCommand):
            made.command.template = _name(transform.name)
            try:
                made.command.args = json.dumps(dict(transform.args))
            except (TypeError, ValueError) as error:
                raise InvalidRequest(f"args of command {transform.name!r}: need JSON values: {error}") from error
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
                "a transform is a function, a class, a NodeCommand, a Command or a Server, got "
                f"{type(transform).__name__}"
            )
        return _info(self._transport.etl("InitTransform", pb.InitTransformRequest(transform=made, replace=replace)))

    def commands(self) -> list[NodeCommandInfo]:
        """List the commands that the nodes' operator has listed, by name. An embedded store has none.

        Raises NodeUnavailable.
        """
        described = self._transport.describe()
        nodes: Any = described.get("nodes", [described])
        found: dict[tuple[str, str], list[str]] = {}
        for node in nodes:
            for name, arguments in node.get("etl_commands", {}).items():
                found.setdefault((name, arguments), []).append(node["url"])
        return [NodeCommandInfo(*command, tuple(found[command])) for command in sorted(found)]

    def jobs(self) -> list[TransformJob]:
        """Return all known jobs, including those that have ended."""
        answer = self._transport.etl("ListJobs", pb.ListJobsRequest())
        return [TransformJob(self._transport, info) for info in answer.job]

    def job(self, name: str) -> TransformJob:
        """Find a job by name. Raises JobNotFound."""
        for found in self.jobs():
            if found.name == name:
                return found
        raise JobNotFound(f"there is no job {name!r}")

    def list(self) -> list[TransformInfo]:
        """List all transforms, in the order of creation, with their states on every node."""
        return [_info(one) for one in self._transport.etl("ListTransforms", pb.ListTransformsRequest()).transform]

    def get(self, name: str) -> TransformInfo:
        """Return one transform, with its log. Raises TransformNotFound."""
        return _info(self._transport.etl("GetTransform", pb.GetTransformRequest(name=_name(name))))

    def stop(self, name: str) -> TransformInfo:
        """Stop a transform. Running work finishes, its processes end, and new requests for it raise TransformGone.

        Raises TransformNotFound.
        """
        return _info(self._transport.etl("SetTransform", pb.SetTransformRequest(name=_name(name), stopped=True)))

    def start(self, name: str) -> TransformInfo:
        """Start a stopped transform again, in the same version. Raises TransformNotFound."""
        return _info(self._transport.etl("SetTransform", pb.SetTransformRequest(name=_name(name))))

    def delete(self, name: str) -> None:
        """Delete a transform. Raises TransformNotFound."""
        self._transport.etl("DeleteTransform", pb.DeleteTransformRequest(name=_name(name)))

    def log(self, name: str) -> str:
        """Return the end of the output of its processes, from all nodes. Raises TransformNotFound."""
        return "".join(node.log for node in self.get(name).nodes)

    def __getitem__(self, name: str) -> Stage:
        """Return a stage of a pipeline: `client.etl["a"] >> client.etl["b"]`.

        This does not check whether the transform exists. A request that uses the stage does.
        """
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
    """Pickle by value code from a script, a notebook or a module that is not installed: a node could not import it."""
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
        except Exception as error:  # noqa: BLE001 - a transform may raise anything
            refusal = InvalidRequest(f"{transform!r} cannot be pickled: {type(error).__name__}: {error}")
            raise refusal.caused_by(error) from None


def _is_installed(module: Any) -> bool:
    file = getattr(module, "__file__", None) or ""
    return not file or "site-packages" in file or "dist-packages" in file or file.startswith(sys.base_prefix)


def _command_text(command: pb.Command) -> str:
    if not command.template:
        return " ".join(command.argument)
    return " ".join(
        [command.template, *(f"{name}={value}" for name, value in json.loads(command.args or "{}").items())]
    )


def _info(message: pb.TransformInfo) -> TransformInfo:
    transform = message.transform
    source = transform.WhichOneof("source") or "python"
    shown = {
        "python": transform.python.qualified_name,
        "command": _command_text(transform.command),
        "server": transform.server.address,
    }
    return TransformInfo(
        transform.name,
        transform.uuid.hex(),
        _KINDS[source],  # type: ignore[arg-type]
        shown[source],
        transform.stopped,
        tuple(map(_state, message.node)),
    )


def _state(message: pb.NodeTransform) -> NodeState:
    state = plain(message)
    return NodeState(state.pop("node_uuid").hex(), errors=tuple(state.pop("error")), **state)
