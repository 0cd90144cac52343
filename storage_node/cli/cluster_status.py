"""Output of `ais-loader cluster status`: one line of sums, a table of nodes, and the problems of each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ais_loader.cli.show import OutputLines, after, count_text, printable, size_text
from storage_node.cli.cluster_drives import drive_line, moving_texts

_COUNTED = 1_000_000
"""Up to this estimate, objects are counted exactly, which takes the nodes about a second."""
COUNTING_S = 5.0
"""Limit for counting, also if a connected node does not answer."""
_QUIET = ("active", "unknown")


def counted(found: dict[str, Any]) -> dict[str, Any]:
    """Count the objects of all buckets, each once, and their bytes; None for both if unknown, or not known soon."""
    from ais_loader.errors import LoaderError
    from ais_loader.objects.client import connect
    from ais_loader.values.options import ClusterOptions

    unknown = {"buckets": None, "objects": None, "object_bytes": None}
    roughly = sum(drive["objects_estimate"] for node in found["nodes"] for drive in node["drives"])
    if not found["answers"] or roughly > _COUNTED:
        return unknown
    try:
        with (
            connect(found["url"], mode="r", options=ClusterOptions(retry_s=0), ca=found["ca_file"] or None) as client,
            after(COUNTING_S, client.close),  # a call that waits for an answer then raises Closed
        ):
            sums = [client.bucket(info.name).summary("", depth=0) for info in client.buckets()]
    except LoaderError:
        return unknown
    if not all(one.complete for one in sums):
        return unknown
    return {
        "buckets": len(sums),
        "objects": sum(one.objects for one in sums),
        "object_bytes": sum(one.size_bytes for one in sums),
    }


def add_busy_shares(found: dict[str, Any], before: dict[str, Any], elapsed_s: float) -> None:
    """Add `busy_share` to drives: the part of the time since `before` in which their block devices had requests."""
    earlier = {drive["uuid"]: drive.get("device_busy_s") for node in before["nodes"] for drive in node["drives"]}
    for drive in (drive for node in found["nodes"] for drive in node["drives"]):
        now_s, then_s = drive.get("device_busy_s"), earlier.get(drive["uuid"])
        if now_s is not None and then_s is not None:
            drive["busy_share"] = min(1.0, max(0.0, now_s - then_s) / elapsed_s)


def show_condition(found: dict[str, Any], lines: OutputLines) -> None:
    """Show `found`, the result of `cluster_status` with what `counted` adds."""
    nodes: Sequence[dict[str, Any]] = found["nodes"]
    if found["map_version"]:
        lines.add(_sums(found))
        lines.add(f"cluster {found['cluster_uuid']}, map version {found['map_version']}, {found['url']}")
    else:
        lines.add(f"no cluster below {found['root']}; `ais-loader cluster up` makes one")
    if found["ray"]:
        ray = "up" if found["ray"]["alive"] else "down; `ais-loader cluster up` starts it, and the nodes"
        lines.add(f"Ray at {found['ray']['address']}: {ray}")
    elif any(node["state"] == "down" and node["name"] for node in nodes):
        lines.add("no Ray of its own; `ais-loader cluster up` starts one, and the nodes")
    if nodes:
        lines.add("")
        for line in table([["NODE", "STATE", "DRIVES", "FREE", "OF", "ENDPOINT", "PID"], *map(_row, nodes)]):
            lines.add(line)
    for node in nodes:
        about = list(_about(node))
        if about:
            lines.add("")
            lines.add(f"{_title(node)}: {about[0]}")
            for text in about[1:]:
                lines.add(f"  {text}")
    for problem in found["problems"]:
        lines.add(printable(problem))


def _sums(found: dict[str, Any]) -> str:
    nodes = found["nodes"]
    serving = sum(node["state"] == "serving" for node in nodes)
    well = f"all {count_text(serving, 'node')} serve" if len(nodes) > 1 else "the node serves"
    parts = [well if serving == len(nodes) else f"{serving} of {count_text(len(nodes), 'node')} serve as they should"]
    if found.get("objects") is None:
        parts.append("? objects")
    else:
        size = size_text(found["object_bytes"])
        parts.append(f"{count_text(found['objects'], 'object')} ({size}) in {count_text(found['buckets'], 'bucket')}")
    if found["size_bytes"]:
        parts.append(f"{size_text(found['free_bytes'])} free of {size_text(found['size_bytes'])}")
    return ", ".join(parts)


def _title(node: dict[str, Any]) -> str:
    return printable(node["name"]) or str(node["id"])


def _row(node: dict[str, Any]) -> list[str]:
    state = node["state"]
    if node["member"] != "active":
        state += f" ({'not in the map' if node['member'] == 'no' else node['member']})"
    used = sum(drive["state"] in ("active", "retiring") for drive in node["drives"])
    drives = str(used) if used == len(node["drives"]) else f"{used} of {len(node['drives'])}"
    known = bool(node["size_bytes"])
    space = [size_text(node["free_bytes"]), size_text(node["size_bytes"])] if known else ["?", "?"]
    return [_title(node), state, drives, *space, node["endpoint"] or "?", str(node["pid"] or "?")]


def _about(node: dict[str, Any]) -> Iterable[str]:
    if node["problem"]:
        yield printable(node["problem"])
    pending = node.get("pending_uploads") or {}
    if pending.get("count"):
        yield (
            f"{count_text(pending['count'], 'write')} to be uploaded to remote storage, "
            f"{size_text(pending['bytes'])}, the oldest for {pending['oldest_s']:,.0f} s"
        )
    if pending.get("conflicts"):
        yield f"{count_text(pending['conflicts'], 'write')} conflict with remote storage: `ais-loader remote pending`"
    for drive in node["drives"]:
        told = (drive.get(name) for name in ("io_errors", "problem", "busy_share"))
        if len(node["drives"]) > 1 or drive["state"] not in _QUIET or any(told):
            yield drive_line(drive)
    if node["moving"]:
        yield from moving_texts(node["moving"])
    if node["etl_sandbox"]:
        yield f"sandbox of commands: {printable(node['etl_sandbox'])}"
    if node["changed_limits"]:
        changed = ", ".join(f"{name}={value}" for name, value in sorted(node["changed_limits"].items()))
        yield f"set: {printable(changed)}"
    if node["metrics_url"]:
        yield f"metrics: {node['metrics_url']}"
    if node["gateway_url"]:
        yield f"gateway: {node['gateway_url']}"


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Format rows as lines, with columns as wide as their content."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
