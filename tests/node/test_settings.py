"""Settings as an operator writes them: units, names, ranges, and what is said about wrong ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage_node.settings.config import ServerConfig
from storage_node.settings.declarations import SETTINGS
from storage_node.settings.sources import (
    WrongSetting,
    configured,
    for_node,
    merged,
    read_assignments,
    read_file,
    require_cluster,
    require_nodes,
)
from tests.table import table

FILE = """
memory_bytes = "512 MiB"
peer_timeout_s = "500 ms"
read_threads = 8
reject_retry_after_ms = "2 s"
durability = "power"
metrics_port = "none"

[tenant_weights]
asr-team = 2
"a.b" = 0.5

[nodes.node-2]
memory_bytes = 1000
advertise = "proxy.example.org:17480"
"""


def test_a_file_sets_fields_in_their_own_units(tmp_path: Path) -> None:
    path = tmp_path / "settings.toml"
    path.write_text(FILE)
    settings = read_file(path)
    config = configured(ServerConfig(), for_node(settings, "node-1"))
    assert (config.reads.memory_bytes, config.reads.peer_timeout_s, config.reads.read_threads) == (512 << 20, 0.5, 8)
    assert (config.limits.reject_retry_after_ms, config.store.durability, config.listen.metrics_port) == (
        2000,
        "power",
        None,
    )
    assert config.limits.tenant_weights == {"asr-team": 2.0, "a.b": 0.5}
    other = configured(ServerConfig(), for_node(settings, "node-2", "0" * 32))
    assert (other.reads.memory_bytes, other.endpoint(7480)) == (1000, "proxy.example.org:17480")
    assert other.limits.tenant_weights == config.limits.tenant_weights


def test_the_example_of_the_documentation_is_right(tmp_path: Path) -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "settings.md").read_text()
    path = tmp_path / "cluster.toml"
    path.write_text(text.partition("```toml\n")[2].partition("```")[0])
    settings = read_file(path)
    require_cluster(settings)
    config = configured(ServerConfig(), for_node(settings, "node-2"))
    assert (config.reads.memory_bytes, config.store.durability, config.reads.peer_timeout_s) == (2 << 30, "power", 5.0)
    assert (config.endpoint(7480), config.limits.tenant_weights) == ("proxy.example.org:17480", {"asr-team": 2.0})


def test_every_field_can_be_set() -> None:
    """By the text in which it is shown: what status says may be given to another node."""
    shown = ServerConfig(tenant_weights={}).as_text()
    for name, text in shown.items():
        if text:
            assert configured(ServerConfig(), read_assignments([f"{name}={text}"])) == ServerConfig()
    assert set(SETTINGS) - set(shown) == {
        "host",
        "port",
        "lane_port",
        "advertise",
        "metrics_port",
        "peer_host",
        "peer_port",
        "peer_lane_port",
        "peer_advertise",
        "token_key_file",
        "peer_secret_file",
        "cert_file",
        "key_file",
        "ca_file",
        "gateway_port",
        "gateway_keys_file",
        "gateway_processes",
        "gateway_metrics_port",
        "gateway_access_log",
    }


@table(
    ("text", "value"),
    [("512MiB", 512 << 20), ("512 mib", 512 << 20), ("1.5KB", 1500), ("1e3", 1000), ("7", 7), ("2GiB", 2 << 30)],
)
def test_sizes_have_units(text: str, value: int) -> None:
    assert read_assignments([f"memory_bytes={text}"]) == {"memory_bytes": value}


@table(
    ("wrong", "said"),
    [
        ("memory_byte=3", "memory_byte: no such setting; did you mean memory_bytes?"),
        ("memory_bytes", "need NAME=VALUE"),
        ("memory_bytes=", "need NAME=VALUE"),
        ("memory_bytes=5 apples", "'5 apples': need a number of bytes, or a size as in '512 MiB'"),
        ("memory_bytes=512 MiB/s", "need a number of bytes"),
        ("memory_bytes=1.2.3", "need a number of bytes"),
        ("memory_bytes=0", "need at least 1"),
        ("memory_bytes=1.5", "need a whole number"),
        ("memory_bytes=true", "need a number of bytes"),
        ("max_throttle_s=1 MiB", "need seconds, or a time as in '500 ms'"),
        ("max_throttle_s=inf", "at least 0"),
        ("read_threads=4 s", "need a number"),
        ("durability=maybe", "need 'process' or 'power'"),
        ("port=99999", "need 0 to 65535"),
        ("tenant_weights=3", "tenant_weights.team-a=2"),
        ("tenant_weights.a=-1", "need 0.000001 to 1000000"),
        ("advertise=grpc://proxy:7480", "need HOST or HOST:PORT"),
        ("advertise=proxy:0", "need HOST or HOST:PORT"),
        ("nodes=4", "need a table for each node"),
        ("nodes.node-1.memory_byte=4", "nodes.node-1.memory_byte: no such setting; did you mean memory_bytes?"),
        ("nodes.node-1.memory_bytes=0", "nodes.node-1.memory_bytes=0: need at least 1"),
        ("a b=4", "is no name of a setting"),
    ],
)
def test_what_is_wrong_is_said(wrong: str, said: str) -> None:
    with pytest.raises(WrongSetting) as error:
        read_assignments([wrong])
    assert said in str(error.value) and "\n" not in str(error.value)


def test_a_file_that_is_no_toml_is_named_with_the_place(tmp_path: Path) -> None:
    path = tmp_path / "settings.toml"
    path.write_text("memory_bytes = 512 MiB\n")
    with pytest.raises(WrongSetting, match=r"settings\.toml is not TOML: .*line 1"):
        read_file(path)
    path.write_text("[tenant_weights]\nteam = 'much'\n")
    with pytest.raises(WrongSetting, match=r"settings\.toml: tenant_weights\.team = 'much': need a number"):
        read_file(path)


def test_settings_change_one_by_one_and_go_back_to_the_default() -> None:
    kept = read_assignments(["memory_bytes=1MiB", "tenant_weights.a=2", "tenant_weights.b=3", "nodes.n.read_threads=2"])
    changed = merged(kept, read_assignments(["tenant_weights.a=default", "nodes.n.read_threads=default", "port=1"]))
    assert changed == {"memory_bytes": 1 << 20, "tenant_weights": {"b": 3.0}, "port": 1}
    assert merged(changed, {"tenant_weights": "default", "memory_bytes": "default", "port": "default"}) == {}


def test_what_nodes_of_a_cluster_choose_by_themselves_is_not_set_for_them() -> None:
    require_cluster(read_assignments(["nodes.node-1.advertise=proxy:7480", "metrics_port=9480"]))
    for wrong in ("port=7480", "host=0.0.0.0", "nodes.node-1.port=7480", "advertise=proxy", "idle_exit_s=60"):
        with pytest.raises(WrongSetting, match=wrong.partition("=")[0]):
            require_cluster(read_assignments([wrong]))


def test_a_node_that_there_is_not_has_no_settings() -> None:
    require_nodes(read_assignments(["nodes.node-1.read_threads=1"]), ["node-1", "a" * 32])
    with pytest.raises(WrongSetting, match=r"nodes\.nod-1: no such node; did you mean node-1\?; there are node-1"):
        require_nodes(read_assignments(["nodes.nod-1.read_threads=1"]), ["node-1", "a" * 32])


def test_settings_of_another_version_are_said_to_be_unknown() -> None:
    with pytest.raises(WrongSetting, match="memory_gone: no such setting"):
        configured(ServerConfig(), {"memory_gone": 3})


@table(
    ("host", "advertise", "endpoint"),
    [
        ("127.0.0.1", "", "127.0.0.1:7480"),
        ("0.0.0.0", "", ""),
        ("0.0.0.0", "box", "box:7480"),
        ("0.0.0.0", "proxy:80", "proxy:80"),
        ("[::1]", "", "[::1]:7480"),
        ("0.0.0.0", "fe80::1", "[fe80::1]:7480"),
        ("0.0.0.0", "[fe80::1]", "[fe80::1]:7480"),
        ("0.0.0.0", "[fe80::1]:80", "[fe80::1]:80"),
    ],
)
def test_where_others_reach_a_node(host: str, advertise: str, endpoint: str) -> None:
    assert ServerConfig(host=host, advertise=advertise).endpoint(7480) == endpoint


def test_what_archives_may_hold_is_a_setting_with_units_and_a_range() -> None:
    config = configured(ServerConfig(), read_assignments(["shard_copy_bytes=512MiB", "open_shards=7"]))
    assert (config.store.open_shards, config.store.shard_copy_bytes) == (7, 512 << 20)
    assert (config.as_text()["open_shards"], config.as_text()["shard_copy_bytes"]) == ("7", str(512 << 20))
    for wrong in ("open_shards=0", "shard_index_bytes=-1", "shard_copy_bytes=-1"):
        with pytest.raises(WrongSetting, match=wrong.partition("=")[0]):
            read_assignments([wrong])


def test_a_setting_that_is_true_or_false_is_read_as_that() -> None:
    assert read_assignments(["etl_code=true", "etl_network=False"]) == {"etl_code": True, "etl_network": False}
    with pytest.raises(WrongSetting, match="need true or false"):
        read_assignments(["etl_code=1"])


def test_addresses_of_transform_servers_are_a_list_in_which_a_colon_separates_nothing() -> None:
    read = read_assignments(["etl_servers=http://127.0.0.1:9000 grpc://10.0.0.7:1"])
    chosen = configured(ServerConfig(), read)
    assert chosen.etl.servers == ("http://127.0.0.1:9000", "grpc://10.0.0.7:1")
    shown = {"etl_servers": chosen.as_text()["etl_servers"]}
    assert configured(ServerConfig(), read_assignments([f"{name}={text}" for name, text in shown.items()])) == chosen
    with pytest.raises(WrongSetting, match="with spaces between them"):
        read_assignments(["etl_servers=1"])


def test_commands_are_set_by_their_names_and_checked_at_once(tmp_path: Path) -> None:
    text = "ffmpeg -i {input} -ar {rate:int(8000,48000)=16000} {output}.wav"
    read = read_assignments([f"etl_commands.wav={text}", "etl_commands.same=cat"])
    assert configured(ServerConfig(), read).etl.commands == {"wav": text, "same": "cat"}
    file = tmp_path / "settings.toml"
    file.write_text(f'[etl_commands]\nwav = "{text}"\n[nodes.a.etl_commands]\nwav = "cat"\n')
    of_file = read_file(file)
    assert of_file["etl_commands"] == {"wav": text} and for_node(of_file, "a")["etl_commands"] == {"wav": "cat"}
    left = merged(read, read_assignments(["etl_commands.wav=default"]))
    assert configured(ServerConfig(), left).etl.commands == {"same": "cat"}
    for wrong, what in [
        ("etl_commands=ffmpeg", "need NAME = TEXT for each"),
        ("etl_commands.wav=ffmpeg {args.rate}", r"\{args.rate\} has no type"),
        ("etl_commands.wav=ffmpeg {rate:integer}", "'integer' is no type: need int"),
        ("etl_commands.'../wav'=cat", "a name is letters"),
        ("etl_command_paths=models", "need absolute paths"),
        ("etl_sandbox=on", "need 'best_effort' or 'required' or 'off'"),
    ]:
        with pytest.raises(WrongSetting, match=what):
            read_assignments([wrong])
