"""Keys of tokens: the private one, which only operators have, and the public one, which nodes have.

Both are PEM files. A node's file may have several public keys, one after another: tokens of an earlier key stay valid
while it is there.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from ais_loader.errors import InvalidRequest
from ais_loader.extras import needs
from storage_node.store.permissions import others_access, private, trusted_bytes

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

_PUBLIC = re.compile(rb"-----BEGIN PUBLIC KEY-----.*?-----END PUBLIC KEY-----", re.DOTALL)


def make_key(path: Path) -> Path:
    """Make a private key in a new file that only its owner may read, and beside it its public key, `PATH.pub`. Return
    the latter. Raises FileExistsError, OSError, MissingExtra."""
    with needs("cryptography", "keys of tokens"):
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    encoded = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    with open(path, "xb", opener=private) as file:
        file.write(encoded)
        file.flush()
        os.fsync(file.fileno())
    public = path.with_name(f"{path.name}.pub")
    public.unlink(missing_ok=True)
    with open(public, "xb", opener=private) as file:
        os.fchmod(file.fileno(), 0o644)  # all may read it, whatever the umask is, and none may write it
        file.write(
            key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        )
    return public


def read_private_key(path: Path) -> Ed25519PrivateKey:
    """Read the key that signs tokens. Raises OSError, MissingExtra, and InvalidRequest for a file that others may read,
    or that has no such key."""
    with needs("cryptography", "keys of tokens"):
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

    if access := others_access(path):
        raise InvalidRequest(f"{path}: {access}; `chmod 600` closes it. Whoever has read it can make tokens")
    try:
        key = load_pem_private_key(path.read_bytes(), None)
    except (ValueError, TypeError) as error:
        raise InvalidRequest(f"{path}: no private key that can be read: {error}") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise InvalidRequest(f"{path}: the key is not an Ed25519 key; `ais-loader token key` makes one")
    return key


def read_public_keys(path: Path) -> tuple[Ed25519PublicKey, ...]:
    """Read the keys with which tokens may have been signed. Raises OSError, MissingExtra, PermissionError for a
    file that others can change, and InvalidRequest for one without a key, or with a private key."""
    with needs("cryptography", "keys of tokens"):
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
        from cryptography.hazmat.primitives.serialization import load_pem_public_key

    data = trusted_bytes(path)
    if b"PRIVATE KEY" in data:
        raise InvalidRequest(f"{path}: a private key; nodes need the public one alone, which is in {path}.pub")
    keys = []
    for block in _PUBLIC.findall(data):
        try:
            key = load_pem_public_key(block)
        except ValueError as error:
            raise InvalidRequest(f"{path}: a public key that cannot be read: {error}") from None
        if not isinstance(key, Ed25519PublicKey):
            raise InvalidRequest(f"{path}: a key that is not an Ed25519 key")
        keys.append(key)
    if not keys:
        raise InvalidRequest(f"{path}: no public key in PEM form; `ais-loader token key` makes one")
    return tuple(keys)


def has_signed(keys: Iterable[Ed25519PublicKey], signature: bytes, data: bytes) -> bool:
    """Return whether one of these keys has signed the data."""
    with needs("cryptography", "signatures"):
        from cryptography.exceptions import InvalidSignature

    for key in keys:
        with contextlib.suppress(InvalidSignature):
            key.verify(signature, data)
            return True
    return False
