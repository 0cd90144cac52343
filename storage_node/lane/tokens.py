"""Tokens of lanes: each is issued to one client over gRPC and admits one connection, for a short time."""

from __future__ import annotations

import secrets
import time
from typing import NamedTuple

from ais_loader.wire.lane import TOKEN_BYTES
from storage_node.audit.subject import ORIGIN, UNKNOWN, CallOrigin
from storage_node.rights.granted import GRANTED, Granted

LIFETIME_S = 10.0
MAX_PENDING = 4096


class LaneClient(NamedTuple):
    """The client to which a lane's token was given."""

    tenant: str
    granted: Granted | None
    """Rights of the client's own token; None if clients need none."""
    origin: CallOrigin = UNKNOWN
    """How the client has asked for the lane."""


class LaneTokens:
    """Issued tokens. Belongs to the node's event loop."""

    def __init__(self) -> None:
        self._pending: dict[bytes, tuple[float, LaneClient, int | None]] = {}
        """Expiry, client and user of each token; oldest first."""

    def give(self, tenant: str, user: int | None = None) -> bytes:
        """Return a new token for the client of the current call, which only processes of this user may use, if one is
        given.

        If MAX_PENDING others are unused, the oldest of them becomes invalid.
        """
        now = time.monotonic()
        while self._pending and (len(self._pending) >= MAX_PENDING or next(iter(self._pending.values()))[0] < now):
            del self._pending[next(iter(self._pending))]
        token = secrets.token_bytes(TOKEN_BYTES)
        self._pending[token] = now + LIFETIME_S, LaneClient(tenant, GRANTED.get(), ORIGIN.get()), user
        return token

    def take(self, token: bytes, user: int | None = None) -> LaneClient | None:
        """Return the client of a token; None if it is wrong, used, expired or another user's. The token becomes
        invalid."""
        until_s, client, owner = self._pending.pop(token, (0.0, None, None))
        return client if until_s >= time.monotonic() and user == owner else None
