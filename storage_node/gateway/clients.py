"""Clients of the store, one for each tenant and token that access keys have."""

from __future__ import annotations

from collections.abc import Iterable

from ais_loader.errors import InvalidRequest
from ais_loader.objects.client import Client, connect
from ais_loader.values.options import ClusterOptions
from ais_loader.values.urls import is_remote
from storage_node.gateway.keys import Account


class Clients:
    """Clients by account. They are opened at once, so that a wrong address or token file is noticed at the start."""

    def __init__(
        self, url: str, accounts: Iterable[Account], *, ca: str | None = None, token_file: str | None = None
    ) -> None:
        """Raises the errors of `connect`; InvalidRequest for tenants and tokens of an embedded store."""
        self._clients: dict[tuple[str, str], Client] = {}
        places = {("", ""), *((account.tenant, account.token_file) for account in accounts)}
        try:
            for tenant, own_token in sorted(places):
                if not is_remote(url):
                    if tenant or own_token:
                        raise InvalidRequest("keys with tenants or tokens are for storage nodes")
                    self._clients["", ""] = connect(url)
                    continue
                options = ClusterOptions(tenant=tenant)
                opened = connect(url, options=options, ca=ca, token_file=own_token or token_file)
                self._clients[tenant, own_token] = opened
        except BaseException:
            self.close()
            raise

    def of(self, account: Account | None) -> Client:
        """Return the client for an account; None for requests that need no signature."""
        return self._clients["", ""] if account is None else self._clients[account.tenant, account.token_file]

    def close(self) -> None:
        for client in self._clients.values():
            client.close()
