"""Drive status, for operators."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal, TypeAlias

from ais_loader.errors import LoaderError
from storage_node.store.pool.drive_set import Slot

Status: TypeAlias = Literal["active", "retiring", "disabled", "missing"]


@dataclass(frozen=True, slots=True)
class DriveState:
    """State of one drive. `problem` is None while the drive works."""

    uuid: str
    path: str
    problem: str | None
    objects_estimate: int = 0
    free_bytes: int = 0
    size_bytes: int = 0
    status: Status = "active"
    io_errors: int = 0
    """Since the drive was opened; see `Faults`."""
    last_io_error: str = ""
    checksum_errors: int = 0


def drive_state(slot: Slot, *, retiring: bool) -> DriveState:
    drive = slot.drive
    if drive is None:
        root = str(slot.root) if slot.disabled and slot.root is not None else ""
        return DriveState(slot.uuid, root, slot.problem, status="disabled" if slot.disabled else "missing")
    space: os.statvfs_result | None = None
    objects_estimate = 0
    problem: str | None = None
    try:
        objects_estimate = drive.catalog.estimated_keys()
        space = os.statvfs(drive.root)
    except OSError as error:
        problem = f"{error.strerror}"
    except LoaderError as error:
        problem = str(error)
    return DriveState(
        slot.uuid,
        str(drive.root),
        problem,
        objects_estimate if space is not None else 0,
        space.f_bavail * space.f_frsize if space is not None else 0,
        space.f_blocks * space.f_frsize if space is not None else 0,
        "retiring" if retiring else "active",
        drive.faults.io_errors,
        drive.faults.last_io_error,
        drive.faults.checksum_errors,
    )
