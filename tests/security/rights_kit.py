"""Nodes that need tokens, and tokens for them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from storage_node.rights.keys import make_key, read_private_key
from storage_node.rights.tokens import create_token
from storage_node.server import NodeServer
from storage_node.settings.config import ServerConfig

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
