"""Rolling change of settings: stored on all hosts, and adopted by the running nodes one after the other."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from storage_node.context.channels import Caller
from storage_node.ops import ray_actors
from storage_node.ops.ask_nodes import ask_node
from storage_node.ops.ray_actors import Host, Started
from storage_node.ops.settings_store import KeptSettings
from storage_node.settings.sources import NODES, Settings, for_node, merged, require_nodes

_POLL_S = 0.1


def settle(root: Path, hosts: Sequence[Host], change: Settings | None, *, instead: bool) -> KeptSettings:
    """Store the newest settings, with the given changes, on every host that answers.

    Args:
        change: settings to merge into the existing ones, or with `instead` to replace them.

    Raises ClusterError, WrongSetting.
    """
    newest = max((host.settings for host in hosts), key=lambda kept: kept.version, default=KeptSettings())
    values = newest.values
    if change is not None:
        nodes = [node for host in hosts for node in host.found.nodes]
        # Settings of a node that no longer exists may be reset.
        gone = set(values.get(NODES, {}))
        require_nodes(change, {node.name for node in nodes} | {node.uuid for node in nodes} | gone)
        values = merged({} if instead else values, change)
    settings = newest if values == newest.values else KeptSettings(newest.version + 1, values)
    if settings.version:
        behind = [host for host in hosts if host.answers and host.settings != settings]
        ray_actors.keep_settings(root, behind, settings)
    return settings


def take_over(
    started: Sequence[Started],
    statuses: Sequence[dict[str, Any]],
    settings: KeptSettings,
    caller: Caller,
    timeout_s: float,
    tell: Callable[[str], None],
) -> list[dict[str, Any]]:
    """Restart the nodes that serve with other settings. Return the state of all nodes afterwards. Raises ClusterError.

    Nodes restart one after the other, each only when the one before serves its replicas again: every object with
    another replica stays available, and settings with which a node cannot serve stop only one node.
    """
    now = list(statuses)
    for at, one in enumerate(started):
        wanted = for_node(settings.values, one.node.name, one.node.uuid)
        if now[at]["state"] != "serving" or now[at].get("settings", wanted) == wanted:
            continue
        tell(f"{one.node.name}: restarting with its new settings")
        ray_actors.renew(one)

        def done(status: Mapping[str, Any], wanted: Settings = wanted) -> bool:
            return bool(status["state"] == "serving" and status.get("settings", wanted) == wanted)

        (now[at],) = ray_actors.wait_serving([one], timeout_s, lambda _: None, done)
        if not done(now[at]):
            why = now[at]["problem"] or now[at]["state"]
            tell(f"{one.node.name} does not serve with its new settings: {why}. Other nodes go on with the former ones")
            break
        _wait_until_trusted(now[at]["endpoint"], caller, timeout_s)
    return now


def _wait_until_trusted(endpoint: str, caller: Caller, timeout_s: float) -> None:
    """Wait until the node has compared its replicas with the others'. Before that, clients read them elsewhere."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        progress = ask_node(endpoint, caller).progress
        if progress is not None and not progress.doubtful_bucket:
            return
        time.sleep(_POLL_S)
