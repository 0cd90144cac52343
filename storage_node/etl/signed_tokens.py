"""Signed tokens: claims in JSON with an HMAC, verified by every holder of the key, until they expire."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
import time
from collections.abc import Mapping
from typing import Any

MAX_TOKEN_CHARACTERS = 7000
"""Fits into one HTTP header."""


class SignedTokenRefused(Exception):
    """The token is not signed by this key, expired, or issued for another purpose; the message says which."""


def new_nonce() -> str:
    return secrets.token_urlsafe(12)


def signed(key: bytes, purpose: str, claims: Mapping[str, Any], lifetime_s: float) -> str:
    """Return a token for one purpose. Raises ValueError if the claims are too long for a token."""
    expires = time.time() + lifetime_s
    body = _encoded(json.dumps({**claims, "purpose": purpose, "expires": expires}, separators=(",", ":")).encode())
    token = f"{body}.{_encoded(_mac(key, body))}"
    if len(token) > MAX_TOKEN_CHARACTERS:
        raise ValueError(f"a token of {len(token):,} characters: names and metadata are too long for a direct put")
    return token


def verified(key: bytes, token: str, purpose: str) -> dict[str, Any]:
    """Return the claims of a token. Raises TokenRefused."""
    body, _, mac = token.partition(".")
    if not hmac.compare_digest(_encoded(_mac(key, body)).encode(), mac.encode("utf-8", "replace")):
        raise SignedTokenRefused("the token was not signed by this node or its cluster")
    claims: dict[str, Any] = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    if claims["purpose"] != purpose:
        raise SignedTokenRefused(f"the token is for {claims['purpose']}, not for {purpose}")
    if claims["expires"] < time.time():
        raise SignedTokenRefused("the token has expired")
    return claims


def _mac(key: bytes, body: str) -> bytes:
    return hmac.digest(key, body.encode("utf-8", "replace"), hashlib.sha256)


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
