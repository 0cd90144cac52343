"""What is decided before anything is started, and the commands where no Ray is needed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ais_loader.cli import main
from ais_loader.testing import NodeProcess
from protos import ais_cluster_pb2 as pb
from storage_node.cluster import head as heads
from storage_node.cluster import node_file
from storage_node.cluster.change import change_map
from storage_node.cluster.drives import Found, NodeDrives, make_nodes
from storage_node.cluster.edits import create_cluster
from storage_node.cluster.head import ClusterError, Head
from storage_node.cluster.launch import Host
from storage_node.cluster.node_file import NodeFile
from storage_node.cluster.operate import first_nodes, nodes_of


def hosts(*found: Found) -> list[Host]:
    return [Host(f"10.0.0.{number}", f"host-{number}", one) for number, one in enumerate(found, 1)]


def status(root: Path) -> tuple[int, Any]:
    result: Result = CliRunner().invoke(main, ["cluster", "status", "--root", str(root), "--json"])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    return result.exit_code, json.loads(result.stdout)


def test_first_nodes_are_spread_over_the_hosts() -> None:
    three = hosts(Found(), Found(), Found())
    assert first_nodes(three, None) == {"10.0.0.1": 1, "10.0.0.2": 1, "10.0.0.3": 1}
    assert first_nodes(three, 5) == {"10.0.0.1": 2, "10.0.0.2": 2, "10.0.0.3": 1}
    assert first_nodes(three, 2) == {"10.0.0.1": 1, "10.0.0.2": 1}


@pytest.mark.parametrize("found", [Found(absent=("a" * 32,)), Found(problems=("/r/n/d: damaged",))])
def test_nothing_is_made_where_nodes_have_been(found: Found) -> None:
    with pytest.raises(ClusterError, match="nothing was made"):
        first_nodes(hosts(Found(), found), 2)


def test_a_node_that_several_hosts_see_belongs_to_the_first_one() -> None:
    shared = NodeDrives("a" * 32, (Path("/nfs/node-1/drive-1"),))
    own = NodeDrives("b" * 32, (Path("/nfs/node-2/drive-1"),))
    one, two = hosts(Found(nodes=(shared,)), Found(nodes=(shared, own)))
    assert nodes_of([one, two]) == {shared.uuid: (shared, one), own.uuid: (own, two)}


def test_status_of_a_root_without_nodes_is_that_there_is_no_cluster(tmp_path: Path) -> None:
    code, said = status(tmp_path / "nowhere")
    assert code == 1
    assert (said["answers"], said["nodes"], said["ray"], said["map_version"]) == (False, [], None, 0)


def test_status_needs_no_ray_and_remembers_the_map_when_nodes_are_down(tmp_path: Path) -> None:
    (made,) = make_nodes(tmp_path, 1, 1)
    with NodeProcess(made.drives) as node:
        endpoint = node.url.removeprefix("grpc://")
        node_file.write(made.folder, NodeFile(made.uuid, endpoint))
        member = pb.MapNode(uuid=bytes.fromhex(made.uuid), host="here", endpoint=endpoint)
        change_map([endpoint], create_cluster([member]))
        code, said = status(tmp_path)
        assert (code, said["answers"], said["url"]) == (0, True, node.url)
        (shown,) = said["nodes"]
        assert (shown["id"], shown["state"], shown["member"], shown["pid"]) == (
            made.uuid,
            "serving",
            "active",
            node.pid,
        )
    code, said = status(tmp_path)
    assert (code, said["answers"], said["url"], said["map_version"]) == (1, False, f"grpc://{endpoint}", 1)
    (shown,) = said["nodes"]
    assert (shown["state"], shown["pid"], shown["member"]) == ("down", 0, "active")
    assert [drive["path"] for drive in shown["drives"]] == [str(made.drives[0])]


def test_ending_a_ray_never_ends_another_session_of_that_number(tmp_path: Path) -> None:
    """The file remembers a Ray of an earlier life, whose session's number somebody else has now."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True) as other:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        for ticks, life in ((1, boot), (1, "another-life")):
            folder = tmp_path / heads.FOLDER_NAME
            folder.mkdir(exist_ok=True)
            head = Head("127.0.0.1:1", "", str(tmp_path / "temporary"), other.pid, ticks, life)
            fields = {name: getattr(head, name) for name in Head.__dataclass_fields__}
            (folder / "ray.json").write_text(json.dumps(fields))
            assert heads.remembered(tmp_path) == head
            assert heads.end(tmp_path) == 0
            assert heads.remembered(tmp_path) is None
        assert other.poll() is None
        other.communicate(b"\n", timeout=20)
    assert other.returncode == 0


def test_describing_the_commands_loads_neither_ray_nor_the_store() -> None:
    code = (
        "import sys; from ais_loader.cli import main\n"
        "try: main(['cluster', 'up', '--help'])\n"
        "except SystemExit as end: assert not end.code\n"
        "print(sorted({name.partition('.')[0] for name in sys.modules} & {'ray', 'grpc', 'storage_node', 'torch'}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True, env=dict(os.environ)
    )
    assert done.stdout.splitlines()[-1] == "[]"
