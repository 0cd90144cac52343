"""Access keys of the key file, and clients of the store, one for each tenant and token that keys have."""

from __future__ import annotations

import json
import re
import threading
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from ais_loader.errors import AccessDenied, InvalidRequest
from ais_loader.objects.client import Client, connect
from ais_loader.values.options import ClusterOptions
from ais_loader.values.token_source import TokenSource
from ais_loader.values.urls import is_remote
from storage_node.store.permissions import others_access, trusted_bytes

_MAX_TOKENS = 256
"""Clients of tokens that are kept open."""
_NO_TOKEN = "not-a-token"
"""Accepted only by a store that verifies no tokens."""


class Clients:
    """Clients by account. They are opened at once, so that a wrong address or token file is an error of the start."""

    def __init__(
        self, url: str, accounts: Iterable[Account], *, ca: str | None = None, token_file: str | None = None
    ) -> None:
        """Open the clients.

        Raises the errors of `connect`; InvalidRequest for tenants and tokens of an embedded store; AccessDenied for a
        token file that has no token, or cannot be read.
        """
        self._clients: dict[tuple[str, str], Client] = {}
        self._url, self._ca = url, ca
        self._of_tokens: OrderedDict[str, Client] = OrderedDict()
        self._verifies: bool | None = None
        self._lock = threading.Lock()
        places = {("", ""), *((account.tenant, account.token_file) for account in accounts)}
        try:
            for tenant, own_token in sorted(places):
                if not is_remote(url):
                    if tenant or own_token:
                        raise InvalidRequest("keys with tenants or tokens are for storage nodes")
                    self._clients["", ""] = connect(url)
                    continue
                options = ClusterOptions(tenant=tenant)
                if path := own_token or token_file:
                    TokenSource.file(path).read()
                opened = connect(url, options=options, ca=ca, token_file=path or None)
                self._clients[tenant, own_token] = opened
        except BaseException:
            self.close()
            raise

    def of(self, account: Account | None) -> Client:
        """Return the client for an account; None for requests that need no signature."""
        return self._clients["", ""] if account is None else self._clients[account.tenant, account.token_file]

    def of_token(self, token: str) -> Client | None:
        """Return the client with a token that has been opened."""
        with self._lock:
            client = self._of_tokens.get(token)
            if client is not None:
                self._of_tokens.move_to_end(token)
        return client

    def open_token(self, token: str) -> Client:
        """Return a client with this token, once the store has accepted it.

        Raises AccessDenied, InvalidRequest; AccessDenied also for a store that would accept any token.
        """
        if not self._verifies_tokens():
            raise AccessDenied("this store does not ask for tokens")
        client = connect(self._url, ca=self._ca, token=token)
        try:
            client.buckets()
        except BaseException:
            client.close()
            raise
        with self._lock:
            client = self._of_tokens.setdefault(token, client)
            # A client that is dropped may still be in use. It is closed with its last request.
            while len(self._of_tokens) > _MAX_TOKENS:
                self._of_tokens.popitem(last=False)
        return client

    def _verifies_tokens(self) -> bool:
        if not is_remote(self._url):
            return False
        if self._verifies is None:
            with connect(self._url, ca=self._ca, token=_NO_TOKEN) as client:
                try:
                    client.buckets()
                    self._verifies = False
                except AccessDenied:
                    self._verifies = True
        return self._verifies

    def close(self) -> None:
        for client in (*self._clients.values(), *self._of_tokens.values()):
            client.close()


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
