"""A small speech model, trained through GetBatch on real recordings in five languages: see train.py."""

from __future__ import annotations

import importlib.util

from ais_loader.extras import needs

for package in ("soundfile", "matplotlib", "torch"):  # looked for, not imported: that takes seconds
    with needs(package, "this example"):
        if importlib.util.find_spec(package) is None:
            raise ImportError(f"No module named {package!r}")
