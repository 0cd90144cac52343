"""What is decided before anything is started, and the commands where no Ray is needed."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ais_loader.cli import main
from ais_loader.testing import NodeProcess
from ais_loader.wire.generated import ais_cluster_pb2 as pb
from ais_loader.wire.generated import ais_objects_pb2 as objects_pb
from ais_loader.wire.generated.ais_replica_pb2 import ProgressResponse as Progress
from storage_node.cluster.consensus.change import change_map
from storage_node.cluster.consensus.errors import NoMajority
from storage_node.cluster.map.mutations import create_cluster
from storage_node.ops import commands, node_file, node_log, peer_secret, ray_head
from storage_node.ops.ask_nodes import NodeAnswer
from storage_node.ops.commands import first_nodes, nodes_of
from storage_node.ops.decommission import not_done
from storage_node.ops.node_discovery import FoundNodes, NodeDrives, make_nodes
from storage_node.ops.node_file import NodeFile, free_port
from storage_node.ops.ray_actors import Host, Started
from storage_node.ops.ray_head import ClusterError, RayHead
from storage_node.security.identity.identity_folder import IdentityFolder
from tests.table import table


def hosts(*found: FoundNodes) -> list[Host]:
    return [Host(f"10.0.0.{number}", f"host-{number}", one) for number, one in enumerate(found, 1)]


def status(root: Path) -> tuple[int, Any]:
    result: Result = CliRunner().invoke(main, ["cluster", "status", "--root", str(root), "--json"])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    return result.exit_code, json.loads(result.stdout)


def test_first_nodes_are_spread_over_the_hosts() -> None:
    three = hosts(FoundNodes(), FoundNodes(), FoundNodes())
    assert first_nodes(three, None) == {"10.0.0.1": 1, "10.0.0.2": 1, "10.0.0.3": 1}
    assert first_nodes(three, 5) == {"10.0.0.1": 2, "10.0.0.2": 2, "10.0.0.3": 1}
    assert first_nodes(three, 2) == {"10.0.0.1": 1, "10.0.0.2": 1}


@pytest.mark.parametrize("found", [FoundNodes(absent=("a" * 32,)), FoundNodes(problems=("/r/n/d: damaged",))])
def test_nothing_is_made_where_nodes_have_been(found: FoundNodes) -> None:
    with pytest.raises(ClusterError, match="nothing was made"):
        first_nodes(hosts(FoundNodes(), found), 2)


def test_a_node_that_several_hosts_see_belongs_to_the_first_one() -> None:
    shared = NodeDrives("a" * 32, (Path("/nfs/node-1/drive-1"),))
    own = NodeDrives("b" * 32, (Path("/nfs/node-2/drive-1"),))
    one, two = hosts(FoundNodes(nodes=(shared,)), FoundNodes(nodes=(shared, own)))
    assert nodes_of([one, two]) == {shared.uuid: (shared, one), own.uuid: (own, two)}


def test_status_of_a_root_without_nodes_is_that_there_is_no_cluster(tmp_path: Path) -> None:
    code, said = status(tmp_path / "nowhere")
    assert code == 1
    assert (said["answers"], said["nodes"], said["ray"], said["map_version"]) == (False, [], None, 0)


@pytest.mark.parametrize("command", [["down"], ["remove", "node-1"]])
def test_ending_what_never_was_leaves_nothing_behind(tmp_path: Path, command: list[str]) -> None:
    result = CliRunner().invoke(main, ["cluster", *command, "--root", str(tmp_path)])
    assert result.exit_code == (0 if command == ["down"] else 1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_status_needs_no_ray_and_remembers_the_map_when_nodes_are_down(tmp_path: Path) -> None:
    (made,) = make_nodes(tmp_path, 1, 1)
    peer_secret.make(tmp_path)
    arguments = ["--set", f"peer_secret_file={peer_secret.path_of(tmp_path)}"]
    with NodeProcess(made.drives, arguments=arguments) as node:
        endpoint = node.url.removeprefix("grpc://")
        node_file.write(made.folder, NodeFile(made.uuid, endpoint))
        member = pb.MapNode(
            uuid=bytes.fromhex(made.uuid), host="here", endpoint=endpoint, peer_endpoint=node.peer_endpoint
        )
        change_map([endpoint], create_cluster([member]), caller=peer_secret.operator(tmp_path))
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


@pytest.mark.slow
@pytest.mark.parametrize("command", ["up", "down", "add"])
def test_nodes_that_another_ray_runs_are_not_started_a_second_time(tmp_path: Path, command: str) -> None:
    (made,) = make_nodes(tmp_path, 1, 1)
    with NodeProcess(made.drives) as node:
        node_file.write(made.folder, NodeFile(made.uuid, node.url.removeprefix("grpc://")))
        result = CliRunner().invoke(main, ["cluster", command, "--root", str(tmp_path)])
        assert result.exit_code == 1
        assert f"serve at 127.0.0.1:{node.port}" in result.stderr and "--address auto" in result.stderr
        assert ray_head.remembered(tmp_path) is None


WRONG: list[tuple[list[str], int, str]] = [
    (["up", "--root", "{root}/new", "--nodes", "0"], 2, "'--nodes': 0 is not in the range x>=1"),
    (["up", "--root", "{root}/new", "--set", "memory_byte=1"], 2, "did you mean memory_bytes?"),
    (["up", "--root", "{root}/new", "--set", "port=7480"], 2, "nodes of a cluster choose it by themselves"),
    (["up", "--root", "{root}/new", "--config", "{root}/none.toml"], 2, "does not exist"),
    (["up", "--root", "{root}/file"], 2, "is a file"),
    (["up", "--root", "{root}/file/below"], 1, "no nodes can be below {root}/file/below: Not a directory"),
    (["up", "--root", "/proc/nothing"], 1, "no nodes can be below /proc/nothing: No such file or directory"),
    (["add", "--root", "{root}/new"], 1, "no nodes below {root}/new; `cluster up` makes the first"),
    (["remove", "node-1", "--root", "{root}/new"], 1, "no nodes below {root}/new"),
    (["remove", "", "--root", "{root}/new"], 2, "a node's name cannot be empty"),
    (["logs", "node-1", "--root", "{root}/new"], 1, "no node node-1 below {root}/new; there are: none"),
    (["down", "--root", "{root}/new"], 0, "no nodes of {root}/new were running"),
    (["status", "--root", "{root}/new"], 1, "no cluster below {root}/new; `ais-loader cluster up` makes one"),
]


def test_the_tilde_of_a_root_is_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for command in (["status"], ["drive", "list"]):
        result = CliRunner().invoke(main, ["cluster", *command, "--root=~/new"])
        assert (result.exit_code, f"below {tmp_path}/new" in result.output) == (1, True)


@pytest.mark.slow
@table(("arguments", "code", "said"), WRONG, ids=[" ".join(one[0]) for one in WRONG])
def test_what_cannot_be_done_is_said_at_once_and_leaves_nothing(
    tmp_path: Path, arguments: list[str], code: int, said: str
) -> None:
    (tmp_path / "file").write_bytes(b"")
    result = CliRunner().invoke(main, ["cluster", *(one.format(root=tmp_path) for one in arguments)])
    assert result.exit_code == code, result.output
    assert said.format(root=tmp_path) in " ".join(result.output.split())
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_logs_are_those_of_the_node_that_is_named(tmp_path: Path) -> None:
    one, two = make_nodes(tmp_path, 2, 1)
    runner = CliRunner()
    unsaid = runner.invoke(main, ["cluster", "logs", "node-1", "--root", str(tmp_path)])
    assert unsaid.exit_code == 1 and "node-1 has logged nothing yet" in unsaid.stderr
    for node, text in ((one, "of one\n"), (two, "first\nsecond\nthird\n")):
        path = node_log.path_of(tmp_path, node.uuid)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    path.with_name(f"{path.name}.1").write_text("before\n")
    for name in ("node-2", two.uuid[:12]):
        said = runner.invoke(main, ["cluster", "logs", name, "--root", str(tmp_path), "--lines", "4"])
        assert (said.exit_code, said.stdout) == (0, "before\nfirst\nsecond\nthird\n")
    last = runner.invoke(main, ["cluster", "logs", "node-2", "--root", str(tmp_path), "--lines", "1"])
    assert last.stdout == "third\n"


def test_a_map_that_cannot_be_changed_for_now_does_not_hide_how_the_nodes_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A node moved, and too few others can vote: it says so itself later. One that is to join has to be told about."""
    nodes = [NodeDrives(letter * 32, (tmp_path / f"node-{letter}" / "d",)) for letter in "ab"]
    known = pb.ClusterMap(version=3, node=[pb.MapNode(uuid=bytes.fromhex(nodes[0].uuid), endpoint="h:1", host="host")])
    started = [Started(node, hosts(FoundNodes())[0], None) for node in nodes]
    statuses = {
        node.uuid: {"name": node.name, "endpoint": f"h:{at}", "peer_endpoint": f"h:{at + 100}"}
        for at, node in enumerate(nodes, 7)
    }

    def refuse(*_: object, **__: object) -> pb.ClusterMap:
        raise NoMajority("fewer than a majority of the 3 nodes promised")

    monkeypatch.setattr(commands, "change_map", refuse)
    monkeypatch.setattr(commands, "ask_nodes", lambda *_: {"h:7": NodeAnswer("h:7", "x", known)})
    plan, notes = commands.ClusterPlan(root=tmp_path), list[str]()
    assert commands._agree(plan, started[:1], statuses, notes) == known
    assert notes == [
        "the map does not say yet that node-a is at h:7: fewer than a majority of the 3 nodes promised. It tries on"
    ]
    with pytest.raises(ClusterError, match="node-b serves, and cannot join: fewer than a majority"):
        commands._agree(plan, started, statuses, notes)


def test_who_holds_a_change_of_the_map_up_is_named() -> None:
    uuids = [bytes([number]) * 16 for number in range(4)]
    map_ = pb.ClusterMap(version=7, node=[pb.MapNode(uuid=one, endpoint=f"h:{at}") for at, one in enumerate(uuids)])
    drive = objects_pb.Drive(path="/r/node-2/drive-1", state="missing")
    answers = {
        "h:0": NodeAnswer("h:0", "x", map_, objects_pb.DescribeResponse(), progress=Progress(clean_version=7)),
        "h:1": NodeAnswer("h:1", "x", map_, objects_pb.DescribeResponse(), progress=Progress(clean_version=6)),
        "h:2": NodeAnswer(
            "h:2", "x", map_, objects_pb.DescribeResponse(drive=[drive]), progress=Progress(clean_version=6)
        ),
        "h:3": NodeAnswer("h:3", problem="unavailable"),
    }
    assert list(not_done(map_, {uuids[1].hex(): "node-1", uuids[2].hex(): "node-2"}, answers)) == [
        "node-1 compares its objects with the others'",
        "node-2 lacks /r/node-2/drive-1",
        "h:3 does not answer, and may have what others lack",
    ]


@pytest.mark.slow
def test_ending_a_ray_never_ends_another_session_of_that_number(tmp_path: Path) -> None:
    """The file remembers a Ray of an earlier life, whose session's number somebody else has now."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True) as other:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        for ticks, life in ((1, boot), (1, "another-life")):
            folder = tmp_path / ray_head.FOLDER_NAME
            folder.mkdir(exist_ok=True)
            head = RayHead("127.0.0.1:1", "", str(tmp_path / "temporary"), other.pid, ticks, life)
            fields = {name: getattr(head, name) for name in RayHead.__dataclass_fields__}
            (folder / "ray.json").write_text(json.dumps(fields))
            assert ray_head.remembered(tmp_path) == head
            assert ray_head.end(tmp_path) == 0
            assert ray_head.remembered(tmp_path) is None
        assert other.poll() is None
        other.communicate(b"\n", timeout=180)
    assert other.returncode == 0


@pytest.mark.slow
def test_a_ray_does_not_answer_where_another_process_listens(tmp_path: Path) -> None:
    """Two that are started in the same moment may choose the same port; one of them gets it."""
    listen = (
        "import socket; kept = socket.create_server(('127.0.0.1', 0))\n"
        "print(kept.getsockname()[1], flush=True); input()"
    )
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    with (
        socket.create_server(("127.0.0.1", 0)) as ours,
        subprocess.Popen(
            [sys.executable, "-c", listen],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        ) as other,
    ):
        assert other.stdout is not None
        port = int(other.stdout.readline())
        ticks = int(Path(f"/proc/{other.pid}/stat").read_text().rpartition(")")[2].split()[19])

        def head(port: int) -> RayHead:
            return RayHead(f"127.0.0.1:{port}", "", str(tmp_path), other.pid, ticks, boot)

        assert head(port).answers()
        assert not head(ours.getsockname()[1]).answers()
        assert not head(free_port("127.0.0.1")).answers()
        other.communicate(b"\n", timeout=180)
    assert not head(port).answers()


@pytest.mark.slow
def test_describing_the_commands_loads_neither_ray_nor_the_store() -> None:
    code = (
        "import sys; from ais_loader.cli import main\n"
        "try: main(['cluster', 'up', '--help'])\n"
        "except SystemExit as end: assert not end.code\n"
        "print([name for name in ('ray', 'grpc', 'rocksdict', 'storage_node.store', 'torch') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=180, check=True, env=dict(os.environ)
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_up_does_not_take_back_a_node_that_was_taken_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its host was down when it was taken out: nothing beside its drives says so."""
    one, other = (NodeDrives(letter * 32, (tmp_path / f"node-{letter}" / "d",)) for letter in "ab")
    known = pb.ClusterMap(version=3, removed=[bytes.fromhex(other.uuid)])
    known.node.add(uuid=bytes.fromhex(one.uuid), endpoint="h:7", peer_endpoint="h:107", host="host")
    started = [Started(node, hosts(FoundNodes())[0], None) for node in (one, other)]
    statuses = {
        node.uuid: {"name": node.name, "endpoint": f"h:{at}", "peer_endpoint": f"h:{at + 100}"}
        for at, node in enumerate((one, other), 7)
    }
    monkeypatch.setattr(commands, "ask_nodes", lambda *_: {"h:7": NodeAnswer("h:7", "x", known)})
    plan, notes = commands.ClusterPlan(root=tmp_path), list[str]()
    assert commands._agree(plan, started, statuses, notes) == known
    (note,) = notes
    assert "node-b was taken out of the cluster" in note and "`cluster add --wipe node-b`" in note


def test_only_what_is_no_node_of_the_cluster_is_wiped(tmp_path: Path) -> None:
    one, gone, stranger = (NodeDrives(letter * 32, (tmp_path / f"node-{letter}" / "d",)) for letter in "abc")
    known = pb.ClusterMap(version=3, node=[pb.MapNode(uuid=bytes.fromhex(one.uuid))])
    there = hosts(FoundNodes(nodes=(one, stranger), removed=(gone,)))
    assert commands.node_to_wipe(there, "node-b", known)[0] == gone
    assert commands.node_to_wipe(there, "ccc", known)[0] == stranger
    with pytest.raises(ClusterError, match="node-a is a node of the cluster: take it out with `cluster remove` first"):
        commands.node_to_wipe(there, "node-a", known)
    with pytest.raises(ClusterError, match="node-x names 0 nodes with drives; there are: node-a, node-b, node-c"):
        commands.node_to_wipe(there, "node-x", known)


def test_nodes_listen_beyond_loopback_only_where_that_was_said(tmp_path: Path) -> None:
    here, there = Host("127.0.0.1", "box", FoundNodes()), Host("10.0.0.5", "box", FoundNodes())
    commands._require_loopback(commands.ClusterPlan(root=tmp_path), [here])
    for plan, at in (
        (commands.ClusterPlan(root=tmp_path), [here, there]),
        (commands.ClusterPlan(root=tmp_path, settings={"peer_host": "0.0.0.0"}), [here]),
        (commands.ClusterPlan(root=tmp_path, settings={"nodes": {"node-1": {"peer_host": "box"}}}), [here]),
    ):
        with pytest.raises(commands.BeyondLoopback, match=r"nodes would listen at (10\.0\.0\.5|0\.0\.0\.0|box)"):
            commands._require_loopback(plan, at)
        commands._require_loopback(replace(plan, insecure=True), at)
        assert not (tmp_path / ".cluster").exists()


def test_nodes_with_tls_listen_beyond_loopback_and_their_metrics_only_where_that_was_said(tmp_path: Path) -> None:
    there = Host("10.0.0.5", "box", FoundNodes())
    secure = commands.ClusterPlan(root=tmp_path, secure=True)
    measured = replace(secure, settings={"metrics_port": 9480})
    commands._require_loopback(secure, [there])
    IdentityFolder(tmp_path / ".cluster" / "identity").make()
    commands._require_loopback(commands.ClusterPlan(root=tmp_path), [there])  # its CA exists
    with pytest.raises(commands.MetricsBeyondLoopback, match=r"metrics have no TLS.*10\.0\.0\.5"):
        commands._require_loopback(measured, [there])
    commands._require_loopback(replace(measured, insecure=True), [there])


def test_tls_on_the_ray_of_others_needs_trust_in_it(tmp_path: Path) -> None:
    words = ["cluster", "up", "--root", str(tmp_path), "--address", "auto", "--secure"]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 2 and "--trust-ray" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_without_insecure_a_command_that_would_listen_on_a_network_is_a_usage_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(*_: object) -> None:
        raise commands.BeyondLoopback("nodes would listen at 10.0.0.5")

    for command in ("up", "add"):
        monkeypatch.setattr(commands, command, refuse)
        result = CliRunner().invoke(main, ["cluster", command, "--root", str(tmp_path), "--address", "auto"])
        assert result.exit_code == 2
        said = " ".join(result.stderr.split())
        assert "nodes would listen at 10.0.0.5, and there is no authentication" in said and "--insecure" in said
