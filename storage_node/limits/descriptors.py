"""Descriptor limit of the process: objects, archives, the catalog's tables and each connection take some."""

from __future__ import annotations

import contextlib
import resource

_LANES_LEAVE = 4
"""Lanes leave one of so many descriptors to everything else."""


def raise_descriptor_limit() -> None:
    """To what the process may have without being privileged."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):  # a system that has another limit besides
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def descriptor_limit() -> int:
    """Number of descriptors that this process may have."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def is_reserved(descriptor: int) -> bool:
    """Whether a lane's new descriptor is one of those that lanes leave to everything else.

    The kernel hands out the lowest free number: a high one means that all lower ones are in use.
    """
    return descriptor >= descriptor_limit() * (_LANES_LEAVE - 1) // _LANES_LEAVE
