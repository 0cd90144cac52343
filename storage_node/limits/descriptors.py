"""Descriptor limit of the process: objects, archives, the catalog's tables and each connection use descriptors."""

from __future__ import annotations

import contextlib
import resource

_LANES_LEAVE = 4
"""Lanes leave one in this many descriptors to everything else."""


def raise_descriptor_limit() -> None:
    """Raise the soft limit to the hard limit, which needs no privileges."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):  # a system with a further limit
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def descriptor_limit() -> int:
    """Number of descriptors that this process may have."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def is_reserved(descriptor: int) -> bool:
    """Whether a lane's new descriptor is in the range that lanes leave to everything else.

    The kernel assigns the lowest free number, so a high one means that all lower ones are in use.
    """
    return descriptor >= descriptor_limit() * (_LANES_LEAVE - 1) // _LANES_LEAVE
