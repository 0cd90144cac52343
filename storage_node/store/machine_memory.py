"""Memory of this process: how much it may use, and when malloc returns it to the kernel."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # malloc.h


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


def keep_freed_memory() -> None:
    """Make malloc reuse the memory of frames instead of returning it to the kernel, which would cost page faults.

    For a process that is a node and nothing else. No effect without glibc.
    """
    _mallopt({_M_MMAP_THRESHOLD: 32 << 20, _M_TRIM_THRESHOLD: 128 << 20, _M_ARENA_MAX: 2})


def share_freed_memory() -> None:
    """Make threads share what malloc has freed, instead of keeping it for each. No effect without glibc."""
    _mallopt({_M_ARENA_MAX: 2})


def _mallopt(options: Mapping[int, int]) -> None:
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for name, value in options.items():
            mallopt(name, value)
