"""NeMo integration: its speech loaders take their batches from a store through Lhotse's loader, which
`ais_loader.integrations.lhotse.install()` puts in its place; here is what looks at manifests before a run.

`python -m ais_loader.integrations.nemo check MANIFEST…`; docs/nemo.md says how a run is set up. Nothing here imports
NeMo, which takes half a minute.
"""

from __future__ import annotations
