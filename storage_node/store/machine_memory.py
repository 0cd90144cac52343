"""Memory that this process may use."""

from __future__ import annotations

import os
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")


def machine_memory_bytes() -> int:
    """Return the maximum memory of this process: the machine's, or its cgroup's if that is less."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in (*_cgroup_limits(), _CGROUPS / "memory" / "memory.limit_in_bytes"):
        try:
            total = min(total, int(path.read_text()))
        except (OSError, ValueError):  # another kind of cgroup, or "max"
            continue
    return total


def _cgroup_limits() -> list[Path]:
    """Return the limit files of this process's cgroup (version 2) and its parents; inside a container its own is often
    the root."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    inside = next((line.removeprefix("0::").strip("/") for line in lines if line.startswith("0::")), "")
    folder = _CGROUPS / inside
    return [one / "memory.max" for one in (folder, *folder.parents) if one.is_relative_to(_CGROUPS)]
