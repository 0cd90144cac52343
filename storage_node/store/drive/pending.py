"""Pending object: a staged file, and the name under which its commit makes it visible."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from storage_node.store.drive.preconditions import Condition
from storage_node.store.files.staged_file import StagedFile
from storage_node.store.format import CatalogEntry, Version


@dataclass(slots=True)
class PendingObject:
    """Staged file with the name under which it will become visible."""

    bucket_uuid: bytes
    name: str
    file: StagedFile
    metadata: dict[str, str]
    version: Version | None = None
    """None: the drive issues one above what it has. Otherwise it has to be newer than what the drive has."""
    modified_ns: int = 0
    """0: the time of the commit."""
    damaged: CatalogEntry | None = None
    """Original entry of an object with damaged bytes. It is kept, so that the object remains detectable as damaged."""
    damaged_blocks: Sequence[int] = ()
    condition: Condition | None = None
    """Condition on the current object. If it does not hold, this object is not committed."""
    writes: bytes = b""
    """Write memory, in addition to what its drive knows of the name; see `write_memory`."""
    is_copy: bool = False
    """Whether it copies an object of another node or drive. It is then not a write that may have been done already."""
