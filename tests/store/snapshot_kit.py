"""Helpers for snapshots: their names, and what is kept for them."""

from __future__ import annotations

import contextlib
from pathlib import Path

from ais_loader.errors import ObjectNotFound
from storage_node.store import format as fmt
from storage_node.store.format import BLOCK_BYTES
from storage_node.store.read.object_reader import open_object
from storage_node.store.store import Store
from tests.store.store_kit import (
    BUCKET,
    drive_of,
)

LARGE = bytes(range(256)) * (BLOCK_BYTES // 256) + b"more than one block"


def at(snapshot: str) -> str:
    return f"{BUCKET}@{snapshot}"


def reap(store: Store) -> None:
    for drive in store.drives:
        assert drive is not None
        drive.reap(everything=True)


def contents_at(store: Store, pinned: str) -> dict[str, tuple[str, bytes]]:
    """Version and bytes of what a node's store has of a snapshot, which may be read beside the node.

    A node that stood in for an owner lets go of what the owners have meanwhile, perhaps between the two steps.
    """
    found = {}
    for name, record in list(store.objects(pinned)):
        with contextlib.suppress(ObjectNotFound):
            found[name] = str(record.version), b"".join(open_object(store, pinned, name))
    return found


def retained(store: Store) -> list[str]:
    """Names of all versions that are retained, on all drives."""
    found: list[str] = []
    for drive in store.drives:
        assert drive is not None
        found += [fmt.name_of_retained(key) for key, _ in drive.catalog.scan(fmt.RETAINED_PREFIX)]
        assert not list(drive.catalog.scan(fmt.MARK_PREFIX))
    return sorted(found)


def retained_file(store: Store, name: str) -> Path:
    """Of the only version of this name that is retained."""
    drive = drive_of(store, name)
    prefix = fmt.retained_prefix(store.bucket(BUCKET).uuid_bytes, name)
    [(_, value)] = list(drive.catalog.scan(prefix))
    return drive.root / "objects" / fmt.decode_entry(value).path.decode()
