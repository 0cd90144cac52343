"""Block device below a folder: bytes and time of its reads and writes, as the kernel counts them.

The counts are the device's or partition's, whoever uses it, in units of 512 bytes whatever its sector size is
(https://docs.kernel.org/admin-guide/iostats.html). A file system without a device of its own, such as tmpfs, NFS or
btrfs, has none.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

DEVICES = Path("/sys/dev/block")
_SECTOR_BYTES = 512


class DeviceCounts(NamedTuple):
    """Counts of a block device since the machine started. `busy_s`: time with at least one request."""

    read_bytes: int
    written_bytes: int
    busy_s: float


def device_counts(folder: str) -> DeviceCounts | None:
    """Return the counts of the device that has the folder; None if the kernel has none for it."""
    try:
        device = os.stat(folder).st_dev
        fields = (DEVICES / f"{os.major(device)}:{os.minor(device)}" / "stat").read_text().split()
        return DeviceCounts(int(fields[2]) * _SECTOR_BYTES, int(fields[6]) * _SECTOR_BYTES, int(fields[9]) / 1000)
    except (OSError, ValueError, IndexError):
        return None
