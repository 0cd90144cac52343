"""Options of clients whose nodes may stand still for a while, as on a busy machine."""

from __future__ import annotations

from ais_loader import ClusterOptions

PATIENT_CLIENT = ClusterOptions(retry_s=240.0)
