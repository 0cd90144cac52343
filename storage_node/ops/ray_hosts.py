"""Pins to a host of Ray: by the resource that Ray gives every host under its address, which outlives its restarts."""

from __future__ import annotations

_SHARE = 0.001
"""Of that resource: up to 1,000 actors and tasks at once."""


def pinned_to(address: str) -> dict[str, float]:
    """What an actor or a task asks for as `resources`, to run there and nowhere else."""
    return {f"node:{address}": _SHARE}
