"""Bundle of a profile, and the installation of the provider in place of the client's own for `ais`."""

from __future__ import annotations

from typing import Any

from ais_loader.extras import needs

from .ais_provider import AISProvider

with needs("multistorageclient", "msc:// over a store"):
    from multistorageclient import providers
    from multistorageclient.types import ProviderBundle, StorageProviderConfig

TYPE = "ais"
"""The type of a storage provider whose place ours takes."""


def install() -> None:
    """Let profiles of the type `ais`, and `ais://bucket/…` paths of the client, use AISProvider in this process.

    Processes that are forked later inherit it. A spawned process has to call it before it uses a profile of this type;
    AISBundle does so itself. Clients that were created before are not affected. May be called again.
    """
    providers.AIStoreStorageProvider = AISProvider


class AISBundle(ProviderBundle):  # type: ignore[misc]  # the client is not type-checked here
    """A profile's `provider_bundle` over a store. It works in processes of every kind, without a call of `install`."""

    def __init__(self, **options: Any) -> None:
        """
        Args:
            options: Options of AISProvider: `base_path`, `store`, `lock_wait_s`.
        """
        self._options = options

    @property
    def storage_provider_config(self) -> StorageProviderConfig:
        """The type and the options of the provider."""
        install()
        return StorageProviderConfig(TYPE, dict(self._options))

    @property
    def credentials_provider(self) -> None:
        """None: the store's own settings and environment variables name tokens and certificates."""
        return None

    @property
    def metadata_provider(self) -> None:
        """None: listings are those of the store."""
        return None

    @property
    def replicas(self) -> list[Any]:
        """None: copies are up to the store."""
        return []
