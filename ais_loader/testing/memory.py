"""Memory readings of a process, as the kernel counts it. Linux: read from /proc.

RSS counts pages that are shared or mapped from files, too; compare two readings of one process, not one with a limit.
"""

from __future__ import annotations

import os
import re
from pathlib import Path


def rss_bytes(pid: int | None = None) -> int:
    """Resident memory now; of this process without `pid`."""
    return _status(pid, "VmRSS")


def peak_rss_bytes(pid: int | None = None) -> int:
    """The most resident memory since the process started, or since `reset_peak_rss`."""
    return _status(pid, "VmHWM")


def reset_peak_rss(pid: int | None = None) -> None:
    """Let the peak start again from what is resident now."""
    Path(f"/proc/{pid or os.getpid()}/clear_refs").write_text("5")


def _status(pid: int | None, field: str) -> int:
    found = re.search(rf"^{field}:\s+(\d+) kB$", Path(f"/proc/{pid or os.getpid()}/status").read_text(), re.MULTILINE)
    if found is None:
        raise ProcessLookupError(f"process {pid} has ended")
    return int(found[1]) << 10
