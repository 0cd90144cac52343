"""Tokens and TLS together: a node and a cluster as an operator sets them up, and what clients get."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from ais_loader import ClusterOptions, Entry, connect, errors
from storage_node.cli.token import token
from storage_node.security.identity.identity_folder import IdentityFolder
from storage_node.server import NodeServer
from storage_node.settings.config import ServerConfig
from tests.cluster.operator_kit import Operator, operating
from tests.patience import PATIENT_CLIENT
from tests.security.rights_kit import key_in

DATA = {f"{number}": bytes([number]) * 20_000 for number in range(40)}


def run(*words: object) -> str:
    result = CliRunner().invoke(token, list(map(str, words)))
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.parametrize("lane", ["auto", "grpc"])
def test_a_node_with_both(tmp_path: Path, identity: IdentityFolder, lane: str) -> None:
    key, path = key_in(tmp_path / "keys"), tmp_path / "token"
    config = ServerConfig(port=0, token_key_file=f"{key}.pub")
    options = ClusterOptions(lane=lane, retry_s=240.0)  # type: ignore[arg-type]
    with NodeServer([tmp_path / "drive"], config, identity=identity.path) as node:
        at = "--node", node.url, "--identity", identity.path
        words = "--key", key, "--tenant", "team"
        run("create", *words, "--scope", "b:read,list,write,admin", *at, "-o", path)
        with connect(node.url, ca=identity.ca_file, token_file=path, options=options) as client:
            client.create_bucket("b").put_many(DATA.items())
            batch = client.get_batch([Entry("b", "7"), Entry("c", "7"), Entry("b", "9")], on_error="placeholder")
            items = list(batch)
            assert [item.ok for item in items] == [True, False, True]
            assert (items[0].data, items[2].data) == (DATA["7"], DATA["9"])
            with connect(node.url, ca=identity.ca_file, options=options) as other, pytest.raises(errors.AccessDenied):
                other.bucket("b").get("7")
            run("revoke", path, "--key", key, *at)
            with pytest.raises(errors.AccessDenied, match="revoked"):
                client.bucket("b").get("7")


def test_without_tls_tokens_stay_on_the_machine(tmp_path: Path) -> None:
    key = key_in(tmp_path / "keys")
    config = ServerConfig(host="0.0.0.0", port=0, token_key_file=f"{key}.pub")
    with pytest.raises(ValueError, match="token_key_file needs TLS"):
        NodeServer([tmp_path / "drive"], config).start()


@pytest.fixture(scope="module")
def operator() -> Iterator[Operator]:
    with operating() as operator:
        yield operator


@pytest.mark.slow
def test_a_cluster_with_both(operator: Operator, tmp_path: Path) -> None:
    key, path = key_in(tmp_path / "keys"), tmp_path / "token"
    operator.make_nodes(3, first_port=9800)
    set_up = "--no-dashboard", "--host-per-node", "--secure", "--set", f"token_key_file={key}.pub"
    said = operator.json("up", *set_up)
    scope = "b:read,list,write,delete,admin"
    run("create", "--key", key, "--tenant", "t", "--scope", scope, "--root", operator.root, "-o", path)
    with connect(said["url"], ca=said["ca_file"], token_file=path, options=PATIENT_CLIENT) as client:
        client.create_bucket("b", copies=2).put_many(DATA.items())
        assert {item.entry.name: item.data for item in client.get_batch([Entry("b", name) for name in DATA])} == DATA
        status = operator.json("status")
        assert status["problems"] == []
        assert {node["state"] for node in status["nodes"]} == {"serving"}
        with connect(said["url"], ca=said["ca_file"]) as stranger, pytest.raises(errors.AccessDenied):
            stranger.bucket("b").get("7")
        run("revoke", path, "--key", key, "--root", operator.root)

        def get(name: str) -> bytes:
            return client.bucket("b").get(name)

        for name in DATA:  # whichever node has it
            with pytest.raises(errors.AccessDenied):
                get(name)
    operator.run("down")
