"""Tokens as values: what is made is accepted, and nothing else is."""

from __future__ import annotations

import base64
import json
import stat
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from ais_loader.errors import AccessDenied, InvalidRequest
from storage_node.security.rights.keys import make_key, read_private_key, read_public_keys
from storage_node.security.rights.tokens import CLOCK_LEEWAY_S, TokenRefused, create_token, verify_token
from tests.table import table

KEY = Ed25519PrivateKey.generate()
KEYS = (KEY.public_key(),)
NOW_S = 1_800_000_000
PAYLOAD = {"sub": "t", "aud": "c", "jti": "i", "iat": NOW_S, "exp": NOW_S + 9, "scopes": ["*:read"]}


def made(**changes: Any) -> str:
    arguments = {"audience": "c", "tenant": "t", "scopes": ["*:read"], "lifetime_s": 60, "now_s": NOW_S}
    return create_token(KEY, **{**arguments, **changes})[0]


def reason(token: str, now_s: float = NOW_S, audience: str = "c") -> str:
    with pytest.raises(AccessDenied) as refused:
        verify_token(token, KEYS, audience=audience, now_s=now_s)
    assert isinstance(refused.value, TokenRefused)
    assert len(token) < 20 or token not in str(refused.value)
    return refused.value.reason


def test_claims_come_back() -> None:
    token, claims = create_token(
        KEY, audience="c", tenant="täm", scopes=["a*:read", "b:write"], lifetime_s=60, now_s=NOW_S
    )
    assert verify_token(token, KEYS, audience="c", now_s=NOW_S) == claims
    assert claims.tenant == "täm" and claims.expires_s == NOW_S + 60


def test_times() -> None:
    assert reason(made(), NOW_S + 60) == "expired"
    verify_token(made(), KEYS, audience="c", now_s=NOW_S + 59.9)
    later = made(not_before_s=NOW_S + 3600)
    assert reason(later) == "not_yet_valid"
    verify_token(later, KEYS, audience="c", now_s=NOW_S + 3600 - CLOCK_LEEWAY_S)
    assert reason(made(now_s=NOW_S + 3600)) == "not_yet_valid"  # made by a clock that is an hour ahead


def test_another_cluster() -> None:
    assert reason(made(), audience="another") == "audience"


def test_another_key() -> None:
    token = jwt.encode(PAYLOAD, Ed25519PrivateKey.generate(), algorithm="EdDSA")
    assert reason(token) == "signature"


def test_other_algorithms() -> None:
    encoded = KEYS[0].public_bytes_raw()
    assert reason(jwt.encode(PAYLOAD, encoded, algorithm="HS256")) == "algorithm"
    assert reason(jwt.encode(PAYLOAD, None, algorithm="none")) == "algorithm"
    _, body, signature = made().split(".")
    for name in ("none", "None", "HS256", "ES256", "eddsa"):
        forged = base64.urlsafe_b64encode(json.dumps({"alg": name, "typ": "JWT"}).encode()).rstrip(b"=").decode()
        for rest in (signature, ""):
            assert reason(f"{forged}.{body}.{rest}") == "algorithm"


@table("name", sorted(PAYLOAD))
def test_claims_that_are_missing_or_of_another_type(name: str) -> None:
    for value in (None, {"x": 1}, True, 1.5, -1, [1], "", "1"):
        payload = {**PAYLOAD, name: value}
        if value is None:
            del payload[name]
        if isinstance(PAYLOAD[name], str) and value == "1":
            continue
        try:
            token = jwt.encode(payload, KEY, algorithm="EdDSA")
        except TypeError:  # the library makes no such token
            continue
        assert reason(token) == "malformed"


@given(st.text(max_size=200) | st.binary(max_size=200).map(lambda data: base64.urlsafe_b64encode(data).decode()))
def test_anything_else_is_refused(text: str) -> None:
    assert reason(text) in ("malformed", "algorithm")
    assert reason(f"{text}.{text}.{text}") in ("malformed", "algorithm")


@given(st.integers(0, 10_000), st.characters(codec="ascii"))
def test_no_changed_token_is_accepted(at: int, letter: str) -> None:
    token = made()
    at %= len(token)
    if token[at] == letter:
        return
    # The last letter of a part has bits that mean nothing.
    changed = token[:at] + letter + token[at + 1 :]
    try:
        claims = verify_token(changed, KEYS, audience="c", now_s=NOW_S)
    except TokenRefused:
        return
    assert claims == verify_token(token, KEYS, audience="c", now_s=NOW_S)


def test_tokens_that_are_not_made() -> None:
    for changes in ({"tenant": ""}, {"tenant": "x" * 129}, {"scopes": []}, {"scopes": ["x"]}, {"lifetime_s": 0}):
        with pytest.raises(InvalidRequest):
            made(**changes)
    with pytest.raises(InvalidRequest, match="fewer scopes"):
        made(scopes=[f"{number:0100d}:read" for number in range(200)])


def test_key_files(tmp_path: Path) -> None:
    public = make_key(tmp_path / "key")
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600
    with pytest.raises(FileExistsError):
        make_key(tmp_path / "key")
    token, _ = create_token(
        read_private_key(tmp_path / "key"), audience="c", tenant="t", scopes=["*:read"], lifetime_s=60, now_s=NOW_S
    )
    other = make_key(tmp_path / "other")
    both = tmp_path / "both"
    both.write_bytes(other.read_bytes() + public.read_bytes())
    verify_token(token, read_public_keys(both), audience="c", now_s=NOW_S)
    with pytest.raises(ValueError, match="private key"):
        read_public_keys(tmp_path / "key")
    (tmp_path / "key").chmod(0o640)
    with pytest.raises(ValueError, match="chmod 600"):
        read_private_key(tmp_path / "key")
    both.write_text("nothing")
    with pytest.raises(ValueError, match="no public key"):
        read_public_keys(both)
