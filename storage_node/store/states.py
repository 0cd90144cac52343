"""One drive as an operator sees it."""

from __future__ import annotations

import os
from dataclasses import dataclass

from storage_node.store.drive import Drive
from storage_node.store.errors import StoreError


@dataclass(frozen=True, slots=True)
class DriveState:
    """`problem` is None while the drive works."""

    uuid: str
    path: str
    problem: str | None
    objects_estimate: int = 0
    free_bytes: int = 0
    size_bytes: int = 0


def drive_state(drive_uuid: str, drive: Drive | None, problem: str | None) -> DriveState:
    """`problem`: what was wrong with it when the store was opened."""
    if drive is None:
        return DriveState(drive_uuid, "", problem)
    try:
        space = os.statvfs(drive.root)
        objects_estimate = drive.catalog.estimated_keys()
    except OSError as error:
        return DriveState(drive_uuid, str(drive.root), f"{error.strerror}")
    except StoreError as error:
        return DriveState(drive_uuid, str(drive.root), str(error))
    return DriveState(
        drive_uuid, str(drive.root), problem, objects_estimate,
        space.f_bavail * space.f_frsize, space.f_blocks * space.f_frsize,
    )  # fmt: skip
