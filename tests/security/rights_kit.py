"""Nodes that need tokens, and tokens for them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ais_loader.testing.waiting import eventually
from storage_node.cluster.consensus.change import change_map
from storage_node.cluster.map.mutations import create_cluster
from storage_node.context.channels import Caller, read_secret
from storage_node.security.rights.keys import make_key, read_private_key
from storage_node.security.rights.tokens import create_token
from storage_node.server import NodeServer
from storage_node.settings.config import ServerConfig
from tests.cluster.agreement_kit import member

EVERYTHING = "*:read,list,write,delete,admin,promote,etl-use,etl-create,etl-job,etl-code,etl-install,remote"


@dataclass(frozen=True, slots=True)
class SecureNode:
    """A node and the key of its tokens."""

    server: NodeServer
    key: Path

    @property
    def url(self) -> str:
        return self.server.url

    @property
    def audience(self) -> str:
        view = self.server.membership.view
        store = self.server._store
        assert store is not None
        return store.store_uuid if view is None else view.map.cluster_uuid.hex()

    def token(self, *scopes: str, **changes: Any) -> str:
        arguments: dict[str, Any] = {"tenant": "team", "lifetime_s": 600, "audience": self.audience}
        key = read_private_key(changes.pop("key", self.key))
        return create_token(key, scopes=scopes, **{**arguments, **changes})[0]

    def expired(self) -> str:
        return self.token(EVERYTHING, now_s=int(time.time()) - 3600)


def key_in(folder: Path) -> Path:
    """Make a key, unless there is one."""
    folder.mkdir(exist_ok=True, parents=True)
    if not (folder / "key").exists():
        make_key(folder / "key")
    return folder / "key"


@contextmanager
def secure(folder: Path, **config: Any) -> Iterator[SecureNode]:
    key = key_in(folder / "keys")
    settings = ServerConfig(port=0, token_key_file=f"{key}.pub", **config)
    with NodeServer([folder / "drive"], settings) as server:
        yield SecureNode(server, key)


@contextmanager
def secure_cluster(folder: Path, secret_file: Path, **config: Any) -> Iterator[list[SecureNode]]:
    """Three nodes that share a peer secret and a key of tokens."""
    key = key_in(folder / "keys")
    settings = ServerConfig(port=0, token_key_file=f"{key}.pub", peer_secret_file=str(secret_file), **config)
    with ExitStack() as held:
        servers = [held.enter_context(NodeServer([folder / f"node-{number}"], settings)) for number in range(3)]
        change_map(
            [server.peer_endpoint for server in servers],
            create_cluster([member(server, f"host-{server.port}") for server in servers]),
            timeout_s=60.0,
            caller=Caller(read_secret(secret_file)),
        )
        eventually(lambda: all(server.membership.view is not None for server in servers))
        yield [SecureNode(server, key) for server in servers]
