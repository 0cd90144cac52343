"""Ledger of the tokens that were made with a key: their claims, without the tokens, one JSON object a line.

It lies beside the private key, as `KEY.tokens`, and only its owner may read it. Nodes do not need it. A last line
without an end is that of a token which nobody got, since its line could not be written.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from storage_node.security.rights.tokens import TokenClaims
from storage_node.store.permissions import private


def path_of(key: Path) -> Path:
    return key.with_name(f"{key.name}.tokens")


def add(key: Path, claims: TokenClaims) -> None:
    """Append a token. Raises OSError."""
    with open(path_of(key), "a+b", opener=private) as file:
        file.seek(0)
        *_, torn = file.read().split(b"\n")
        file.truncate(file.tell() - len(torn))
        file.write(json.dumps(asdict(claims)).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def read(key: Path, damaged: Callable[[str], object]) -> list[TokenClaims]:
    """Return the tokens that were made, oldest first. `damaged` is called with a message about each damaged line.

    Raises OSError.
    """
    path = path_of(key)
    if not path.exists():
        return []
    found = []
    *lines, _ = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, 1):
        try:
            fields = json.loads(line)
            found.append(TokenClaims(**{**fields, "scopes": tuple(fields["scopes"])}))
        except (ValueError, TypeError, KeyError):
            damaged(f"{path}: line {number} is damaged; the token that it is about is not listed")
    return found
