"""Subject of a line: who makes the calls of the current task, and how they came."""

from __future__ import annotations

from contextvars import ContextVar
from typing import NamedTuple

from storage_node.security.rights.granted import GRANTED

CLIENT, NODE, OPERATOR = "client", "node", "operator"
LANE, SESSION = "lane", "session"
CALL = "call"
NOBODY = "-"
"""Stands for a tenant or a token where there is none."""


class CallOrigin(NamedTuple):
    """The caller of a call, session or lane."""

    by: str
    """CLIENT, NODE or OPERATOR."""
    source: str = NOBODY
    """Kind of its address: unix, loopback or network."""
    transport: str = CALL


UNKNOWN = CallOrigin(CLIENT)
ORIGIN: ContextVar[CallOrigin] = ContextVar("origin", default=UNKNOWN)
"""Origin of what the current task does."""


def source_of(peer: str) -> str:
    """Return the kind of an address, as gRPC writes it or without its scheme."""
    if peer.startswith("unix") or not peer:
        return "unix"
    host = peer.removeprefix("ipv4:").removeprefix("ipv6:").replace("%5B", "[")
    return "loopback" if host.startswith(("127.", "[::1]", "::1", "[::ffff:127.", "::ffff:127.")) else "network"


class Subject(NamedTuple):
    """The subject of what the current task does, as its lines have it."""

    origin: CallOrigin
    tenant: str
    token: str

    @classmethod
    def current(cls) -> Subject:
        """Return the subject of the current task; its tenant and token are those of a verified token."""
        granted = GRANTED.get()
        origin = ORIGIN.get()
        if granted is None:
            return cls(origin, NOBODY, NOBODY)
        return cls(origin, granted.tenant, granted.claims.token_id)

    def fields(self, claimed_tenant: str = "") -> dict[str, str]:
        """Return what lines say about the subject. `claimed_tenant`: named by the client itself, without a token."""
        fields = {"by": self.origin.by, "tenant": self.tenant, "token": self.token, "from": self.origin.source}
        if self.token == NOBODY and claimed_tenant:
            fields["claimed_tenant"] = claimed_tenant
        return fields
