"""TLS of one node: the files that it uses, issued by an identity folder or named by settings, and their renewal."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from ais_loader.errors import StoreError
from ais_loader.extras import MissingExtra
from storage_node.security.identity.credentials import TlsFiles
from storage_node.security.identity.identity_folder import IdentityFolder
from storage_node.settings.config import ServerConfig
from storage_node.settings.setting_types import split_advertised

LOOK_INTERVAL_S = 3600.0
"""Interval at which a certificate is renewed if it ends soon."""
log = logging.getLogger(__name__)


def tls_files(config: ServerConfig) -> TlsFiles | None:
    """Return the files of a node's TLS; None for a node without it."""
    listen = config.listen
    return TlsFiles(listen.cert_file, listen.key_file, listen.ca_file) if listen.cert_file else None


def issued(config: ServerConfig, identity: Path | None, node_uuid: bytes) -> ServerConfig:
    """Return the settings with a certificate from an identity folder, unless they name one already.

    Raises MissingExtra, OSError, StoreError.
    """
    if identity is None or config.listen.cert_file:
        return config
    files = IdentityFolder(identity).node_files(node_uuid, hosts_of(config))
    return config.replace(cert_file=files.cert_file, key_file=files.key_file, ca_file=files.ca_file)


def hosts_of(config: ServerConfig) -> list[str]:
    """Return the names and addresses at which clients and peers reach a node."""
    listen = config.listen
    advertised = [
        split_advertised(name, given)[0]
        for name, given in (("advertise", listen.advertise), ("peer_advertise", listen.peer_advertise))
    ]
    return [host for host in (listen.host, listen.peer_host, *advertised) if host]


class Renewal:
    """Renews the certificate of a node, if an identity folder issued it. Belongs to the node's event loop."""

    def __init__(self, config: ServerConfig, identity: Path | None, node_uuid: bytes) -> None:
        self._folder = IdentityFolder(identity) if identity is not None else None
        self._node_uuid = node_uuid
        self._hosts = hosts_of(config)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._folder is not None:
            self._task = asyncio.create_task(self._run(self._folder), name="renewing the certificate")

    async def _run(self, folder: IdentityFolder) -> None:
        while True:
            await asyncio.sleep(LOOK_INTERVAL_S)
            try:
                await asyncio.to_thread(folder.node_files, self._node_uuid, self._hosts)
            except (OSError, StoreError, MissingExtra) as error:
                log.warning("the node's certificate could not be renewed: %s", error)

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
