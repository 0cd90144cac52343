"""Machine under a measurement: CPU time and memory of nodes, and the method by which caches were made cold."""

from __future__ import annotations

import ipaddress
import os
import platform
import socket
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ais_loader.testing.memory import peak_rss_bytes, reset_peak_rss
from ais_loader.values.urls import NODE_SCHEME, endpoints_of
from ais_loader.wire.block_device import DeviceCounts, device_counts
from ais_loader.wire.closing import closing_fd

_TICKS = os.sysconf("SC_CLK_TCK")


def name() -> str:
    """Describe this machine for a result: its name, and the properties on which the figures depend."""
    return (
        f"{platform.node()}, {len(os.sched_getaffinity(0))} cores, Linux {platform.release()}, "
        f"Python {platform.python_version()}"
    )


class Nodes:
    """Node processes of a store on this machine; nothing is known of others."""

    def __init__(self, described: Mapping[str, Any]) -> None:
        self.unseen: list[str] = []
        self._pids: list[int] = []
        for node in described.get("nodes") or ([described] if "pid" in described else []):
            url, pid = str(node.get("url", "")), int(node.get("pid") or 0)
            if pid and (url.startswith(NODE_SCHEME) or is_local(host_of(url))) and _is_python(pid):
                self._pids.append(pid)
            else:
                self.unseen.append(url)

    def cpu_s(self) -> float | None:
        """Return the CPU time used so far; None if a node cannot be seen from here, or there is none."""
        return self._sum(_cpu_s)

    def begin_peak(self) -> None:
        """Reset peak memory, where that is permitted."""
        for pid in self._pids:
            try:
                reset_peak_rss(pid)
            except OSError:
                return

    def peak_bytes(self) -> int | None:
        """Return the sum of all nodes' peak resident memory, each at its own time."""
        found = self._sum(peak_rss_bytes)
        return None if found is None else int(found)

    def _sum(self, of: Any) -> float | None:
        if self.unseen or not self._pids:
            return None
        try:
            return float(sum(of(pid) for pid in self._pids))
        except (OSError, ValueError):
            return None


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def host_of(url: str) -> str:
    """Return the host of `grpc://HOST:PORT` or `grpcs://HOST:PORT`, or of HOST:PORT."""
    return endpoints_of(url)[0].rpartition(":")[0].strip("[]")


def is_local(host: str) -> bool:
    """Whether it is a name or an address of this machine."""
    try:
        found = ipaddress.ip_address(socket.gethostbyname(host))
        with socket.socket(socket.AF_INET6 if found.version == 6 else socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.bind((str(found), 0))  # only an address of this machine can be bound
    except (OSError, ValueError):
        return False
    return True


def _is_python(pid: int) -> bool:
    """Whether the process may be a node. The pid of another machine or a container may be any process here."""
    try:
        return b"python" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def device_counts_of(described: Mapping[str, Any]) -> dict[str, DeviceCounts]:
    """Return the counts of the block device below each drive of this machine that has one, by the drive's path."""
    found = {str(drive["path"]): device_counts(drive["path"]) for drive in described.get("drives", ())}
    return {path: counts for path, counts in found.items() if counts is not None}


def make_cold(described: Mapping[str, Any], *, drop: Path = Path("/proc/sys/vm/drop_caches")) -> str:
    """Remove the files of a store's drives from the page cache, as far as this process may. Return a description of
    what was done.

    With sufficient rights, the whole machine's cache is dropped; otherwise the kernel is advised for each file.
    """
    drives = [str(drive["path"]) for drive in described.get("drives", ())]
    local = [drive for drive in drives if Path(drive).is_dir()]
    remote = [drive for drive in drives if drive not in local]
    if not local:
        return f"not cold: no drive of the store is on this machine ({', '.join(drives) or 'none is told'})"
    os.sync()
    try:
        drop.write_text("1")
        note = f"dropped this machine's page cache by {drop}"
    except OSError as error:
        files, size = _forget(local)
        note = (
            f"advised the kernel to forget {files:,} files of {size / 2**30:.2f} GiB (posix_fadvise DONTNEED), which "
            f"it does not do for pages in use; {drop} could not be written: {error.strerror}"
        )
    if shared := [drive for drive in local if drive.startswith("/dev/shm")]:
        note += f"; NOT cold, as they are memory themselves: {', '.join(shared)}"
    if remote:
        note += f"; not cold, as they are not on this machine: {', '.join(remote)}"
    return note + "; caches of nodes and drives themselves stay as they are"


def _forget(folders: Iterable[str]) -> tuple[int, int]:
    files = size = 0
    for path in _files(folders):
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        except OSError:
            continue  # deleted in the meantime, or not readable
        with closing_fd(descriptor):
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            files, size = files + 1, size + os.fstat(descriptor).st_size
    return files, size


def _files(folders: Iterable[str]) -> Iterator[str]:
    for folder in folders:
        for parent, _, names in os.walk(folder):
            yield from (os.path.join(parent, name) for name in names)
