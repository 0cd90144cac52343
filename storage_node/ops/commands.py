"""Cluster life-cycle commands: up, add, remove, down. Each may be repeated, and continues where it was interrupted.

The order is the same for all. The drives define which nodes exist, Ray runs one actor for each, and the map, which is
changed last, defines the members. No other state is kept.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ais_loader.wire.generated import ais_cluster_pb2 as pb
from storage_node.cluster.consensus.change import change_map
from storage_node.cluster.consensus.errors import ChangeFailed
from storage_node.cluster.consensus.proposer import Edit
from storage_node.cluster.map.mutations import add_node, begin_leave, create_cluster, remove_node, set_endpoints
from storage_node.context.channels import Caller
from storage_node.ops import (
    cluster_identity,
    node_file,
    node_log,
    peer_secret,
    ray_actors,
    ray_head,
    rolling_settings,
)
from storage_node.ops.ask_nodes import ask_node, ask_nodes, newest_map
from storage_node.ops.decommission import wait_until_out
from storage_node.ops.node_discovery import NodeDrives, find_nodes
from storage_node.ops.ray_actors import Host, Started
from storage_node.ops.ray_head import ClusterError, RayHead
from storage_node.settings.config import DEFAULT, is_loopback
from storage_node.settings.sources import NODES, Settings, WrongSetting, require_nodes

DRAIN_GRACE_S = 5.0
CHANGE_TIMEOUT_S = 30.0
_POLL_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPlan:
    """Arguments of `up` and `add`."""

    root: Path
    address: str = ""
    """Address of a running Ray. Without it, the root gets a Ray of its own on this machine."""
    nodes: int | None = None
    """Number of nodes to create if there are none; None: one on each host."""
    drives_per_node: int = 1
    host_per_node: bool | None = None
    """Count each node as a host. None: if a cluster of several nodes is created on one machine, or already does so."""
    dashboard: bool = True
    settings: Settings | None = None
    """Settings to merge into the current ones, from now on."""
    settings_instead: bool = False
    """Replace the current settings instead."""
    insecure: bool = False
    """Nodes may listen beyond loopback without TLS."""
    secure: bool = False
    """Nodes use TLS from now on; their CA is created if there is none."""
    timeout_s: float = 60.0


@dataclass(slots=True)
class Result:
    """The running nodes."""

    map: pb.ClusterMap
    nodes: list[dict[str, Any]]
    head: RayHead | None
    notes: list[str] = field(default_factory=list)
    ca_file: str = ""
    """The CA of the nodes; empty without TLS."""

    @property
    def url(self) -> str:
        serving = [node["endpoint"] for node in self.nodes if node["state"] == "serving"]
        return ("grpcs://" if self.ca_file else "grpc://") + ",".join(
            serving or [node.endpoint for node in self.map.node]
        )


Tell = Callable[[str], None]


class BeyondLoopback(ClusterError):
    """Nodes would listen on a network without permission to do so."""


class MetricsBeyondLoopback(ClusterError):
    """Nodes with TLS would serve their metrics on a network, without it."""


def up(plan: ClusterPlan, tell: Tell) -> Result:
    """Start all nodes that have drives below the root, on all hosts; create nodes if there are none.

    Raises BeyondLoopback, ClusterError, LoaderError, OSError.
    """
    notes: list[str] = []
    _require_tls_from_the_start(plan)
    with _ray(plan, tell) as head:
        hosts = ray_actors.look(plan.root)
        _require_loopback(plan, hosts)
        if plan.secure:
            cluster_identity.folder_of(plan.root).make()
        if not nodes_of(hosts):
            _make_first(plan, hosts, tell)
            hosts = ray_actors.look(plan.root)
        elif plan.nodes is not None and plan.nodes != len(nodes_of(hosts)):
            notes.append(f"{len(nodes_of(hosts))} nodes have their drives below {plan.root}; `cluster add` makes more")
        notes += [problem for host in hosts for problem in (*host.found.problems, host.settings.problem) if problem]
        notes += [
            f"node {uuid} has been on {host.name}, and has no drive there now"
            for host in hosts
            for uuid in host.found.absent
        ]
        return _run(plan, hosts, head, notes, tell)


def add(plan: ClusterPlan, tell: Tell, wipe: str = "") -> Result:
    """Create one more node, on the host that has the fewest, and add it to the cluster. Raises like `up`.

    Args:
        wipe: a node that is no longer in the cluster, by its folder or the beginning of its uuid: its drives are
            emptied, and the new node is created on them.
    """
    _require_nodes(plan)
    with _ray(plan, tell) as head:
        hosts = ray_actors.look(plan.root)
        _require_loopback(plan, hosts)
        if not nodes_of(hosts):
            raise ClusterError(f"no nodes below {plan.root} to add one to; `cluster up` makes the first")
        if wipe:
            _wipe(plan.root, hosts, wipe, tell)
        else:
            host = min((host for host in hosts if host.answers), key=lambda host: len(host.found.nodes))
            ray_actors.make(plan.root, {host.address: 1}, plan.drives_per_node)
        return _run(plan, ray_actors.look(plan.root), head, [], tell)


def remove(root: Path, address: str, name: str, *, lost: bool, timeout_s: float, tell: Tell) -> str:
    """Remove a node after it has handed over its objects; return its uuid. With `lost`, remove it as it is.

    Args:
        name: the node's folder, or the beginning of its uuid.

    Raises like `up`; also ClusterError if the node has not handed over everything within `timeout_s`. It continues
    then.
    """
    _require_nodes(ClusterPlan(root=root, address=address))
    with _ray(ClusterPlan(root=root, address=address), tell):
        hosts = ray_actors.look(root)
        caller = peer_secret.operator(root)
        map_ = _map_of(hosts, caller)
        node, host = _find(hosts, name)
        uuid = node.uuid if node is not None else _member(map_, name, hosts, root)
        names = {known: one.name for known, (one, _) in nodes_of(hosts).items()}
        if any(member.uuid.hex() == uuid for member in map_.node):
            edit = remove_node(bytes.fromhex(uuid)) if lost else begin_leave(bytes.fromhex(uuid))
            _change(map_, edit, names, caller)
            if not lost:
                wait_until_out(map_, uuid, names, caller, timeout_s, tell)
        ray_actors.stop(uuid, DRAIN_GRACE_S)
        if node is not None and host is not None:
            ray_actors.mark_removed(host, node)
        return uuid


def down(root: Path, address: str, tell: Tell) -> tuple[int, int]:
    """Drain and stop the nodes of a root, and the Ray that `up` started for it. Data stays.

    Returns the numbers of stopped nodes and of ended Ray processes. Raises ClusterError.
    """
    head = ray_head.remembered(root)
    stopped = 0
    if address or (head is not None and head.answers()):
        where = address or (head.address if head is not None else "")
        with ray_actors.connected(where, ray_head.environment(root, head) if head is not None and not address else {}):
            hosts = ray_actors.look(root)
            names = {node.uuid: node.name for host in hosts for node in (*host.found.nodes, *host.found.removed)}
            with contextlib.suppress(ClusterError):  # no node answers that knows the map
                # Include nodes of hosts that are away. Otherwise Ray would start them when those hosts return.
                names = {
                    node.uuid.hex(): node.uuid.hex() for node in _map_of(hosts, peer_secret.operator(root)).node
                } | names
            if not address:  # a Ray of this root alone: also those of hosts that are too busy to answer
                names = {uuid: uuid for uuid in ray_actors.started()} | names
            for uuid, name in names.items():
                if ray_actors.stop(uuid, DRAIN_GRACE_S):
                    tell(f"{name}: stopped")
                    stopped += 1
    elif head is not None:
        stopped = _end_orphans(root, head, tell)
    else:
        _require_nobody(root)
    if address:
        return stopped, 0
    return stopped, ray_head.end(root)


def tail_of_log(root: Path, address: str, name: str, lines: int) -> list[str]:
    """Return the last lines of a node's log; `name` as for `remove`. Raises ClusterError, OSError."""
    searched = [Host("", "this machine", find_nodes(root))]
    node, _ = _find(searched, name)
    if node is not None:
        return node_log.tail(root, node.uuid, lines)
    if address:
        with ray_actors.connected(address):
            hosts = ray_actors.look(root)
            node, host = _find(hosts, name)
            if node is not None and host is not None:
                return ray_actors.tail_of_log(root, host, node.uuid, lines)
            searched = hosts
    raise ClusterError(_no_node(name, searched, root))


def followed_log(root: Path, name: str, lines: int) -> Iterator[str]:
    """Yield the last lines of a node's log on this machine, then new ones forever. Raises ClusterError, OSError."""
    searched = [Host("", "this machine", find_nodes(root))]
    node, _ = _find(searched, name)
    if node is None:
        raise ClusterError(_no_node(name, searched, root))
    yield from node_log.follow(root, node.uuid, lines)


# -- parts


def _require_nodes(plan: ClusterPlan) -> None:
    """Require existing nodes, before a Ray is started in vain. Raises ClusterError."""
    if not plan.address and not (found := find_nodes(plan.root)).nodes:
        problems = f": {'; '.join(found.problems)}" if found.problems else ""
        raise ClusterError(f"no nodes below {plan.root}{problems}; `cluster up` makes the first")


def _require_loopback(plan: ClusterPlan, hosts: Sequence[Host]) -> None:
    """Check the addresses before anything is created or started. Raises BeyondLoopback."""
    given = [plan.settings or {}, *(host.settings.values for host in hosts)]
    one_by_one = [table for settings in given for table in (settings, *settings.get(NODES, {}).values())]
    peer_hosts = [table["peer_host"] for table in one_by_one if "peer_host" in table]
    beyond = [at for at in (*(host.address for host in hosts), *peer_hosts) if at != DEFAULT and not is_loopback(at)]
    identity = cluster_identity.folder_of(plan.root)
    has_tls = plan.secure or identity.exists
    if beyond and has_tls and _serves_metrics(one_by_one) and not plan.insecure:
        raise MetricsBeyondLoopback(f"metrics have no TLS, and would be served at {', '.join(dict.fromkeys(beyond))}")
    if beyond and not plan.insecure and not has_tls:
        raise BeyondLoopback(f"nodes would listen at {', '.join(dict.fromkeys(beyond))}")


def _serves_metrics(settings: Sequence[Mapping[str, Any]]) -> bool:
    names = ("metrics_port", "gateway_metrics_port")
    return any(table.get(name) not in (None, DEFAULT) for table in settings for name in names)


def _require_tls_from_the_start(plan: ClusterPlan) -> None:
    """Require that no node runs without TLS where TLS is wanted. Raises ClusterError."""
    if plan.secure and not cluster_identity.folder_of(plan.root).exists:
        files = {one.listening or one.endpoint for one in node_file.read_all(plan.root) if one.endpoint}
        answers = ask_nodes(files, peer_secret.operator(plan.root))
        if serving := [endpoint for endpoint, answer in answers.items() if answer.uuid]:
            raise ClusterError(
                f"nodes of {plan.root} serve without TLS at {', '.join(serving)}: `cluster down` first, and then "
                "`cluster up --secure`"
            )


def _require_nobody(root: Path) -> None:
    """Require that no node of this root runs: one that does belongs to another Ray. Raises ClusterError."""
    files = {one.listening or one.endpoint: one for one in node_file.read_all(root) if one.endpoint and not one.removed}
    serving = [
        where
        for where, answer in ask_nodes(files, peer_secret.operator(root)).items()
        if answer.uuid == files[where].uuid
    ]
    if serving:
        raise ClusterError(
            f"nodes of {root} serve at {', '.join(serving)}, and are run by another Ray: give its address as in "
            "--address auto. If there is none any more, they end by themselves within a minute or two"
        )


def _no_node(name: str, hosts: Sequence[Host], root: Path) -> str:
    names = ", ".join(sorted(node.name for node, _ in nodes_of(hosts).values())) or "none"
    return f"no node {name} below {root}; there are: {names}"


@contextlib.contextmanager
def _ray(plan: ClusterPlan, tell: Tell) -> Iterator[RayHead | None]:
    """Connect to the Ray of this plan. Yields its head if it belongs to the root."""
    if plan.address:
        with ray_actors.connected(plan.address):
            yield None
        return
    head = ray_head.remembered(plan.root)
    if head is None:
        _require_nobody(plan.root)
    if head is None or not head.answers():
        if ended := ray_head.end(plan.root):  # the rest of a dead one would keep the drives open
            tell(f"ended {ended} processes that a dead Ray had left")
        peer_secret.make(plan.root)
        tell("starting Ray on this machine")
        head = ray_head.start(plan.root, dashboard=plan.dashboard)
    with ray_actors.connected(head.address, ray_head.environment(plan.root, head)):
        yield head


def nodes_of(hosts: Sequence[Host]) -> dict[str, tuple[NodeDrives, Host]]:
    """Map uuids to nodes. If several hosts see the same folder, the first one counts."""
    nodes: dict[str, tuple[NodeDrives, Host]] = {}
    for host in hosts:
        for node in host.found.nodes:
            nodes.setdefault(node.uuid, (node, host))
    return nodes


def _wipe(root: Path, hosts: Sequence[Host], name: str, tell: Tell) -> None:
    """Empty a node's drives and create a new node on them. Raises ClusterError."""
    node, host = node_to_wipe(hosts, name, _map_of(hosts, peer_secret.operator(root)))
    ray_actors.stop(node.uuid, DRAIN_GRACE_S)
    tell(f"emptying {', '.join(map(str, node.drives))}")
    ray_actors.wipe(host, node)


def node_to_wipe(hosts: Sequence[Host], name: str, map_: pb.ClusterMap) -> tuple[NodeDrives, Host]:
    """Find the node to wipe. Raises ClusterError for an unknown name, or that of a node in the cluster."""
    known = {node.uuid: (node, host) for host in hosts for node in (*host.found.nodes, *host.found.removed)}
    found = [(node, host) for node, host in known.values() if node.name == name or node.uuid.startswith(name)]
    if len(found) != 1:
        named = ", ".join(sorted(node.name for node, _ in known.values())) or "none"
        raise ClusterError(f"{name} names {len(found)} nodes with drives; there are: {named}")
    ((node, host),) = found
    if any(member.uuid.hex() == node.uuid for member in map_.node):
        raise ClusterError(f"{node.name} is a node of the cluster: take it out with `cluster remove` first")
    return node, host


def first_nodes(hosts: Sequence[Host], nodes: int | None) -> dict[str, int]:
    """Return the number of nodes to create on each host, by address: `nodes` in total, or one on each.

    Raises ClusterError if there have been nodes before: an empty folder may be a disk that is not mounted.
    """
    absent = [f"node {uuid} of {host.name}" for host in hosts for uuid in host.found.absent]
    problems = [problem for host in hosts for problem in host.found.problems]
    if absent or problems:
        raise ClusterError(
            f"nodes have been here, and none of their drives can be used: {'; '.join(absent + problems)}. Mount or "
            "repair them; nothing was made"
        )
    count = nodes if nodes is not None else len(hosts)
    counts = {host.address: count // len(hosts) + (at < count % len(hosts)) for at, host in enumerate(hosts)}
    return {address: number for address, number in counts.items() if number}


def _make_first(plan: ClusterPlan, hosts: Sequence[Host], tell: Tell) -> None:
    counts = first_nodes(hosts, plan.nodes)
    try:  # check before anything is created
        require_nodes(plan.settings or {}, [f"node-{at + 1}" for at in range(max(counts.values()))])
    except WrongSetting as error:
        raise ClusterError(str(error)) from error
    tell(f"making {sum(counts.values())} x {plan.drives_per_node} drives below {plan.root}")
    ray_actors.make(plan.root, counts, plan.drives_per_node)


def _run(plan: ClusterPlan, hosts: Sequence[Host], head: RayHead | None, notes: list[str], tell: Tell) -> Result:
    """Start every node that was found, and bring the map in line with them."""
    nodes = nodes_of(hosts)
    try:
        settings = rolling_settings.settle(plan.root, hosts, plan.settings, instead=plan.settings_instead)
    except WrongSetting as error:
        raise ClusterError(str(error)) from error
    if plan.address and peer_secret.SETTING not in settings.values:
        ray_actors.share_secret(plan.root, hosts)
    ray_actors.require_one_ca(plan.root, hosts)
    started = [ray_actors.start(plan.root, host, node) for node, host in nodes.values()]
    statuses = ray_actors.wait_serving(started, plan.timeout_s, lambda status: tell(_line(status)))
    statuses = rolling_settings.take_over(
        started, statuses, settings, peer_secret.operator(plan.root), plan.timeout_s, tell
    )
    by_uuid = {status["uuid"]: status for status in statuses}
    map_ = _agree(plan, started, by_uuid, notes)
    for one in started:
        by_uuid[one.node.uuid]["host"] = next(
            (member.host for member in map_.node if member.uuid.hex() == one.node.uuid), one.host.name
        )
    for one in started:
        if bytes.fromhex(one.node.uuid) in map_.removed:
            ray_actors.stop(one.node.uuid, DRAIN_GRACE_S)
            ray_actors.mark_removed(one.host, one.node)
            del by_uuid[one.node.uuid]
    statuses = list(by_uuid.values())
    missing = [member for member in map_.node if member.uuid.hex() not in by_uuid]
    notes += [f"node {member.uuid.hex()} of the map has no drive on any host: {member.endpoint}" for member in missing]
    notes += [
        f"{status['name']} does not serve: {status['problem'] or status['state']}"
        for status in statuses
        if status["state"] != "serving"
    ]
    identity = cluster_identity.folder_of(plan.root)
    return Result(map_, statuses, head, notes, str(identity.ca_file) if identity.exists else "")


def _agree(
    plan: ClusterPlan, started: Sequence[Started], statuses: dict[str, dict[str, Any]], notes: list[str]
) -> pb.ClusterMap:
    """Return the map with all serving nodes, at their current addresses."""
    serving = [one for one in started if statuses[one.node.uuid].get("endpoint")]
    endpoints = [statuses[one.node.uuid]["endpoint"] for one in serving]
    if not endpoints:
        why = "; ".join(f"{status['name']}: {status['problem'] or status['state']}" for status in statuses.values())
        raise ClusterError(f"no node serves within {plan.timeout_s:g} s: {why}")
    caller = peer_secret.operator(plan.root)
    try:
        answers = ask_nodes(endpoints, caller)
        known = newest_map(answers.values())
        if known is None and len(serving) < len(started):
            raise ClusterError(
                "not all nodes serve, and a cluster is made of all of them; mend them and run this again"
            )
        as_hosts = _host_per_node(plan, known, started)
        members = [
            pb.MapNode(
                uuid=bytes.fromhex(one.node.uuid),
                weight=1.0,
                endpoint=endpoint,
                peer_endpoint=statuses[one.node.uuid]["peer_endpoint"],
                host=f"{one.host.name}/{one.node.name}" if as_hosts else one.host.name,
            )
            for one, endpoint in zip(serving, endpoints, strict=True)
        ]
        if known is None:
            return change_map(endpoints, create_cluster(members), timeout_s=CHANGE_TIMEOUT_S, caller=caller)
        in_map = {node.uuid: node for node in known.node}
        for member in members:
            name = statuses[member.uuid.hex()]["name"]
            if member.uuid in known.removed:
                notes.append(
                    f"{name} was taken out of the cluster, and is not taken back: what was deleted since would come "
                    f"back with it. `cluster add --wipe {name}` empties its drives, and has a new node join on them"
                )
                continue
            try:
                if member.uuid not in in_map:
                    known = change_map(endpoints, add_node(member), timeout_s=CHANGE_TIMEOUT_S, caller=caller)
                    notes.append(f"{name} joins the cluster")
                elif _where(in_map[member.uuid]) != _where(member):
                    edit = set_endpoints(member.uuid, *_where(member))
                    known = change_map(endpoints, edit, timeout_s=CHANGE_TIMEOUT_S, caller=caller)
            except ChangeFailed as error:
                if member.uuid not in in_map:
                    raise ClusterError(
                        f"{name} serves, and cannot join: {error}. Mend that, and run `cluster up`"
                    ) from error
                notes.append(f"the map does not say yet that {name} is at {member.endpoint}: {error}. It tries on")
        return known
    except ValueError as error:
        raise ClusterError(str(error)) from error


def _where(member: pb.MapNode) -> tuple[str, str]:
    return member.endpoint, member.peer_endpoint


def _host_per_node(plan: ClusterPlan, known: pb.ClusterMap | None, started: Sequence[Started]) -> bool:
    if plan.host_per_node is not None:
        return plan.host_per_node
    if known is not None:
        return any("/" in member.host for member in known.node)
    return len(started) > 1 and len({one.host.name for one in started}) == 1


def _map_of(hosts: Sequence[Host], caller: Caller) -> pb.ClusterMap:
    statuses = [ray_actors.status_of(uuid) for uuid in nodes_of(hosts)]
    try:
        serving = [status["endpoint"] for status in statuses if status is not None and status["endpoint"]]
        map_ = newest_map(ask_nodes(serving, caller).values())
    except ValueError as error:
        raise ClusterError(str(error)) from error
    if map_ is None:
        raise ClusterError("no node answers that belongs to a cluster; `cluster up` starts them")
    return map_


def _find(hosts: Sequence[Host], name: str) -> tuple[NodeDrives | None, Host | None]:
    found = [(node, host) for node, host in nodes_of(hosts).values() if node.name == name or node.uuid.startswith(name)]
    if len(found) > 1:
        raise ClusterError(f"{name} names {len(found)} nodes; give more of the uuid")
    return found[0] if found else (None, None)


def _member(map_: pb.ClusterMap, name: str, hosts: Sequence[Host], root: Path) -> str:
    """Return the uuid of a node without drives on any host."""
    found = [member.uuid.hex() for member in map_.node if member.uuid.hex().startswith(name)]
    if len(found) > 1:
        raise ClusterError(f"{name} names {len(found)} nodes of the cluster; give more of the uuid")
    if not found:
        raise ClusterError(_no_node(name, hosts, root))
    return found[0]


def _change(map_: pb.ClusterMap, edit: Edit, names: Mapping[str, str], caller: Caller) -> None:
    try:
        change_map([member.endpoint for member in map_.node], edit, timeout_s=CHANGE_TIMEOUT_S, caller=caller)
    except ValueError as error:
        text = str(error)
        for uuid, name in names.items():
            text = text.replace(f"node {uuid}", name).replace(uuid, name)
        raise ClusterError(text) from error


def _end_orphans(root: Path, head: RayHead, tell: Tell) -> int:
    """Stop nodes that keep serving without their Ray, by a signal, so that running calls can finish."""
    ours = set(head.processes())
    ended, caller = 0, peer_secret.operator(root)
    for file in node_file.read_all(root):
        where = file.listening or file.endpoint
        answer = ask_node(where, caller) if where else None
        if answer is not None and answer.described is not None and answer.described.pid in ours:
            with contextlib.suppress(ProcessLookupError):
                os.kill(answer.described.pid, signal.SIGTERM)
                tell(f"node {file.uuid}: told to end")
                ended += 1
    deadline = time.monotonic() + DRAIN_GRACE_S
    while ended and time.monotonic() < deadline and set(head.processes()) & ours:
        time.sleep(_POLL_S)
    return ended


def _line(status: dict[str, Any]) -> str:
    where = f" at {status['endpoint']}" if status.get("endpoint") else ""
    why = f": {status['problem']}" if status["problem"] else ""
    return f"{status['name']}: {status['state']}{where}{why}"
