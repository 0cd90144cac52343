"""Plan of a gateway: all that each of its processes needs to serve."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from ..app import Gateway
from ..clients import Account, Clients
from .certificate import Certificate
from .options import GatewayOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayPlan:
    """The store, the accounts, the certificate and the options of a gateway. Can be pickled."""

    store: str
    """URL or folder."""
    accounts: dict[str, Account] | None = field(default=None, repr=False)
    """Accounts by access keys. None: requests need no signature."""
    ca: str | None = None
    token_file: str | None = None
    cert: Path | None = None
    """Certificate of the gateway, with `key`. None: it does not use TLS."""
    key: Path | None = None
    options: GatewayOptions = field(default_factory=GatewayOptions)

    def clients(self) -> Clients:
        """Open the clients of the store. Raises the errors of `Clients`."""
        accounts = (self.accounts or {}).values()
        return Clients(self.store, accounts, ca=self.ca, token_file=self.token_file)

    def certificate(self) -> Certificate | None:
        """Read the certificate. Raises OSError, ssl.SSLError."""
        return None if self.cert is None or self.key is None else Certificate(str(self.cert), str(self.key))

    def gateway(self, clients: Clients) -> Gateway:
        """Make a gateway, on the running event loop. Raises OSError."""
        return Gateway(clients, self.accounts, self.options)
