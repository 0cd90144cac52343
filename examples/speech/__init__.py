"""A small speech model, trained through GetBatch on real recordings in five languages: see train.py."""

from __future__ import annotations

import importlib

from ais_loader.extras import needs

for package in ("soundfile", "matplotlib", "torch"):
    with needs(package, "this example"):
        importlib.import_module(package)
