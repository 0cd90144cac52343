"""Pending object: a staged file, and the name under which its commit makes it visible."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from storage_node.store.drive.preconditions import Condition
from storage_node.store.files.staged_file import StagedFile
from storage_node.store.format import CatalogEntry, Version


@dataclass(slots=True)
class PendingObject:
    """A staged file and the name under which it is to become visible."""

    bucket_uuid: bytes
    name: str
    file: StagedFile
    metadata: dict[str, str]
    version: Version | None = None
    """None: the drive gives one, above what it has. Otherwise it has to be newer than what the drive has."""
    modified_ns: int = 0
    """0: the moment of the commit."""
    damaged: CatalogEntry | None = None
    """Of an object whose bytes are not what was put: its entry as it was, so that it goes on being found damaged."""
    damaged_blocks: Sequence[int] = ()
    condition: Condition | None = None
    """Of what is there; where it does not hold, this object is not committed."""
    writes: bytes = b""
    """Its memory, besides what its drive knows of the name; see `write_memory`."""
    is_copy: bool = False
    """It is what another node or drive has: no write, which might have been done already."""
