"""Tokens: signed statements of an operator about a client's tenant and rights, which each node checks by itself.

A token is a JWT, signed with Ed25519 and nothing else. Its claims are `sub` (tenant), `aud` (uuid of the cluster, or of
the store of a node that is in none), `scopes`, `jti` (its id, by which it is revoked), `iat`, `exp`, and `nbf` if it
becomes valid later. Times are seconds since the epoch.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ais_loader.errors import AccessDenied, InvalidRequest
from ais_loader.extras import needs
from storage_node.limits.call_slots import MAX_TENANT
from storage_node.security.rights.scopes import Scopes

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

ALGORITHM = "EdDSA"
MAX_TOKEN_BYTES = 8 << 10
MAX_ID = 64
CLOCK_LEEWAY_S = 60
"""A token may begin this much later by its maker's clock than by the node's. Its end is exact."""
MAX_LIFETIME_S = 10 * 366 * 86400


class TokenRefused(AccessDenied):
    """A token that is not accepted. `reason` is the label under which nodes count it."""

    def __init__(self, message: str, reason: str = "malformed") -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class TokenClaims:
    """Claims of a token whose signature is valid."""

    tenant: str
    audience: str
    scopes: tuple[str, ...]
    token_id: str
    issued_s: int
    expires_s: int
    not_before_s: int


def create_token(
    key: Ed25519PrivateKey,
    *,
    audience: str,
    tenant: str,
    scopes: Sequence[str],
    lifetime_s: int,
    not_before_s: int = 0,
    now_s: int | None = None,
) -> tuple[str, TokenClaims]:
    """Make and sign a token; return it and its claims. Raises InvalidRequest, MissingExtra."""
    with needs("jwt", "tokens"):
        import jwt

    if not tenant or len(tenant) > MAX_TENANT or not tenant.isprintable():
        raise InvalidRequest(f"tenant {tenant[:MAX_TENANT]!r}: need 1 to {MAX_TENANT} printable characters")
    if not 0 < lifetime_s <= MAX_LIFETIME_S:
        raise InvalidRequest(f"a token lasts more than 0 s and at most ten years, not {lifetime_s:,} s")
    if not scopes:
        raise InvalidRequest("a token needs at least one scope, such as 'speech-*:read,list'")
    Scopes(scopes)
    issued_s = int(time.time()) if now_s is None else now_s
    token_id = secrets.token_hex(16)
    expires_s = max(issued_s, not_before_s) + lifetime_s
    claims = TokenClaims(tenant, audience, tuple(scopes), token_id, issued_s, expires_s, not_before_s)
    payload: dict[str, Any] = {
        "sub": tenant,
        "aud": audience,
        "scopes": list(scopes),
        "jti": token_id,
        "iat": issued_s,
        "exp": expires_s,
    }
    if not_before_s:
        payload["nbf"] = not_before_s
    token = jwt.encode(payload, key, algorithm=ALGORITHM)
    if len(token) > MAX_TOKEN_BYTES:
        raise InvalidRequest(f"a token of {len(token):,} bytes: at most {MAX_TOKEN_BYTES:,}; give fewer scopes")
    return token, claims


def verify_token(token: str, keys: Sequence[Ed25519PublicKey], *, audience: str, now_s: float) -> TokenClaims:
    """Check a token that was signed with one of these keys. Raises TokenRefused."""
    claims = parse_token(token, keys)
    if claims.audience != audience:
        raise TokenRefused("the token is for another cluster or store", "audience")
    if claims.expires_s <= now_s:
        raise TokenRefused("the token has expired: ask the store's operator for another one", "expired")
    if max(claims.not_before_s, claims.issued_s) > now_s + CLOCK_LEEWAY_S:
        raise TokenRefused("the token is not valid yet; see also whether this node's clock is right", "not_yet_valid")
    return claims


def parse_token(token: str, keys: Sequence[Ed25519PublicKey]) -> TokenClaims:
    """Check the signature and the form of a token; without keys, the form alone. Raises TokenRefused, MissingExtra."""
    with needs("jwt", "tokens"):
        import jwt

    if len(token) > MAX_TOKEN_BYTES:
        raise TokenRefused(f"the token has more than {MAX_TOKEN_BYTES:,} bytes")
    try:
        # The algorithm is compared here as well, so that no library's default ever decides about it.
        if jwt.get_unverified_header(token).get("alg") != ALGORITHM:
            raise TokenRefused(f"the token is not signed with {ALGORITHM}", "algorithm")
        if not keys:
            return _claims(jwt.decode(token, options={"verify_signature": False}))
        for key in keys:
            try:
                payload = jwt.decode(token, key, algorithms=[ALGORITHM], options=_FORM_ONLY)
            except jwt.InvalidSignatureError:
                continue
            return _claims(payload)
    except jwt.PyJWTError:
        raise TokenRefused("this is no token: it cannot be decoded") from None
    raise TokenRefused("the token was not signed with this store's key", "signature")


_FORM_ONLY: Any = {
    "verify_aud": False,
    "verify_exp": False,
    "verify_iat": False,
    "verify_nbf": False,
    "verify_sub": False,
    "verify_jti": False,
}


def _claims(payload: Mapping[str, Any]) -> TokenClaims:
    """Return the claims. Raises TokenRefused for one that is missing or of another type."""
    tenant, audience, token_id = (payload.get(name) for name in ("sub", "aud", "jti"))
    issued_s, expires_s, not_before_s = payload.get("iat"), payload.get("exp"), payload.get("nbf", 0)
    scopes = payload.get("scopes")
    texts = all(isinstance(one, str) and one for one in (tenant, audience, token_id))
    times = all(type(one) is int and 0 <= one < 1 << 53 for one in (issued_s, expires_s, not_before_s))
    if not texts or not times or not isinstance(scopes, list) or not all(isinstance(one, str) for one in scopes):
        raise TokenRefused("the token lacks a claim, or one has a wrong type: need sub, aud, jti, iat, exp and scopes")
    assert isinstance(tenant, str) and isinstance(audience, str) and isinstance(token_id, str)
    assert isinstance(issued_s, int) and isinstance(expires_s, int) and isinstance(not_before_s, int)
    if len(tenant) > MAX_TENANT or len(token_id) > MAX_ID:
        raise TokenRefused("a claim of the token is too long")
    return TokenClaims(tenant, audience, tuple(scopes), token_id, issued_s, expires_s, not_before_s)
