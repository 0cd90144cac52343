"""Settings of one node process: a frozen value that validates itself."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Any

from storage_node.settings import declarations
from storage_node.settings.declarations import GROUPS, SETTINGS
from storage_node.settings.setting_types import declared, split_advertised

DEFAULT = "default"
"""Value that restores the default of a setting."""
EVERY_ADDRESS = ("0.0.0.0", "::", "[::]")


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a listener on `host`. A name other than localhost may be any address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True, slots=True, init=False)
class ServerConfig:
    """The settings of a node in nine groups: `listen`, `store`, `reads`, `limits`, `cluster`, `etl`, `remote`,
    `audit` and `gateway`.
    `durability` and `read_lease_s` change what clients can rely on; the others set speed and limits.
    """

    listen: declarations.ListenSettings
    store: declarations.StoreSettings
    reads: declarations.ReadSettings
    limits: declarations.LimitSettings
    cluster: declarations.ClusterSettings
    etl: declarations.EtlSettings
    remote: declarations.RemoteSettings
    audit: declarations.AuditSettings
    gateway: declarations.GatewaySettings

    def __init__(self, **settings: Any) -> None:
        """Take settings by their own names, as in `ServerConfig(port=0, etl_workers=2)`; others keep their defaults.

        Raises TypeError for an unknown name, and ValueError for a value out of range.
        """
        for name, group in GROUPS.items():
            given = {one.field: settings.pop(one.name) for one in declared(group) if one.name in settings}
            object.__setattr__(self, name, group(**given))
        if settings:
            raise TypeError(f"{min(settings)}: no such setting")
        if self.etl.install and self.etl.python:
            raise ValueError(
                f"etl_install and etl_python={self.etl.python}: either Ray makes environments, of the interpreter that "
                "the node has, or there is one that has everything"
            )

    def by_name(self) -> dict[str, Any]:
        """All settings by their own names."""
        owned = ((getattr(self, name), declared(group)) for name, group in GROUPS.items())
        return {one.name: getattr(group, one.field) for group, settings in owned for one in settings}

    def replace(self, **settings: Any) -> ServerConfig:
        """Return a copy with other values of these settings. Raises TypeError, ValueError."""
        return ServerConfig(**self.by_name() | settings)

    def endpoint(self, port: int) -> str:
        """The host:port at which clients reach a node that listens on `port`; empty if unknown."""
        host, outer_port = split_advertised("advertise", self.listen.advertise)
        return _endpoint(host or self.listen.host, outer_port or port)

    def peer_endpoint(self, port: int) -> str:
        """The same for other nodes. If `peer_host` is every address, the host is the one that clients use."""
        host, outer_port = split_advertised("peer_advertise", self.listen.peer_advertise)
        if not host and self.listen.peer_host in EVERY_ADDRESS:
            host = split_advertised("advertise", self.listen.advertise)[0] or self.listen.host
        return _endpoint(host or self.listen.peer_host, outer_port or port)

    def as_text(self) -> dict[str, str]:
        """All settings except the addresses and ports of the node and its gateway, as text by name."""
        hidden = (declarations.ListenSettings, declarations.GatewaySettings)
        return {name: _text(name, one) for name, one in self.by_name().items() if SETTINGS[name].group not in hidden}


def _text(name: str, value: Any) -> str:
    if value is None:
        return DEFAULT
    if isinstance(value, tuple):
        return (" " if name == "etl_servers" else ":").join(value)
    if isinstance(value, dict):
        if name == "tenant_weights":
            return ",".join(f"{tenant}={weight:g}" for tenant, weight in value.items())
        return "; ".join(f"{command}={words}" for command, words in value.items())
    return f"{value:.15g}" if isinstance(value, float) else str(value)


def _endpoint(host: str, port: int) -> str:
    return "" if host in EVERY_ADDRESS else f"{host}:{port}"
