"""multi-storage-client: `msc://` paths of a profile, as Megatron-Energon reads its data.

Differs: [Below](#multi-storage-client-in-detail) are profiles, what differs, and what is tested with Energon.
"""

import os
from pathlib import Path

import multistorageclient as msc

PACKAGES = ("multi-storage-client", "megatron-energon")
BUNDLE = {"type": "ais_loader.integrations.msc.AISBundle", "options": {"base_path": "speech"}}  # change
CONFIG = msc.StorageClientConfig.from_dict({"profiles": {"speech": {"provider_bundle": BUNDLE}}}, profile="speech")

client = msc.StorageClient(CONFIG)
folder = Path(os.environ["SPEECH"])
paths = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.flac"))
assert sorted(client.glob("**/*.flac")) == paths
assert [client.read(path) for path in paths] == [(folder / path).read_bytes() for path in paths]
