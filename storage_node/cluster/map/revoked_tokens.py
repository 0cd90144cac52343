"""Revoked tokens of a node: those in the map of its cluster, or else in the record of its store.

A revoked token is remembered until it expires. Both places are replaced as a whole when they change, so that the set is
made once for each of their versions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping

from ais_loader.errors import InvalidRequest
from ais_loader.wire.generated import ais_cluster_pb2 as pb
from storage_node.cluster.consensus.change import change_map_async
from storage_node.cluster.consensus.effects import Edit
from storage_node.context.node import Node
from storage_node.security.rights.tokens import MAX_ID
from storage_node.store.store_record import StoreRecord

MAX_REVOKED = 4096
"""Maximum number of revoked tokens that have not expired. Beyond it, replace the key."""
CHANGE_TIMEOUT_S = 20.0


class RevokedTokens:
    """Revoked tokens, and the audience of tokens. Belongs to the node's event loop."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._made_of: object = None
        self._ids: frozenset[str] = frozenset()

    @property
    def audience(self) -> str:
        """Uuid of the cluster, or of the store of a node that is in none."""
        view = self._node.membership.view
        return view.map.cluster_uuid.hex() if view is not None else self._node.store.store_uuid

    @property
    def ids(self) -> frozenset[str]:
        """Ids of revoked tokens."""
        view = self._node.membership.view
        source: object = self._node.store.record.current if view is None else view
        if source is not self._made_of:
            self._made_of, self._ids = source, frozenset(self.all())
        return self._ids

    def all(self) -> Mapping[str, int]:
        """Return the ids of revoked tokens with the times of their expiry, in seconds since the epoch."""
        view = self._node.membership.view
        if view is None:
            return dict(self._node.store.record.current.revoked_tokens)
        return {one.id: one.expires_s for one in view.map.revoked_token}

    async def revoke(self, token_id: str, expires_s: int) -> None:
        """Revoke a token on all nodes. Raises InvalidRequest, NodeUnavailable, DriveFailed."""
        if not 0 < len(token_id) <= MAX_ID or not token_id.isprintable() or expires_s < 0:
            raise InvalidRequest(f"token {token_id[:MAX_ID]!r}: need the id of a token, and when it expires")
        now_s = int(time.time())
        view = self._node.membership.view
        if view is None:
            await self._node.read(self._node.store.record.change, in_record(token_id, expires_s, now_s))
            return
        change = in_map(token_id, expires_s, now_s)
        changed = await change_map_async(view, change, timeout_s=CHANGE_TIMEOUT_S, caller=self._node.caller)
        await self._node.learn(changed)


def in_map(token_id: str, expires_s: int, now_s: int) -> Edit:
    """Return the edit of the map that revokes a token and forgets those that have expired."""

    def edit(map_: pb.ClusterMap | None) -> pb.ClusterMap:
        if map_ is None:
            raise InvalidRequest("there is no cluster yet")
        known = {one.id: one.expires_s for one in map_.revoked_token}
        left = _with(known.items(), token_id, expires_s, now_s)
        if left != known:
            del map_.revoked_token[:]
            map_.revoked_token.extend(pb.RevokedToken(id=one, expires_s=until_s) for one, until_s in left.items())
        return map_

    return edit


def in_record(token_id: str, expires_s: int, now_s: int) -> Callable[[StoreRecord], StoreRecord]:
    """Return the change of a store's record that does the same."""

    def change(record: StoreRecord) -> StoreRecord:
        return record.changed(revoked_tokens=_with(record.revoked_tokens.items(), token_id, expires_s, now_s))

    return change


def _with(known: Iterable[tuple[str, int]], token_id: str, expires_s: int, now_s: int) -> dict[str, int]:
    """Return the revoked tokens with one more, without those that have expired. Raises InvalidRequest."""
    left = {one: until_s for one, until_s in known if until_s > now_s}
    left.setdefault(token_id, expires_s)
    if len(left) > MAX_REVOKED:
        raise InvalidRequest(f"{MAX_REVOKED:,} tokens are revoked already: make a new key, and tokens with it")
    return left
