"""`ais-loader cluster drive`: the drives of running nodes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ais_loader.cli.groups import HintingGroup
from ais_loader.cli.show import OutputLines, count_text, note, printable, size_text

if TYPE_CHECKING:
    from ais_loader.wire.generated import ais_cluster_pb2 as pb
    from storage_node.ops.drive_commands import NodeOfDrives

F = TypeVar("F", bound=Callable[..., Any])


def root_option(help_text: str) -> Callable[[F], F]:
    """Return the option --root of commands on the nodes below a folder."""
    return click.option(
        "--root",
        metavar="DIR",
        envvar="AIS_LOADER_ROOT",
        show_envvar=True,
        required=True,
        type=click.Path(file_okay=False, path_type=Path),
        callback=lambda context, parameter, root: root.expanduser(),  # shells do not expand the ~ of --root=~/data
        help=help_text,
    )


_root = root_option("Folder below which nodes have their drives: DIR/NODE/DRIVE.")
_node = click.option(
    "--node",
    metavar="NODE",
    default="",
    help="The name of a node's folder, or the beginning of its id. Needed where several nodes could be meant.",
)
_json = click.option("--json", "as_json", is_flag=True, help="The node's drives afterwards, as one JSON object.")
_path = click.argument("path", metavar="[PATH]", required=False, type=click.Path(path_type=Path))
_lost = click.option(
    "--lost", is_flag=True, help="Give up the drive even if it may have the only copy of some objects."
)


@click.group(cls=HintingGroup)
def drive() -> None:
    """Manage drives of running nodes: list, add, retire, replace, disable, enable.

    DRIVE is a drive's path, the name of its folder, or the beginning of its id. The commands talk to the nodes
    directly, not through Ray, and the nodes keep serving.
    """


@drive.command("list")
@_root
@_node
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def list_(root: Path, node: str, as_json: bool) -> None:
    """List every drive with its state, its objects, and what is left to move."""
    from storage_node.ops import drive_commands

    nodes = drive_commands.nodes_with_drives(absolute(root))
    shown = [drive_commands.find_node(nodes, node)] if node else nodes
    with OutputLines() as lines:
        if as_json:
            lines.add(json.dumps({"nodes": [_described(one) for one in shown]}))
        else:
            for one in shown:
                lines.add(f"{printable(one.name)} at {one.endpoint or 'no endpoint'}: {_summary(one)}")
                for known in one.drives.drive if one.drives is not None else ():
                    lines.add(f"  {drive_line(drive_commands.described(known))}")
    if any(one.drives is None for one in shown):
        raise click.exceptions.Exit(1)


@drive.command()
@_path
@_root
@_node
@_json
def add(path: Path | None, root: Path, node: str, as_json: bool) -> None:
    """Make an empty folder a drive of a node; objects move there in the background.

    PATH is DIR/NODE/DRIVE, a disk mounted there or a link to one.  [default: the next DIR/NODE/drive-N]
    """
    from storage_node.ops import drive_commands

    root = absolute(root)
    one = drive_commands.find_node(drive_commands.nodes_with_drives(root), node)
    folder = (
        drive_commands.require_below(root, absolute(path)) if path is not None else drive_commands.new_folder(root, one)
    )
    _show(one, drive_commands.add(one, folder), as_json=as_json, done=f"{folder} is a drive of {one.name}")


@drive.command()
@click.argument("drive", metavar="DRIVE")
@_root
@_node
@click.option("--undo", is_flag=True, help="Keep a drive that is retiring.")
@_lost
@_json
def retire(drive: str, root: Path, node: str, undo: bool, lost: bool, as_json: bool) -> None:
    """Move a drive's objects to the node's other drives, so that you can remove it.

    A drive that no longer works is given up instead, and its objects are restored from the copies on other nodes.
    """
    from storage_node.ops import drive_commands

    one, that = drive_commands.find_drive(drive_commands.nodes_with_drives(absolute(root)), node, drive)
    name = that.path or that.uuid
    if undo:
        _show(one, drive_commands.reinstate(one, that), as_json=as_json, done=f"{name} stays a drive of {one.name}")
    elif drive_commands.works(that):
        _show(one, drive_commands.retire(one, that), as_json=as_json, done=f"{name} retires")
    else:
        _show(one, drive_commands.forget(one, that, lost=lost), as_json=as_json, done=f"{name} was given up")


@drive.command()
@click.argument("drive", metavar="DRIVE")
@_path
@_root
@_node
@_lost
@_json
def replace(drive: str, path: Path | None, root: Path, node: str, lost: bool, as_json: bool) -> None:
    """Replace a drive with a new one.

    If the old drive works, its objects move to the new one. If not, it is given up, and its objects are restored from
    the copies on other nodes. PATH is the new drive, DIR/NODE/DRIVE.  [default: where the old one was if that
    folder is empty now, or else the next DIR/NODE/drive-N]
    """
    from storage_node.ops import drive_commands
    from storage_node.ops.ray_head import ClusterError

    root = absolute(root)
    one, that = drive_commands.find_drive(drive_commands.nodes_with_drives(root), node, drive)
    if path is not None:
        folder = drive_commands.require_below(root, absolute(path))
    else:
        empty = not drive_commands.works(that) and that.path and _is_empty(Path(that.path))
        folder = drive_commands.require_below(root, Path(that.path)) if empty else drive_commands.new_folder(root, one)
    name = that.path or that.uuid
    if drive_commands.works(that):
        drive_commands.add(one, folder)
        done = f"{folder} takes the place of {name}, which retires"
        try:
            after = drive_commands.retire(one, that)
        except ClusterError as error:
            raise ClusterError(f"{folder} was added, but {error}") from error
    else:
        done = f"{folder} takes the place of {name}, which was given up"
        drive_commands.forget(one, that, lost=lost)
        try:
            after = drive_commands.add(one, folder)
        except ClusterError as error:
            raise ClusterError(f"{name} was given up, but {error}") from error
    _show(one, after, as_json=as_json, done=done)


@drive.command()
@click.argument("drive", metavar="DRIVE")
@_root
@_node
@_json
def disable(drive: str, root: Path, node: str, as_json: bool) -> None:
    """Stop using a drive until you enable it or the node restarts. Meanwhile it is not given up."""
    from storage_node.ops import drive_commands

    _that(root, node, drive, drive_commands.disable, as_json=as_json, done="is not used")


@drive.command()
@click.argument("drive", metavar="DRIVE")
@_path
@_root
@_node
@_json
def enable(drive: str, path: Path | None, root: Path, node: str, as_json: bool) -> None:
    """Use a drive again that was disabled, or that was missing when its node started.

    PATH is where it is now.  [default: where it was]
    """
    from storage_node.ops import drive_commands

    folder = drive_commands.require_below(absolute(root), absolute(path)) if path is not None else None
    _that(
        root,
        node,
        drive,
        lambda one, that: drive_commands.enable(one, that, folder),
        as_json=as_json,
        done="is used again",
    )


def _that(
    root: Path,
    node: str,
    drive: str,
    order: Callable[[NodeOfDrives, pb.DriveCondition], pb.ListDrivesResponse],
    *,
    as_json: bool,
    done: str,
) -> None:
    from storage_node.ops import drive_commands

    one, that = drive_commands.find_drive(drive_commands.nodes_with_drives(absolute(root)), node, drive)
    _show(one, order(one, that), as_json=as_json, done=f"{that.path or that.uuid} {done}")


def _show(node: NodeOfDrives, drives: pb.ListDrivesResponse, *, as_json: bool, done: str) -> None:
    from storage_node.ops import drive_commands

    after = drive_commands.NodeOfDrives(node.uuid, node.name, node.endpoint, drives)
    if as_json:
        click.echo(json.dumps(_described(after)))
        return
    note(printable(done))
    for known in drives.drive:
        click.echo(drive_line(drive_commands.described(known)))


def _described(node: NodeOfDrives) -> dict[str, Any]:
    from storage_node.ops import drive_commands

    drives = node.drives
    return {
        "id": node.uuid,
        "name": node.name,
        "endpoint": node.endpoint,
        "problem": node.problem,
        "drives": [drive_commands.described(known) for known in drives.drive] if drives is not None else [],
        "moving": drive_commands.moving(drives) if drives is not None else None,
    }


def _summary(node: NodeOfDrives) -> str:
    if node.drives is None:
        return printable(node.problem)
    parts = [count_text(len(node.drives.drive), "drive"), *moving_texts(_described(node)["moving"])]
    return ", ".join(parts)


def moving_texts(moving: dict[str, Any]) -> list[str]:
    """Describe the moves in progress inside a node, for people."""
    texts = []
    if moving["moving"]:
        texts.append(f"about {count_text(moving['objects_left'], 'object')} to be moved between drives")
    if moving["refilling"]:
        texts.append("restoring what was on a drive that was given up")
    return texts


def drive_line(drive: dict[str, Any]) -> str:
    """Describe one drive for people; `drive` comes from `drive_commands.described`."""
    parts = [f"{printable(drive['path'] or drive['uuid'])}: {drive['state']}"]
    if drive["size_bytes"]:
        free = f"{size_text(drive['free_bytes'])} free of {size_text(drive['size_bytes'])}"
        parts.append(free)
    if drive.get("busy_share") is not None:
        parts.append(f"device {drive['busy_share']:.0%} busy")
    if drive.get("io_errors"):
        parts.append(count_text(drive["io_errors"], "I/O error"))
    if drive.get("problem"):
        parts.append(printable(drive["problem"]))
    if drive.get("kept_because"):
        parts.append(f"kept: {printable(drive['kept_because'])}")
    elif drive.get("forgotten_in_s") is not None:
        parts.append(f"given up in {drive['forgotten_in_s']:.0f} s")
    return ", ".join(parts)


def absolute(path: Path) -> Path:
    return Path(os.path.abspath(path))


def _is_empty(folder: Path) -> bool:
    try:
        return next(folder.iterdir(), None) is None
    except FileNotFoundError:
        return True
    except OSError:
        return False
