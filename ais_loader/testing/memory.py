"""Memory readings of a process, as the kernel counts them. They are read from /proc, so this needs Linux.

RSS also counts pages that are shared or mapped from files. Compare two readings of one process, not one with a limit.
"""

from __future__ import annotations

import os
import re
from pathlib import Path


def rss_bytes(pid: int | None = None) -> int:
    """Return the current resident memory of process `pid`, by default this one."""
    return _status(pid, "VmRSS")


def peak_rss_bytes(pid: int | None = None) -> int:
    """Return the peak of resident memory since the process started, or since `reset_peak_rss`."""
    return _status(pid, "VmHWM")


def reset_peak_rss(pid: int | None = None) -> None:
    """Reset the peak to the current resident memory."""
    Path(f"/proc/{pid or os.getpid()}/clear_refs").write_text("5")


def _status(pid: int | None, field: str) -> int:
    found = re.search(rf"^{field}:\s+(\d+) kB$", Path(f"/proc/{pid or os.getpid()}/status").read_text(), re.MULTILINE)
    if found is None:
        raise ProcessLookupError(f"process {pid} has ended")
    return int(found[1]) << 10
