"""Token gate: checks the token of every call of clients, and the rights that its method needs.

A token comes in the call's metadata (`authorization: Bearer TOKEN`), and only over a connection that nobody on the
network can read. It is verified once and cached with its rights; a
session or lane keeps what its token granted when it was opened. Whatever a token has begun ends when the token expires
or is revoked, for which the gate is woken. While it knows tokens, it also looks every SWEEP_S: clocks are set.

Nodes and operators, who prove that they know the cluster's secret, need no token for the few methods that they call at
the listener for clients. Everything else that they do is at the listener for peers.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from ais_loader.errors import AccessDenied, LoaderError
from storage_node.cluster.map.revoked_tokens import RevokedTokens
from storage_node.context.node import Node
from storage_node.limits.call_slots import current_tenant, token_tenant
from storage_node.limits.counters import count
from storage_node.limits.wakeup import TICK_S, Wakeup
from storage_node.security.rights.granted import GRANTED, Granted
from storage_node.security.rights.keys import read_public_keys
from storage_node.security.rights.needs import JobBuckets
from storage_node.security.rights.tokens import TokenRefused, verify_token
from storage_node.services.call_table import CALLER, PACKAGE, About, Call, Role
from storage_node.services.errors import Context
from storage_node.store.names import without_hints

AUTHORIZATION = "authorization"
SWEEP_S = TICK_S
USED_S = 3600.0
"""Time for which a token that is used no longer counts for the metric of tokens' ends."""
MAX_KNOWN = 4096
"""Maximum number of verified tokens that are cached."""
_BEARER = "bearer "
_GET_MAP = "Cluster/GetMap"


def now_s() -> float:
    """Return the time by which tokens expire, in seconds since the epoch."""
    return time.time()


class TokenGate:
    """The tokens of a node's clients. Belongs to the node's event loop.

    Args:
        revoked: the tokens that were revoked, and this node's audience.
        job_buckets: see `needs.JobBuckets`.
        is_inside: whether the caller of a method is a node or an operator, see `PeerCheck.is_inside`.
    """

    def __init__(
        self,
        node: Node,
        revoked: RevokedTokens,
        job_buckets: JobBuckets,
        is_inside: Callable[[str, Context], Awaitable[bool | None]],
    ) -> None:
        """Raises OSError, ValueError and MissingExtra if the key cannot be read."""
        self._node = node
        self._revoked = revoked
        self._is_inside = is_inside
        self._proves_callers = bool(node.caller.secret or node.config.listen.cert_file)
        self._keys = read_public_keys(Path(node.config.listen.token_key_file))
        self._job_buckets = job_buckets
        self._known: dict[str, Granted] = {}
        node.store.hide()
        self._due = Wakeup()
        """Set by a revocation, and by a new token."""
        node.on_change(self._due.set)

    async def admit(self, call: Call, context: Context, *, over_lane: bool) -> Granted | None:
        """Return what the token of a call grants, and make its client that of the current task; None for a node or an
        operator. `over_lane`: of a lane, which has the token with which it was opened. Raises AccessDenied."""
        try:
            if over_lane:
                granted = GRANTED.get()
            elif (granted := await self._granted(call, context)) is None:
                return None
            if granted is None or call.needs is None:
                raise AccessDenied("the method is not for clients")
            self._check(granted)
        except AccessDenied as error:
            reason = error.reason if isinstance(error, TokenRefused) else "rights"
            count(self._node.metrics.refusals, reason)
            raise
        GRANTED.set(granted)
        token_tenant.set(granted.tenant)
        current_tenant.set(granted.tenant)
        without_hints.set(True)
        return granted

    def require(self, granted: Granted, call: Call, about: Iterable[About], message: Any) -> None:
        """Check that a token grants what a message of a call needs. Raises LoaderError."""
        try:
            if callable(call.needs):
                call.needs(granted, message, self._job_buckets)
            elif call.needs:
                for one in about:
                    granted.require(call.needs, one.bucket)
        except LoaderError:
            count(self._node.metrics.refusals, "rights")
            raise

    async def _granted(self, call: Call, context: Context) -> Granted | None:
        """Return what the token of a call grants; None for a node or an operator. Raises TokenRefused."""
        tokens = [value for key, value in context.invocation_metadata() or () if key == AUTHORIZATION]
        if not tokens and call.finds_peers and self._proves_callers:
            is_inside = await self._is_inside(f"/{PACKAGE}.{call.name}", context)
            if is_inside:
                CALLER.set(Role.OPERATOR)  # a proof is accepted once
                return None
            if (
                is_inside is None and call.name == _GET_MAP
            ):  # with TLS, it is told where the peer listener is, and no map
                return None
        return self.granted(tokens)

    def granted(self, tokens: Sequence[str | bytes]) -> Granted:
        """Return what a call's token grants. Raises TokenRefused."""
        if not tokens:
            raise TokenRefused(
                "this node needs a token: see token_file= of connect(), or AIS_LOADER_TOKEN_FILE", "missing"
            )
        text = tokens[0]
        if len(tokens) > 1 or not isinstance(text, str) or text[: len(_BEARER)].lower() != _BEARER:
            raise TokenRefused("need one `authorization` of the form `Bearer TOKEN`")
        token = text[len(_BEARER) :].strip()
        known = self._known.get(token)
        if known is None:
            claims = verify_token(token, self._keys, audience=self._revoked.audience, now_s=now_s())
            try:
                known = Granted(claims, self._hidden)
            except LoaderError as error:
                raise TokenRefused(f"a scope of the token is not valid: {error}") from None
            self._make_room()
            self._known[token] = known
            self._due.set()
        self._check(known)
        known.used_s = now_s()
        return known

    def _check(self, granted: Granted) -> None:
        """Check that a verified token is still valid. Raises TokenRefused."""
        claims = granted.claims
        if claims.expires_s <= now_s():
            raise TokenRefused("the token has expired: ask the store's operator for another one", "expired")
        if claims.token_id in self._revoked.ids:
            raise TokenRefused("the token was revoked: ask the store's operator for another one", "revoked")
        if claims.audience != self._revoked.audience:  # the node has joined a cluster since
            raise TokenRefused("the token is for another cluster or store", "audience")

    def _hidden(self) -> list[str]:
        """Return the addresses of nodes that are not for clients."""
        view = self._node.membership.view
        return [one.peer_endpoint for one in view.nodes] if view is not None else []

    def _make_room(self) -> None:
        while len(self._known) >= MAX_KNOWN:
            unused = next((token for token, one in self._known.items() if not one.is_used), None)
            if unused is None:
                return
            del self._known[unused]

    async def watch(self) -> None:
        """End what tokens have begun when they expire or are revoked. Runs until cancelled."""
        while True:
            self.sweep()
            ends_s = min((one.claims.expires_s for one in self._known.values()), default=None)
            await (self._due.wait() if ends_s is None else self._due.wait_for_tick(min(SWEEP_S, ends_s - now_s())))

    def sweep(self) -> None:
        """End what tokens have begun that are valid no longer, and forget these."""
        for token, granted in list(self._known.items()):
            try:
                self._check(granted)
            except TokenRefused:
                granted.end()
                del self._known[token]
        used = (one for one in self._known.values() if one.is_used or one.used_s > now_s() - USED_S)
        self._node.metrics.first_token_end_s = min((one.claims.expires_s for one in used), default=None)
