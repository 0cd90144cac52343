"""Cluster status, reported by the nodes: works with Ray dead, as long as one node answers.

The addresses of nodes come from the map, which the nodes of this machine keep on their drives, and from the node files.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ais_loader.errors import StoreFormatError
from ais_loader.wire.generated import ais_cluster_pb2 as pb
from ais_loader.wire.generated import ais_objects_pb2 as objects_pb
from ais_loader.wire.generated import ais_replica_pb2 as replica_pb
from ais_loader.wire.plain import plain
from storage_node.cluster.consensus.acceptor_store import decode
from storage_node.ops import cluster_identity, drive_commands, peer_secret, ray_head
from storage_node.ops.ask_nodes import NodeAnswer, ask_nodes, newest_map
from storage_node.ops.node_discovery import FoundNodes, find_nodes
from storage_node.ops.node_file import NodeFile, read_all
from storage_node.settings.config import ServerConfig
from storage_node.store.drive.identity import CLUSTER_FILE_NAME

_FOUND_AT_START = ("critical_memory_bytes",)
_DEFAULTS = {name: value for name, value in ServerConfig().as_text().items() if name not in _FOUND_AT_START}
_WELL = ("active", "retiring")


def cluster_status(root: Path) -> dict[str, Any]:
    """Return the status as JSON, with the keys of docs/cluster.md. Raises ValueError if two clusters answer."""
    files = {one.uuid: one for one in read_all(root) if not one.removed}
    found = find_nodes(root)
    # Also ask at the listening address: this machine may not reach the address that is advertised to others.
    caller = peer_secret.operator(root)
    answers = ask_nodes((where for one in files.values() for where in (one.endpoint, one.listening) if where), caller)
    known = newest_map(answers.values()) or _map_on_drives(found)
    elsewhere = [] if known is None else [node.endpoint for node in known.node if node.endpoint not in answers]
    answers |= ask_nodes(elsewhere, caller)
    answered = newest_map(answers.values())
    map_ = answered or known
    members = {} if map_ is None else {node.uuid.hex(): node for node in map_.node}
    by_uuid = {answer.uuid: answer for answer in answers.values() if answer.uuid}
    uuids = dict.fromkeys([*members, *files, *(node.uuid for node in found.nodes)])
    nodes = [_node(uuid, members.get(uuid), files.get(uuid), by_uuid.get(uuid), answers, found) for uuid in uuids]
    for node in nodes:
        node["free_bytes"], node["size_bytes"] = disk_space([node])
    free_bytes, size_bytes = disk_space(nodes)
    head = ray_head.remembered(root)
    return {
        "root": str(root),
        "cluster_uuid": map_.cluster_uuid.hex() if map_ is not None else "",
        "map_version": map_.version if map_ is not None else 0,
        "answers": answered is not None,
        "url": cluster_identity.scheme_of(root) + ",".join(node.endpoint for node in map_.node)
        if map_ is not None
        else "",
        "ca_file": str(identity.ca_file) if (identity := cluster_identity.folder_of(root)).exists else "",
        "ray": {"address": head.address, "dashboard": head.dashboard, "alive": head.answers()} if head else None,
        "nodes": nodes,
        "free_bytes": free_bytes,
        "size_bytes": size_bytes,
        "problems": list(found.problems),
    }


def disk_space(nodes: Iterable[dict[str, Any]]) -> tuple[int, int]:
    """Return the free bytes and the size of the file systems below these nodes' drives, counting each once.

    Drives of this machine are distinguished by their device. Drives of another machine are on the same file system if
    its size and its free space are equal, to the byte.
    """
    disks: dict[Any, tuple[int, int]] = {}
    for node in nodes:
        for drive in node["drives"]:
            if not drive["size_bytes"]:
                continue
            space = drive["free_bytes"], drive["size_bytes"]
            # An address, without the port: nodes of one machine may count as different hosts.
            machine = node["endpoint"].rpartition(":")[0] or node["host"]
            key: Any = (machine, space)
            if node["name"]:  # on this machine
                with contextlib.suppress(OSError):
                    key = os.stat(drive["path"]).st_dev
            disks[key] = space
    return sum(free for free, _ in disks.values()), sum(size for _, size in disks.values())


def _node(
    uuid: str,
    member: pb.MapNode | None,
    file: NodeFile | None,
    answer: NodeAnswer | None,
    answers: dict[str, NodeAnswer],
    found: FoundNodes,
) -> dict[str, Any]:
    local = found.node(uuid)
    described = answer.described if answer is not None else None
    endpoint = answer.endpoint if answer is not None else member.endpoint if member else file.endpoint if file else ""
    if file is not None and endpoint == file.listening:
        endpoint = file.endpoint
    report = answer.drives if answer is not None else None
    if report is not None:
        drives = [drive_commands.described(drive) for drive in report.drive]
    else:
        drives = [_drive(drive) for drive in described.drive] if described is not None else []
    problem = "; ".join(
        f"{drive['path'] or drive['uuid']}: {drive['problem'] or drive['state']}"
        for drive in drives
        if drive["state"] not in _WELL
    )
    if described is None:
        problem = "never served" if not endpoint else _silence(answers.get(endpoint))
        problem += f"; it said: {file.problem}" if file is not None and file.problem else ""
        drives = [_unknown(str(path)) for path in (local.drives if local is not None else ())]
    progress = answer.progress if answer is not None else None
    if described is not None and answer is not None:
        unsaid = f"nothing is known of its copies: no answer to an operator at {answer.peer_endpoint}"
        shortages = _shortages(progress) if progress is not None else [unsaid]
        problem = "; ".join(filter(None, [problem, *shortages]))
    limits = dict(described.limits) if described is not None else {}
    return {
        "id": uuid,
        "name": local.name if local is not None else "",
        "host": member.host if member is not None else "",
        "endpoint": endpoint,
        "peer_endpoint": answer.peer_endpoint if answer is not None else member.peer_endpoint if member else "",
        "pid": described.pid if described is not None else 0,
        "state": "down" if described is None else "degraded" if problem else "serving",
        "problem": problem,
        "member": pb.MapNode.State.Name(member.state).lower() if member is not None else "no",
        "map_version": answer.map.version if answer is not None and answer.map is not None else 0,
        "limits": limits,
        "etl_sandbox": described.etl_sandbox if described is not None else "",
        "changed_limits": {name: value for name, value in limits.items() if _DEFAULTS.get(name, value) != value},
        "metrics_url": f"http://{file.metrics}/metrics" if file is not None and file.metrics and described else "",
        "gateway_url": file.gateway if file is not None and described else "",
        "pending_uploads": {
            "count": described.pending_uploads,
            "bytes": described.pending_upload_bytes,
            "oldest_s": described.oldest_pending_upload_s,
            "conflicts": described.upload_conflicts,
        }
        if described is not None
        else None,
        "drives": drives,
        "moving": drive_commands.moving(report) if report is not None else None,
        "repair": _repair(progress) if progress is not None else None,
        # Names that repair has seen are counted exactly; the drives' own estimates are rough after a restart.
        "objects_estimate": (progress.names_before if progress is not None else 0)
        or sum(drive["objects_estimate"] for drive in drives),
    }


def _repair(progress: replica_pb.ProgressResponse) -> dict[str, Any]:
    """Describe repair. `clean_version`: the newest map under which the node has found nothing to move; `doubtful_*`:
    replicas that it does not serve before they are up to date; `silent`: nodes that may have newer replicas than those
    it serves."""
    described = plain(progress)
    del described["map_version"]
    described["doubtful_buckets"] = described.pop("doubtful_bucket")
    return described | {"short_objects": dict(sorted(progress.short_objects.items()))}


def _shortages(progress: replica_pb.ProgressResponse) -> list[str]:
    short = sorted(progress.short_objects.items())
    found = [f"{count} objects of {name!r} have too few copies" for name, count in short]
    found += [f"bucket {name!r} is not coded: {why}" for name, why in sorted(progress.coding.waits.items())]
    found += [f"{name!r} still has denied bytes: {why}" for name, why in sorted(progress.coding.denied.items())]
    if progress.coding.short_groups:
        found.append(f"{progress.coding.short_groups} groups of coded objects lack fragments")
    return [*found, f"{progress.scrub.damaged} copies are damaged"] if progress.scrub.damaged else found


def _map_on_drives(found: FoundNodes) -> pb.ClusterMap | None:
    """Return the newest map that nodes of this machine knew, whether they run or not."""
    newest: pb.ClusterMap | None = None
    for node in found.nodes:
        for drive in node.drives:
            path = drive / CLUSTER_FILE_NAME
            with contextlib.suppress(OSError, StoreFormatError):
                map_ = decode(path.read_bytes(), path, node.uuid).committed
                if map_ is not None and (newest is None or map_.version > newest.version):
                    newest = map_
    return newest


def _silence(answer: NodeAnswer | None) -> str:
    if answer is None or not answer.problem:
        return "another node answers at its endpoint"
    return f"no answer ({answer.problem})"


def _drive(drive: objects_pb.Drive) -> dict[str, Any]:
    """Describe a drive of a node that does not answer at its address for nodes and operators."""
    works = drive.state == "ok"
    return drive_commands.described(
        pb.DriveCondition(
            **plain(drive)
            | {
                "problem": "" if works else drive.state,
                "state": pb.DriveCondition.ACTIVE if works else pb.DriveCondition.MISSING,
            }
        )
    )


def _unknown(path: str) -> dict[str, Any]:
    return drive_commands.described(pb.DriveCondition(path=path)) | {"state": "unknown"}
