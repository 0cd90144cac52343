"""Redistribution of the entries that a lane has left to other lanes. Pure functions."""

from __future__ import annotations


def in_lanes(positions: list[int], *, ordered: bool) -> list[list[int]]:
    """These entries, the one that has been begun in front, in as many lanes as they need.

    Ordered, lanes ascend. One that has been begun before others that come first, by a node that does not keep to the
    order, has a lane of its own.
    """
    if ordered and len(positions) > 1 and positions[0] > positions[1]:
        return [positions[:1], positions[1:]]
    return [positions]
