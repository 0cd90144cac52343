"""Which nodes a host has, as its drives tell; the ports they keep."""

from __future__ import annotations

import itertools
import shutil
import socket
from pathlib import Path

import pytest

from ais_loader.errors import StoreFormatError
from storage_node.ops import node_file
from storage_node.ops.node_discovery import find_nodes, group_drives, make_nodes, plan_new_nodes, wipe_node
from storage_node.ops.node_file import NodeFile, free_port, is_free, usable_ports
from storage_node.store.drive.identity import DriveIdentity
from tests.table import table


def test_drives_are_grouped_by_the_store_they_belong_to_wherever_they_lie() -> None:
    a, b = "a" * 32, "b" * 32
    known = {
        Path("/r/two/y"): DriveIdentity("3" * 32, a),
        Path("/r/one/x"): DriveIdentity("1" * 32, a),
        Path("/r/one/z"): DriveIdentity("2" * 32, b),
    }
    first, second = group_drives(known)
    assert (first.uuid, first.drives, first.name) == (a, (Path("/r/one/x"), Path("/r/two/y")), "one")
    assert (second.uuid, second.drives) == (b, (Path("/r/one/z"),))


def test_new_nodes_get_the_first_free_names() -> None:
    planned = plan_new_nodes(Path("/r"), ["node-2", "other"], nodes=2, drives_per_node=2)
    assert planned == [
        (Path("/r/node-1/drive-1"), Path("/r/node-1/drive-2")),
        (Path("/r/node-3/drive-1"), Path("/r/node-3/drive-2")),
    ]


@pytest.mark.parametrize(("nodes", "drives"), [(-1, 1), (1, 0)])
def test_a_plan_that_makes_no_sense_is_refused(nodes: int, drives: int) -> None:
    with pytest.raises(ValueError, match="need at least"):
        plan_new_nodes(Path("/r"), [], nodes, drives)


def test_a_root_that_is_not_there_has_no_nodes_and_no_problems(tmp_path: Path) -> None:
    found = find_nodes(tmp_path / "nowhere")
    assert (found.nodes, found.removed, found.absent, found.problems) == ((), (), (), ())


def test_nodes_that_were_made_are_found_again_after_their_folders_were_renamed(tmp_path: Path) -> None:
    made = make_nodes(tmp_path, 2, 2)
    assert [node.name for node in made] == ["node-1", "node-2"]
    (tmp_path / "node-1").rename(tmp_path / "left")
    (tmp_path / "node-2" / "drive-2").rename(tmp_path / "left" / "also")
    nodes = {node.uuid: node for node in find_nodes(tmp_path).nodes}
    assert nodes.keys() == {node.uuid for node in made}
    assert nodes[made[1].uuid].drives == (tmp_path / "left" / "also", tmp_path / "node-2" / "drive-1")
    assert nodes[made[0].uuid].drives == (tmp_path / "left" / "drive-1", tmp_path / "left" / "drive-2")


def test_more_nodes_are_made_beside_those_that_are_there(tmp_path: Path) -> None:
    first = make_nodes(tmp_path, 1, 1)
    second = make_nodes(tmp_path, 1, 1)
    assert [node.name for node in find_nodes(tmp_path).nodes] == ["node-1", "node-2"]
    assert first[0].uuid != second[0].uuid


def test_a_node_whose_drives_are_not_mounted_is_absent_and_its_folder_is_not_given_away(tmp_path: Path) -> None:
    (node,) = make_nodes(tmp_path, 1, 1)
    node_file.write(node.folder, NodeFile(node.uuid, "127.0.0.1:7480"))
    shutil.rmtree(node.drives[0])
    found = find_nodes(tmp_path)
    assert (found.nodes, found.absent) == ((), (node.uuid,))
    (other,) = make_nodes(tmp_path, 1, 1)
    assert other.name == "node-2"


def test_a_removed_node_is_not_started_again(tmp_path: Path) -> None:
    stays, goes = make_nodes(tmp_path, 2, 1)
    node_file.write(goes.folder, NodeFile(goes.uuid, removed=True))
    found = find_nodes(tmp_path)
    assert (found.nodes, found.removed) == ((stays,), (goes,))


def test_a_damaged_identity_is_a_problem_and_foreign_folders_are_none(tmp_path: Path) -> None:
    (node,) = make_nodes(tmp_path, 1, 2)
    (node.drives[0] / "drive.json").write_bytes(b"{")
    (tmp_path / "photos" / "2024").mkdir(parents=True)
    (tmp_path / "photos" / "2024" / "a.jpg").write_bytes(b"jpg")
    (tmp_path / ".cluster" / "x").mkdir(parents=True)
    found = find_nodes(tmp_path)
    assert [node.drives for node in found.nodes] == [(node.drives[1],)]
    (problem,) = found.problems
    assert str(node.drives[0]) in problem and "doctor --rebuild" in problem


def test_new_nodes_do_not_take_folders_with_other_things_in_them(tmp_path: Path) -> None:
    (tmp_path / "node-1" / "drive-1").mkdir(parents=True)
    (tmp_path / "node-1" / "drive-1" / "thesis.pdf").write_bytes(b"pdf")
    with pytest.raises(StoreFormatError, match="not empty"):
        make_nodes(tmp_path, 1, 1)


@table("damaged", [b"", b"[]", b'{"uuid": 1}', b"\xff"])
def test_a_node_file_that_makes_no_sense_counts_as_none(tmp_path: Path, damaged: bytes) -> None:
    node_file.write(tmp_path, NodeFile("a" * 32, "10.0.0.5:7480"))
    assert node_file.read(tmp_path) == NodeFile("a" * 32, "10.0.0.5:7480")
    (tmp_path / node_file.FILE_NAME).write_bytes(damaged)
    assert node_file.read(tmp_path) is None


def test_ports_of_nodes_keep_out_of_the_way_of_the_kernel_and_of_ray() -> None:
    ports = set(usable_ports())
    assert max(ports) < 32_768
    assert not ports & {8265, 6379, *range(10_002, 20_000)}
    assert len(ports) > 10_000


def test_a_port_that_is_listened_on_is_not_given_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        taken = listening.getsockname()[1]
        assert not is_free("127.0.0.1", taken)
        port = free_port("127.0.0.1", avoid={taken + 1}, among=range(taken, 65_536))
        assert port > taken + 1
        with pytest.raises(OSError, match="no port"):
            free_port("127.0.0.1", among=[taken])


class Killed(BaseException):
    pass


def test_emptying_a_node_may_be_killed_at_any_step_and_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove_tree, unlink = shutil.rmtree, Path.unlink
    done = die_at = 0

    def step() -> None:
        nonlocal done
        done += 1
        if done == die_at:
            raise Killed

    def rmtree_or_die(path: Path) -> None:
        step()
        remove_tree(path)

    def unlink_or_die(path: Path, missing_ok: bool = False) -> None:
        step()
        unlink(path, missing_ok)

    for die_at in itertools.count(1):
        root, done = tmp_path / f"{die_at}", 0
        (node,) = make_nodes(root, 1, 2)
        with monkeypatch.context() as patched:
            patched.setattr(shutil, "rmtree", rmtree_or_die)
            patched.setattr(Path, "unlink", unlink_or_die)
            try:
                made = wipe_node(node)
            except Killed:
                pass
            else:
                break
        found = find_nodes(root)
        if found.removed:  # otherwise only the old node's file was left
            assert found.nodes == () and [one.uuid for one in found.removed] == [node.uuid]
            wipe_node(found.removed[0])
        (made,) = find_nodes(root).nodes
        assert made.drives == node.drives and made.uuid != node.uuid
    assert made.drives == node.drives and die_at > 8
