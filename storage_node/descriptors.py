"""Descriptor limit of the process: objects, archives, the catalog's tables and each connection take some."""

from __future__ import annotations

import contextlib
import resource


def raise_descriptor_limit() -> None:
    """To what the process may have without being privileged."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):  # a system that has another limit besides
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
