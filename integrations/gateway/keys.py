"""Key file: access keys, with their secrets and the tenant and token with which the gateway calls the store."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path

from ais_loader.errors import InvalidRequest
from storage_node.store.permissions import others_access, trusted_bytes

MAX_ACCESS_KEY = 128
"""Longest access key, in characters, as in S3."""
_ACCESS_KEY = re.compile(r"[!-+.0-~-]+\Z")
"""Characters that a signature can name: those of ASCII but spaces, commas and slashes."""
_FIELDS = {"access_key", "secret_key", "tenant", "token_file"}


@dataclass(frozen=True, slots=True)
class Account:
    """An access key."""

    access_key: str
    secret_key: str = field(repr=False)
    tenant: str = ""
    """The name under which nodes account its reads."""
    token_file: str = ""
    """The file with the token that nodes ask for; "" for that of the gateway."""


def read_keys(path: Path) -> dict[str, Account]:
    """Read a key file: JSON, a list of objects with `access_key`, `secret_key`, and optionally `tenant`, `token_file`.

    Raises InvalidRequest for any other content, and for a file that other users may read; OSError.
    """
    if why := others_access(path):
        raise InvalidRequest(f"{path}: {why}; use `chmod 600`")
    try:
        rows = json.loads(trusted_bytes(path))
    except ValueError as error:
        raise InvalidRequest(f"{path}: not JSON: {error}") from None
    if not isinstance(rows, list) or not rows:
        raise InvalidRequest(f"{path}: need a list of at least one access key")
    found: dict[str, Account] = {}
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict) or not all(isinstance(value, str) for value in row.values()):
            raise InvalidRequest(f"{path}: key {number}: need an object whose values are strings")
        if unknown := row.keys() - _FIELDS:
            raise InvalidRequest(f"{path}: key {number}: unknown fields {', '.join(sorted(unknown))}")
        account = Account(**{"access_key": "", "secret_key": "", **row})
        if not account.access_key or not account.secret_key:
            raise InvalidRequest(f"{path}: key {number}: need access_key and secret_key")
        if not _ACCESS_KEY.match(account.access_key):
            raise InvalidRequest(f"{path}: key {number}: the access key has a slash, comma, space, or no ASCII")
        if len(account.access_key) > MAX_ACCESS_KEY:
            raise InvalidRequest(f"{path}: key {number}: the access key has more than {MAX_ACCESS_KEY} characters")
        if account.access_key in found:
            raise InvalidRequest(f"{path}: key {number}: the access key is there twice")
        found[account.access_key] = account
    return found
