"""`ais-loader cluster`: several storage nodes as one store, run by Ray."""

from __future__ import annotations

import functools
import json
import os
import shlex
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ais_loader.cli.groups import HintingGroup
from ais_loader.cli.show import OutputLines, count_text, note, printable, waiting
from storage_node.cli.cluster_drives import absolute, drive, root_option
from storage_node.cli.insecure import WHY, WHY_METRICS, insecure_option, secure_option
from storage_node.cli.settings import (
    config_option,
    etl_options,
    gateway_options,
    given_settings,
    set_option,
    setting_option,
)

if TYPE_CHECKING:
    from storage_node.ops.commands import Result

_JOB_VARIABLE = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""Set by Ray for the entry point of a submitted job."""


_root = root_option("Folder below which nodes have their drives: DIR/NODE/DRIVE. The same path on every host.")
_address = click.option(
    "--address",
    metavar="RAY",
    default="",
    help="A Ray that runs, as HOST:PORT, or `auto` for the one of this machine. Inside a Ray job: that of the job. "
    "Otherwise DIR gets a Ray of its own on this machine, which listens on loopback only.",
)
_json = click.option("--json", "as_json", is_flag=True, help="The outcome as one JSON object.")
_drives = click.option(
    "--drives-per-node",
    metavar="D",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Drives of each new node.",
)
_timeout = click.option(
    "--timeout",
    metavar="SECONDS",
    type=click.FloatRange(min=1),
    default=60,
    show_default=True,
    help="How long to wait for all nodes to serve.",
)
_host_per_node = click.option(
    "--host-per-node/--one-host",
    "host_per_node",
    default=None,
    help="Whether each node counts as a separate host. Copies go to different hosts, so use this to "
    "try out copies on one machine. Default: yes when several nodes are made on one machine.",
)


@click.group(cls=HintingGroup)
def cluster() -> None:
    """Run several storage nodes as one store.

    The drives define the nodes and hold all data. Ray runs a process for each node and restarts it when it dies.
    """


@cluster.command()
@_root
@click.option(
    "--nodes",
    metavar="N",
    type=click.IntRange(min=1),
    help="How many nodes to create if there are none under DIR.  [default: one on each host]",
)
@_drives
@_address
@_host_per_node
@click.option(
    "--dashboard/--no-dashboard",
    default=True,
    show_default=True,
    help="Whether DIR's own Ray has a dashboard: `ray job submit` needs it; it takes 200 MB of memory.",
)
@setting_option("--durability", default="as before; process at first")
@etl_options
@gateway_options
@insecure_option
@secure_option
@click.option(
    "--trust-ray",
    is_flag=True,
    help="With --secure and --address: confirm that everyone who can submit jobs to that Ray may act as an operator.",
)
@config_option
@set_option
@_timeout
@_json
def up(
    root: Path,
    nodes: int | None,
    drives_per_node: int,
    address: str,
    host_per_node: bool | None,
    dashboard: bool,
    insecure: bool,
    secure: bool,
    trust_ray: bool,
    config: Path | None,
    assignments: tuple[str, ...],
    timeout: float,
    as_json: bool,
) -> None:
    """Start the nodes that have drives under DIR, on all hosts of the Ray cluster; create nodes if there are none.

    You can run it again at any time: running nodes are left alone, and others are started on their drives. The nodes
    keep running after this command ends.

    Settings are stored under DIR on every host and apply to all nodes across restarts: --config replaces all of them,
    --set changes one. Running nodes adopt them one after another.
    """
    from storage_node.ops import commands
    from storage_node.ops.ray_head import require_ray

    require_ray()  # before anything is created
    if secure and _ray_address(address) and not trust_ray:
        raise click.UsageError(
            "everyone who can submit jobs to that Ray can read the keys of the nodes, and act as an operator: use "
            "--trust-ray if that may be so"
        )
    settings = given_settings(config, assignments, of_cluster=True)
    if not _ray_address(address):
        _make_room(absolute(root))
    plan = commands.ClusterPlan(
        root=absolute(root),
        address=_ray_address(address),
        nodes=nodes,
        drives_per_node=drives_per_node,
        host_per_node=host_per_node,
        dashboard=dashboard,
        settings=settings,
        settings_instead=config is not None,
        insecure=insecure,
        secure=secure,
        timeout_s=timeout,
    )
    result = _alone(plan.root, plan.address, lambda: _listening(lambda: commands.up(plan, note)))
    _show(plan.root, result, as_json=as_json)


@cluster.command()
@_root
@_drives
@_address
@_host_per_node
@click.option(
    "--wipe",
    metavar="NODE",
    default="",
    help="Erase the drives of a node that was removed from the cluster, and create the new node on them.",
)
@insecure_option
@_timeout
@_json
def add(
    root: Path,
    drives_per_node: int,
    wipe: str,
    address: str,
    host_per_node: bool | None,
    insecure: bool,
    timeout: float,
    as_json: bool,
) -> None:
    """Add one more node, on the host that has the fewest. It uses the same settings as the others.

    A node that was removed from the cluster cannot return with its old data, because objects deleted since would
    reappear. --wipe discards the data on its drives and uses them for a new node.
    """
    from storage_node.ops import commands
    from storage_node.ops.ray_head import require_ray

    require_ray()
    plan = commands.ClusterPlan(
        root=absolute(root),
        address=_ray_address(address),
        drives_per_node=drives_per_node,
        host_per_node=host_per_node,
        insecure=insecure,
        timeout_s=timeout,
    )
    result = _alone(plan.root, plan.address, lambda: _listening(lambda: commands.add(plan, note, wipe)))
    _show(plan.root, result, as_json=as_json)


@cluster.command()
@click.argument("node", metavar="NODE")
@_root
@click.option(
    "--lost",
    is_flag=True,
    help="Remove the node at once, with everything on it; use this when the node or its drives are dead.",
)
@_address
@click.option(
    "--timeout",
    metavar="SECONDS",
    type=click.FloatRange(min=0),
    default=600,
    show_default=True,
    help="How long to wait until the node has handed over its objects.",
)
@_json
def remove(node: str, root: Path, lost: bool, address: str, timeout: float, as_json: bool) -> None:
    """Remove a node from the cluster after it has handed over its objects.

    NODE is the name of its folder, or the beginning of its id. Its drives are left as they are, and are not
    started again.
    """
    from storage_node.ops import commands

    root, address = absolute(root), _ray_address(address)
    if not node:
        raise click.BadParameter("a node's name cannot be empty", param_hint="'NODE'")
    removal = functools.partial(commands.remove, root, address, node, lost=lost, timeout_s=timeout, tell=note)
    uuid = _alone(root, address, removal, ends=True)
    click.echo(json.dumps({"removed": uuid}) if as_json else f"removed {uuid}")


@cluster.command()
@_root
@_address
@_json
def down(root: Path, address: str, as_json: bool) -> None:
    """Let running calls finish, then stop the nodes of DIR and the Ray that `up` started for it. Data stays."""
    from storage_node.ops import commands

    root, address = absolute(root), _ray_address(address)
    nodes, processes = _alone(root, address, lambda: commands.down(root, address, note), ends=True)
    if as_json:
        click.echo(json.dumps({"nodes": nodes, "ray_processes": processes}))
    else:
        ended = f"ended {count_text(nodes, 'node')}{', and Ray' if processes else ''}"
        click.echo(ended if nodes or processes else f"no nodes of {root} were running")


@cluster.command()
@click.argument("node", metavar="NODE")
@_root
@click.option(
    "--lines",
    metavar="N",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    help="Number of lines, from the end.",
)
@click.option("-f", "--follow", is_flag=True, help="Keep showing new lines until interrupted.")
@_address
def logs(node: str, root: Path, lines: int, follow: bool, address: str) -> None:
    """Show a node's log, including earlier runs; works even when Ray is dead.

    NODE is the name of its folder, or the beginning of its id. Nodes of other machines need --address, and are followed
    on their own machine only.
    """
    from storage_node.ops import commands

    root = absolute(root)
    if follow:
        if address:
            raise click.UsageError(
                "--follow reads the log of this machine: run it where the node is, without --address"
            )
        for line in commands.followed_log(root, node, lines):
            click.echo(line)
        return
    try:
        tail = commands.tail_of_log(root, _ray_address(address), node, lines)
    except FileNotFoundError as error:
        raise click.ClickException(f"{node} has logged nothing yet: there is no {error.filename}") from error
    with OutputLines() as out:
        for line in tail:
            out.add(line)


@cluster.command()
@_root
@click.option(
    "--watch",
    "again_s",
    metavar="[SECONDS]",
    type=click.FloatRange(min=0.5),
    is_flag=False,
    flag_value=2.0,
    help="Refresh at this interval, by default every 2 seconds.",
)
@_json
def status(root: Path, again_s: float | None, as_json: bool) -> None:
    """Show the state of the nodes. Asks them directly, not Ray.

    The first line is a summary: the number of nodes that serve, the number of objects, and the free space, each disk
    once. The number of objects is exact, or "?" if counting would take long; `ais-loader du` counts any number.

    The exit code is 1 if a node or one of its drives does not serve, or if there is no cluster.
    """
    from storage_node.cli.cluster_status import add_busy_shares, counted, show_condition
    from storage_node.ops.status import cluster_status

    root = absolute(root)
    before, asked_s = None, 0.0
    while True:
        try:
            with waiting("nodes to answer"):
                found, before_s, asked_s = cluster_status(root), asked_s, time.monotonic()
                found |= counted(found)
        except ValueError as error:
            raise click.ClickException(str(error)) from error
        if before is not None:
            add_busy_shares(found, before, asked_s - before_s)
        before = found
        if again_s is not None and not as_json:
            click.clear()  # only if standard output is a terminal
        with OutputLines() as lines:
            if as_json:
                lines.add(json.dumps(found))
            else:
                show_condition(found, lines)
        if again_s is None:
            break
        time.sleep(again_s)
    if not found["answers"] or any(node["state"] != "serving" for node in found["nodes"]):
        raise click.exceptions.Exit(1)


cluster.add_command(drive)


def _make_room(root: Path) -> None:
    """Create the root if it is missing. Detects what would keep nodes from using it before anything is started."""
    from storage_node.store.drive.identity import is_drive_folder
    from storage_node.store.permissions import FOLDER_MODE

    try:
        root.mkdir(FOLDER_MODE, parents=True, exist_ok=True)
        usable = os.access(root, os.W_OK | os.X_OK)
        why = "this user may not write there"
    except OSError as error:
        usable, why = False, error.strerror or str(error)
    if not usable:
        raise click.ClickException(f"no nodes can be below {root}: {why}")
    if is_drive_folder(root):
        raise click.ClickException(
            f"{root} is a store itself, which `ais-loader serve --drive {root}` serves; nodes need a folder of their "
            "own"
        )


def _ray_address(given: str) -> str:
    if given or _JOB_VARIABLE not in os.environ:
        return given
    return "auto"


def _alone(root: Path, address: str, work: Callable[[], Any], *, ends: bool = False) -> Any:
    """Run one command at a time for a root. With an external Ray there is nothing to lock here.

    Without a root there is nothing to lock either. A command that only ends something creates no folder where no
    cluster has been.
    """
    from storage_node.ops.ray_head import FOLDER_NAME, only_command

    if address or not (root / FOLDER_NAME if ends else root).exists():
        return work()
    with only_command(root):
        return work()


def _listening(work: Callable[[], Result]) -> Result:
    """Run `work`; raise a usage error if nodes would listen on a network without --insecure."""
    from storage_node.ops.commands import BeyondLoopback, MetricsBeyondLoopback

    try:
        return work()
    except MetricsBeyondLoopback as error:
        raise click.UsageError(f"{error}; {WHY_METRICS}") from error
    except BeyondLoopback as error:
        raise click.UsageError(f"{error}, and {WHY}") from error


def _show(root: Path, result: Result, *, as_json: bool) -> None:
    """Show the running nodes; exit code 1 if not all of them serve."""
    from ais_loader.objects.client import CA_VARIABLE, URL_VARIABLE
    from storage_node.ops import ray_head

    head = result.head
    variables = {"RAY_ADDRESS": head.dashboard} | ray_head.environment(root, head) if head and head.dashboard else {}
    variables = {
        name: variables[name] for name in ("RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH") if name in variables
    }
    if as_json:
        described = {
            "root": str(root),
            "url": result.url,
            "ca_file": result.ca_file,
            "cluster_uuid": result.map.cluster_uuid.hex(),
            "map_version": result.map.version,
            "nodes": result.nodes,
            "notes": result.notes,
            "ray": {"address": head.address, "dashboard": head.dashboard, "environment": variables} if head else None,
        }
        click.echo(json.dumps(described))
    else:
        for node in result.nodes:
            about = f"{node['endpoint']}, host {node['host']}" if node["state"] == "serving" else node["state"]
            click.echo(f"{printable(node['name'])}  {node['uuid']}  {printable(about)}")
        click.echo(f"export {URL_VARIABLE}={result.url}")
        if result.ca_file:
            click.echo(f"export {CA_VARIABLE}={shlex.quote(result.ca_file)}")
        if variables:
            click.echo("# for `ray job submit`:")
            click.echo("export " + " ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items()))
        for text in result.notes:
            note(printable(text))
        if not result.ca_file and any(
            not node["endpoint"].startswith("127.") for node in result.nodes if node["state"] == "serving"
        ):
            note("anyone who can reach these addresses can read, change and delete what is stored")
    if any(node["state"] != "serving" for node in result.nodes):
        raise click.exceptions.Exit(1)
