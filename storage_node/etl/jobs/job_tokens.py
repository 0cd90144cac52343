"""Tokens with which jobs were started: what of one a job keeps, and whether the job may still go on.

A job outlives the connection and the node over which it was started, so it keeps the token's id, its end, its tenant
and its scopes, from which no token can be made. Every node checks them before it works for the job, and while it does.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from ais_loader.errors import LoaderError
from ais_loader.wire.generated import ais_etl_pb2 as pb
from storage_node.security.rights.granted import Granted
from storage_node.security.rights.needs import require_job
from storage_node.security.rights.tokens import TokenClaims


def kept_of(claims: TokenClaims) -> pb.JobToken:
    """Return what a job keeps of a token."""
    return pb.JobToken(id=claims.token_id, expires_s=claims.expires_s, tenant=claims.tenant, scope=claims.scopes)


class JobTokens:
    """Check of the tokens of jobs. Belongs to the node's event loop.

    Args:
        revoked: Returns the ids of the tokens that were revoked.
        now_s: Returns the time by which tokens expire, in seconds since the epoch.
    """

    def __init__(self, revoked: Callable[[], Collection[str]], now_s: Callable[[], float]) -> None:
        self._revoked, self._now_s = revoked, now_s

    def problem(self, job: pb.TransformJob) -> str:
        """Return why a job may not go on; empty if it may."""
        if not job.HasField("token"):
            return ""
        token = job.token
        if token.expires_s <= self._now_s():
            return f"the token of {token.tenant!r} with which it was started has expired"
        if token.id in self._revoked():
            return f"the token of {token.tenant!r} with which it was started was revoked"
        return ""


def beyond(job: pb.TransformJob) -> str:
    """Return which right its token does not give to a job, such as one whose record was changed; empty if it has all
    that it needs."""
    if not job.HasField("token"):
        return ""
    token = job.token
    try:
        require_job(Granted(TokenClaims(token.tenant, "", tuple(token.scope), token.id, 0, token.expires_s, 0)), job)
    except LoaderError as error:
        return str(error)
    return ""
