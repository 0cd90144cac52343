"""NeMo integration: checks manifests before a run.

NeMo's speech loaders get their batches from a store through Lhotse's loader, which
`ais_loader.integrations.lhotse.install()` replaces. To check manifests, run
`python -m ais_loader.integrations.nemo check MANIFEST…`. docs/nemo.md describes how to set up a run. Nothing here
imports NeMo, which takes half a minute.
"""

from __future__ import annotations
