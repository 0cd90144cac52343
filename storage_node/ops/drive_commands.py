"""Drive commands of an operator, sent to the nodes that have the drives. Ray does not have to be running.

Nodes are found by the files beside the drives below a root, and by the map; see `status`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import grpc

from ais_loader.wire.generated import ais_cluster_pb2 as pb
from ais_loader.wire.generated import ais_cluster_pb2_grpc as rpc
from ais_loader.wire.plain import plain
from storage_node.context.channels import OPERATOR, Caller, resolved
from storage_node.ops import peer_secret
from storage_node.ops.ask_nodes import CALL_TIMEOUT_S, ask_address, ask_as_client, ask_nodes, newest_map
from storage_node.ops.node_discovery import find_nodes
from storage_node.ops.node_file import read_all
from storage_node.ops.ray_head import ClusterError

CHANGE_TIMEOUT_S = 120.0
"""A drive is opened, or its running commits are awaited."""
_AT_ONCE = 32
_OPTIONS = [("grpc.use_local_subchannel_pool", 1)]

Drive = pb.DriveCondition
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class NodeOfDrives:
    """A running node and its drives. If it did not answer, `drives` is None and `problem` has the reason."""

    uuid: str
    name: str
    """Name of its folder; the uuid for a node without a folder on this machine."""
    endpoint: str
    drives: pb.ListDrivesResponse | None
    problem: str = ""
    caller: Caller = OPERATOR
    """Identity for calls to the node."""


def nodes_with_drives(root: Path) -> list[NodeOfDrives]:
    """Return all known nodes below a root, by name. Raises ClusterError if there are none."""
    files = [one for one in read_all(root) if not one.removed]
    names = {node.uuid: node.name for node in find_nodes(root).nodes}
    caller = peer_secret.operator(root)
    answers = ask_nodes((where for one in files for where in (one.endpoint, one.listening) if where), caller)
    try:
        map_ = newest_map(answers.values())
        if map_ is not None:
            answers |= ask_nodes((node.endpoint for node in map_.node if node.endpoint not in answers), caller)
    except ValueError as error:
        raise ClusterError(str(error)) from error
    endpoints = {one.uuid: one.endpoint for one in files}
    endpoints |= {node.uuid.hex(): node.endpoint for node in map_.node} if map_ is not None else {}
    endpoints |= {answer.uuid: answer.endpoint for answer in answers.values() if answer.uuid}
    if not endpoints:
        raise ClusterError(f"no nodes below {root}; `cluster up` makes and starts them")

    listed = {answer.uuid: answer.drives for answer in answers.values() if answer.uuid}

    def one(uuid: str) -> NodeOfDrives:
        name, endpoint = names.get(uuid, uuid), endpoints[uuid]
        if not endpoint:
            return NodeOfDrives(uuid, name, "", None, "it never served", caller)
        if (drives := listed.get(uuid)) is not None:
            return NodeOfDrives(uuid, name, endpoint, drives, caller=caller)
        # Ask once more, separately: the first answer does not tell why it has no drives, and may only have come too
        # late.
        try:
            return NodeOfDrives(uuid, name, endpoint, drives_at(endpoint, caller), caller=caller)
        except ClusterError as error:
            return NodeOfDrives(uuid, name, endpoint, None, str(error), caller)

    with ThreadPoolExecutor(min(len(endpoints), _AT_ONCE)) as threads:
        return sorted(threads.map(one, endpoints), key=lambda node: node.name)


def drives_at(endpoint: str, caller: Caller) -> pb.ListDrivesResponse:
    """List the drives of a node. Raises ClusterError."""
    return order(endpoint, caller, lambda node: node.ListDrives(pb.ListDrivesRequest(), timeout=CALL_TIMEOUT_S))


def order(
    endpoint: str, caller: Caller, call: Callable[[rpc.DrivesStub], pb.ListDrivesResponse]
) -> pb.ListDrivesResponse:
    """Call the Drives service of the node that clients reach at `endpoint`; return its drives.

    Raises ClusterError with the node's reason.
    """
    with contextlib.ExitStack() as held:
        try:
            peer_endpoint = peer_endpoint_of(endpoint, caller)
            inside = caller.channel(peer_endpoint, _OPTIONS)
            return call(rpc.DrivesStub(held.enter_context(inside)))
        except grpc.RpcError as error:
            if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                raise ClusterError(f"{endpoint} does not answer ({error.code().name.lower()})") from error
            raise ClusterError(f"{error.details()}") from error


def peer_endpoint_of(endpoint: str, caller: Caller) -> str:
    """Return where operators reach the node that clients reach at `endpoint`. Raises grpc.RpcError."""
    return resolved(endpoint, ask_as_client(endpoint, caller, ask_address).peer_endpoint)


def find_node(nodes: Sequence[NodeOfDrives], name: str) -> NodeOfDrives:
    """Find a node by the name of its folder or the beginning of its id; "" means the only one. Raises ClusterError."""
    found = [node for node in nodes if not name or node.name == name or node.uuid.startswith(name)]
    if len(found) > 1 and not name:
        raise ClusterError(f"{len(found)} nodes: say which one with --node ({', '.join(node.name for node in found)})")
    return _only(found, "node", name, [node.name for node in nodes])


def find_drive(nodes: Sequence[NodeOfDrives], node: str, drive: str) -> tuple[NodeOfDrives, Drive]:
    """Find a drive by its path, the name of its folder or the beginning of its id. Raises ClusterError."""
    if not drive:
        raise ClusterError("an empty name is no drive")
    among = [find_node(nodes, node)] if node else list(nodes)
    found = [
        (one, known)
        for one in among
        for known in (one.drives.drive if one.drives is not None else ())
        if drive in (known.path, Path(known.path).name if known.path else "") or known.uuid.startswith(drive)
    ]
    silent = [f"{one.name}: {one.problem}" for one in among if one.drives is None]
    if not found and silent:
        raise ClusterError(f"no drive {drive} among those of nodes that answer; {'; '.join(silent)}")
    if len(found) > 1 and not node and len({one.uuid for one, _ in found}) > 1:
        names = ", ".join(one.name for one, _ in found)
        raise ClusterError(f"several nodes have a drive {drive}: say which one with --node ({names})")
    known = [described.path or described.uuid for one in among if one.drives for described in one.drives.drive]
    return _only(found, "drive", drive, known)


def _only(found: Sequence[T], kind: str, name: str, known: Sequence[str]) -> T:
    if not found:
        raise ClusterError(f"no {kind} {name}; there are {', '.join(known)}")
    if len(found) > 1:
        raise ClusterError(f"{name} names {len(found)} {kind}s; give more of the id, or the path")
    return found[0]


def new_folder(root: Path, node: NodeOfDrives) -> Path:
    """Return the first unused `drive-N` beside the node's other drives. Raises ClusterError."""
    paths = [Path(drive.path) for drive in node.drives.drive if drive.path] if node.drives is not None else []
    if not paths:
        raise ClusterError(f"{node.name}: none of its drives is found: give the new one's path")
    folder = min(paths).parent
    names = {path.name for path in paths} | ({entry.name for entry in folder.iterdir()} if folder.is_dir() else set())
    number = next(number for number in range(1, len(names) + 2) if f"drive-{number}" not in names)
    return require_below(root, folder / f"drive-{number}")


def require_below(root: Path, path: Path) -> Path:
    """Require that a drive's folder is ROOT/<node>/<drive>: elsewhere its node would not find it again. Raises
    ClusterError."""
    try:
        parts = path.relative_to(root).parts
    except ValueError:
        parts = ()
    if len(parts) != 2 or any(part.startswith(".") for part in parts):
        raise ClusterError(
            f"{path}: a node looks for its drives in folders {root}/NODE/DRIVE; mount the disk there, or link to it"
        )
    return path


def add(node: NodeOfDrives, path: Path) -> pb.ListDrivesResponse:
    """Add a drive. Raises ClusterError, like all functions that follow."""
    request = pb.AddDriveRequest(path=str(path))
    return order(node.endpoint, node.caller, lambda stub: stub.AddDrive(request, timeout=CHANGE_TIMEOUT_S))


def retire(node: NodeOfDrives, drive: Drive) -> pb.ListDrivesResponse:
    return order(node.endpoint, node.caller, lambda stub: stub.RetireDrive(_that(drive), timeout=CHANGE_TIMEOUT_S))


def reinstate(node: NodeOfDrives, drive: Drive) -> pb.ListDrivesResponse:
    return order(node.endpoint, node.caller, lambda stub: stub.ReinstateDrive(_that(drive), timeout=CHANGE_TIMEOUT_S))


def forget(node: NodeOfDrives, drive: Drive, *, lost: bool) -> pb.ListDrivesResponse:
    request = pb.ForgetDriveRequest(drive=drive.uuid, lost=lost)
    return order(node.endpoint, node.caller, lambda stub: stub.ForgetDrive(request, timeout=CHANGE_TIMEOUT_S))


def disable(node: NodeOfDrives, drive: Drive) -> pb.ListDrivesResponse:
    return order(node.endpoint, node.caller, lambda stub: stub.DisableDrive(_that(drive), timeout=CHANGE_TIMEOUT_S))


def enable(node: NodeOfDrives, drive: Drive, path: Path | None) -> pb.ListDrivesResponse:
    request = pb.EnableDriveRequest(drive=drive.uuid, path=str(path) if path is not None else "")
    return order(node.endpoint, node.caller, lambda stub: stub.EnableDrive(request, timeout=CHANGE_TIMEOUT_S))


def works(drive: Drive) -> bool:
    return drive.state in (Drive.ACTIVE, Drive.RETIRING, Drive.FAILING)


def _that(drive: Drive) -> pb.DriveRequest:
    return pb.DriveRequest(drive=drive.uuid)


def described(drive: Drive) -> dict[str, object]:
    """Describe a drive as JSON; the keys are documented in docs/cluster.md."""
    return plain(drive)


def moving(drives: pb.ListDrivesResponse) -> dict[str, object]:
    """Describe the moves in progress inside a node, as JSON."""
    described = plain(drives)
    del described["drive"]
    return described
