"""Stores in Ray's processes: named on the driver, opened where a task runs, and kept for later tasks."""

from __future__ import annotations

import os

from ais_loader import errors
from ais_loader.objects.client import URL_VARIABLE

from ..shared_store import StoreReference, named_url

_kept: dict[str, StoreReference] = {}
"""Kept, because a process of Ray runs many tasks, and opening an embedded store costs more than many reads."""


def store_here(url: str) -> StoreReference:
    """Return this process's reference to the store."""
    return _kept.setdefault(url, StoreReference(url))


def portable_url(store: str | os.PathLike[str] | None) -> str:
    """Return the store's URL for a task that runs in another folder and environment. Raises InvalidRequest."""
    url = named_url(store)
    if url is None:
        raise errors.InvalidRequest(f"no store named: pass store=..., or set {URL_VARIABLE}")
    if "://" in url and not url.startswith("file://"):
        return url
    return ",".join(os.path.abspath(part.removeprefix("file://")) for part in url.split(","))
