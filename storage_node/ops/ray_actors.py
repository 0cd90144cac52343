"""Ray driver: finds the hosts and what is on them, and starts, watches and ends the actors of nodes.

This is the only module that talks to Ray for an operator, on the one connection that a process has (`connected`).
Actors are detached and named after their node, so that starting a running actor returns that one. They are pinned to
their host (`pinned_to`).
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ais_loader.extras import needs
from storage_node.context.channels import read_secret
from storage_node.ops import cluster_identity, node_file, node_log, peer_secret
from storage_node.ops import settings_store as settings_file
from storage_node.ops.actor import StorageNodeActor
from storage_node.ops.node_discovery import FoundNodes, NodeDrives, find_nodes, make_nodes, wipe_node
from storage_node.ops.node_file import NodeFile
from storage_node.ops.ray_environments import pinned_to
from storage_node.ops.ray_head import ClusterError
from storage_node.ops.settings_store import KeptSettings
from storage_node.settings.sources import WrongSetting

NAMESPACE = "ais-loader"
TASK_TIMEOUT_S = 60.0
LOOK_TIMEOUT_S = 30.0
"""A host that has died counts as alive for about 15 s more."""
ANSWER_TIMEOUT_S = 10.0
CONNECT_TIMEOUT_S = "30"
"""Ray's default of 5 s is too short on a machine that is busy starting it."""
_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class Host:
    """A machine of the Ray cluster."""

    address: str
    name: str
    found: FoundNodes
    settings: KeptSettings = field(default_factory=KeptSettings)
    answers: bool = True


@dataclass(frozen=True, slots=True)
class Started:
    """A node's actor, and the host that it should run on."""

    node: NodeDrives
    host: Host
    actor: Any


@contextlib.contextmanager
def connected(address: str, variables: Mapping[str, str] | None = None) -> Iterator[None]:
    """Connect this process to a running Ray. Raises ClusterError."""
    os.environ.update(variables or {})
    os.environ.setdefault("RAY_gcs_rpc_server_connect_timeout_s", CONNECT_TIMEOUT_S)
    if os.environ.get("RAY_ADDRESS", "").startswith("http"):
        del os.environ["RAY_ADDRESS"]  # the address for job submission, which Ray would take for its own
    with needs("ray", "a cluster's nodes", ClusterError):
        import ray
    try:
        ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ClusterError(f"no connection to Ray at {address}: {error}") from error
    try:
        yield
    finally:
        ray.shutdown()


def look(root: Path) -> list[Host]:
    """Run one short task on every host; sorted by address. A host that does not answer is reported as a problem."""
    import ray

    addresses = sorted({node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]})
    tasks = {address: _on(address, _look, root) for address in addresses}
    ray.wait(list(tasks.values()), num_returns=len(tasks), timeout=LOOK_TIMEOUT_S)
    hosts = []
    for address, task in tasks.items():
        try:
            hosts.append(Host(address, *_get(task, f"looking for drives on {address}", 0.0)))
        except ClusterError as error:
            hosts.append(Host(address, address, FoundNodes(problems=(str(error),)), answers=False))
    return hosts


def make(root: Path, counts: Mapping[str, int], drives_per_node: int) -> None:
    """Create drives for new nodes: a given number on each host, by its address. Raises ClusterError."""
    tasks = {address: _on(address, _make, root, count, drives_per_node) for address, count in counts.items()}
    for address, task in tasks.items():
        _get(task, f"making drives on {address}")


def mark_removed(host: Host, node: NodeDrives) -> None:
    """Mark a node so that it is not started any more. Raises ClusterError."""
    _get(_on(host.address, _mark_removed, node), f"noting on {host.address} that {node.name} is removed")


def wipe(host: Host, node: NodeDrives) -> None:
    """Empty a node's drives, and create a new node on them. Raises ClusterError."""
    _get(_on(host.address, wipe_node, node), f"emptying the drives of {node.name} on {host.address}")


def keep_settings(root: Path, hosts: Sequence[Host], settings: KeptSettings) -> None:
    """Store the settings on these hosts, for the nodes that start there. Raises ClusterError."""
    kept = {host.address: _on(host.address, settings_file.write, root, settings) for host in hosts}
    for address, task in kept.items():
        _get(task, f"keeping the settings on {address}")


def share_secret(root: Path, hosts: Sequence[Host]) -> None:
    """Store the same peer secret below the root on all hosts; a new one if there is none. Raises ClusterError."""
    tasks = {host.address: _on(host.address, _secret_there, root) for host in hosts if host.answers}
    found = {address: _get(task, f"reading the peer secret on {address}") for address, task in tasks.items()}
    known = {secret for secret in found.values() if secret}
    if len(known) > 1:
        having = ", ".join(address for address, secret in found.items() if secret)
        raise ClusterError(
            f"the files {peer_secret.path_of(root)} on {having} differ: put the same one on each while no node runs"
        )
    secret = known.pop() if known else secrets.token_hex(32)
    lacking = [address for address, one in found.items() if one == ""]
    tasks = {address: _on(address, peer_secret.make, root, secret) for address in lacking}
    for address, task in tasks.items():
        _get(task, f"keeping the peer secret on {address}")


def require_one_ca(root: Path, hosts: Sequence[Host]) -> None:
    """Require that the hosts with nodes have the same CA below the root, or none of them has one. Raises
    ClusterError."""
    tasks = {host.address: _on(host.address, cluster_identity.ca_of, root) for host in hosts if host.found.nodes}
    found = {address: _get(task, f"reading the CA on {address}") for address, task in tasks.items()}
    found[""] = cluster_identity.ca_of(root)  # of this machine
    if len(set(found.values())) > 1:
        others = ", ".join(address for address, ca in found.items() if address and ca != found[""])
        raise ClusterError(
            f"{cluster_identity.folder_of(root).path} is not the same on {others}: copy the folder from the machine "
            "where `cluster up --secure` has made it, readable by its owner alone, and run this again"
        )


def tail_of_log(root: Path, host: Host, uuid: str, lines: int) -> list[str]:
    """Return the end of a node's log. Raises ClusterError."""
    task = _on(host.address, node_log.tail, root, uuid, lines)
    log_lines: list[str] = _get(task, f"reading the log on {host.address}")
    return log_lines


def start(root: Path, host: Host, node: NodeDrives) -> Started:
    """Start the node's actor, or return the running one."""
    running = _actor(node.uuid)
    if running is not None:
        try:
            status = _get(running.status.remote(), "asking", ANSWER_TIMEOUT_S)
            if status["state"] == "waiting":
                running.hurry.remote()
            return Started(node, host, running)
        except ClusterError:
            # It waits for a host that no longer exists, or hangs: its drives are here.
            _kill(node.uuid, running)
    import ray

    actor = ray.remote(StorageNodeActor).options(
        name=_name(node.uuid),
        namespace=NAMESPACE,
        lifetime="detached",
        get_if_exists=True,
        num_cpus=0,
        resources=pinned_to(host.address),
        max_restarts=-1,
        max_concurrency=4,
    )
    return Started(node, host, actor.remote(str(root), node.uuid, host.address))


def wait_serving(
    started: Sequence[Started],
    timeout_s: float,
    tell: Callable[[dict[str, Any]], None],
    done: Callable[[dict[str, Any]], bool] = lambda status: bool(status["state"] == "serving"),
) -> list[dict[str, Any]]:
    """Return the states of the nodes when all of them are `done`, or after `timeout_s`. `tell` gets each change."""
    deadline = time.monotonic() + timeout_s
    reported: dict[str, tuple[str, str]] = {}
    while True:
        statuses = [_status(one) for one in started]
        for status in statuses:
            now = (status["state"], status["problem"])
            if reported.get(status["uuid"]) != now:
                reported[status["uuid"]] = now
                tell(status)
        if all(map(done, statuses)) or time.monotonic() > deadline:
            return statuses
        time.sleep(_POLL_S)


def renew(one: Started) -> None:
    """Make a node restart its server with the current settings. Raises ClusterError."""
    _get(one.actor.renew.remote(), f"telling node {one.node.name} to take over its settings", ANSWER_TIMEOUT_S)


def stop(uuid: str, grace_s: float) -> bool:
    """Drain a node and end its actor permanently. Returns False if there is none."""
    actor = _actor(uuid)
    if actor is None:
        return False
    with contextlib.suppress(ClusterError):  # it hangs, or has just ended: it is killed without draining
        _get(actor.stop.remote(grace_s), "draining", grace_s + ANSWER_TIMEOUT_S)
    _kill(uuid, actor)
    return True


def status_of(uuid: str) -> dict[str, Any] | None:
    """Return the status of a node's actor; None if there is none, or it does not answer."""
    actor = _actor(uuid)
    if actor is None:
        return None
    with contextlib.suppress(ClusterError):
        answer: dict[str, Any] = _get(actor.status.remote(), "asking", ANSWER_TIMEOUT_S)
        return answer
    return None


def _status(one: Started) -> dict[str, Any]:
    try:
        answer: dict[str, Any] = _get(one.actor.status.remote(), f"asking node {one.node.name}", ANSWER_TIMEOUT_S)
        return answer | {"name": one.node.name}
    except ClusterError as error:
        return {"uuid": one.node.uuid, "name": one.node.name, "state": "starting", "problem": str(error)}


def _actor(uuid: str) -> Any | None:
    import ray

    try:
        return ray.get_actor(_name(uuid), namespace=NAMESPACE)
    except ValueError:
        return None


def _kill(uuid: str, actor: Any) -> None:
    """Kill an actor. Returns when its name is free. Raises ClusterError."""
    import ray

    ray.kill(actor, no_restart=True)
    deadline = time.monotonic() + ANSWER_TIMEOUT_S
    while _actor(uuid) is not None:
        if time.monotonic() > deadline:
            raise ClusterError(f"the actor of node {uuid} does not end")
        time.sleep(_POLL_S)


def started() -> list[str]:
    """Return the ids of the nodes that have an actor, on hosts that are away too."""
    import ray.util

    prefix = _name("")
    return [name.removeprefix(prefix) for name in ray.util.list_named_actors() if name.startswith(prefix)]


def _name(uuid: str) -> str:
    return f"node-{uuid}"


def _on(address: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function on a host; return Ray's reference to its result."""
    import ray

    task = ray.remote(_private).options(num_cpus=0, resources=pinned_to(address), max_retries=2)
    return task.remote(function, *arguments)


def _private(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function that creates files for their owner alone. Tasks have the umask with which Ray was started."""
    os.umask(0o077)
    return function(*arguments)


def _get(task: Any, doing: str, timeout_s: float = TASK_TIMEOUT_S) -> Any:
    import ray

    try:
        return ray.get(task, timeout=timeout_s)
    except ray.exceptions.GetTimeoutError:
        raise ClusterError(f"{doing}: no answer in time") from None
    except ray.exceptions.RayTaskError as error:
        raise ClusterError(f"{doing}: {error.cause}") from error
    except ray.exceptions.RayError as error:
        raise ClusterError(f"{doing}: {str(error).splitlines()[0]}") from error


def _look(root: Path) -> tuple[str, FoundNodes, KeptSettings]:
    try:
        settings = settings_file.read(root)
    except (WrongSetting, OSError) as error:
        settings = KeptSettings(problem=str(error))
    return socket.gethostname(), find_nodes(root), settings


def _secret_there(root: Path) -> str | None:
    """Return the peer secret of a host; "" if it has none, and None if it has no root."""
    return read_secret(peer_secret.default_file(root)) if root.is_dir() else None


def _make(root: Path, nodes: int, drives_per_node: int) -> None:
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ClusterError(f"no nodes can be below {root}: {error.strerror or error}") from error
    make_nodes(root, nodes, drives_per_node)


def _mark_removed(node: NodeDrives) -> None:
    file = node_file.read(node.folder)
    node_file.write(node.folder, NodeFile(node.uuid, file.endpoint if file is not None else "", removed=True))
