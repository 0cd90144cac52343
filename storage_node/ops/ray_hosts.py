"""Pinning to a host of Ray: by the resource that Ray creates for each host's address, which survives its restarts."""

from __future__ import annotations

_SHARE = 0.001
"""Share of that resource: up to 1,000 actors and tasks at once."""


def pinned_to(address: str) -> dict[str, float]:
    """Return the `resources` with which an actor or a task runs on that host only."""
    return {f"node:{address}": _SHARE}
