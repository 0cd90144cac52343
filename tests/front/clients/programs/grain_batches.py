"""Grain: shuffled batches, each of which is one request.

Differs: Grain shuffles and batches numbers, and the last line of a pipeline reads a batch: see
[Grain in detail](#grain-in-detail).
"""

import os
from pathlib import Path

import grain

from ais_loader import MapDataset
from ais_loader.integrations.grain import Source

PACKAGES = ("grain",)
STORE = os.environ["AIS_LOADER_URL"]
source = Source(MapDataset(STORE, "ais://speech/", lambda item: item.tobytes()))  # change
paths = sorted(Path(os.environ["SPEECH"]).rglob("*.flac"), key=lambda path: str(path.relative_to(os.environ["SPEECH"])))
numbers = grain.MapDataset.range(len(source)).seed(1).shuffle().batch(8)
batches = numbers.map(source.__getitems__).to_iter_dataset()  # change
over_files = numbers.map(lambda batch: [paths[at].read_bytes() for at in batch]).to_iter_dataset()
assert list(batches) == list(over_files)
