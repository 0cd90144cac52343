"""multi-storage-client integration: `msc://PROFILE/…` paths over a store, for Megatron-Energon and other libraries.

The client's configuration accepts providers from a closed list. Ours takes the place of its `ais`, which is a client of
AIStore: after one call of `install`, or by a profile with our bundle, which needs no call:

    profiles:
      speech:
        provider_bundle:
          type: ais_loader.integrations.msc.AISBundle
          options: {base_path: speech, store: "grpc://10.0.0.5:7480"}
"""

from __future__ import annotations

from .ais_bundle import AISBundle, install
from .ais_provider import AISProvider

__all__ = ["AISBundle", "AISProvider", "install"]
