"""Fences around a worker: limits that the kernel holds, and what a worker does not inherit.

Each worker is a process in a session of its own, killed as a group; it dies with the process that started it, has
limits of memory, of the size of its files and of descriptors, a scrubbed environment, an empty folder to work in, a low
priority, and, where the operator says so and the system allows it, another user and a network of its own with nothing
in it. It inherits one descriptor, its socket. Workers import this module before they begin: it imports next to nothing.

docs/etl.md says what these do not hold off: without another user, a worker reads what the node's user may read. The
folders of drives are closed to other users (`storage_node/store/permissions.py`). Programs that a worker of a command
starts are restricted further, see `sandbox.py`.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from storage_node.etl.worker.sandbox import drop_capabilities

_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS = 1, 38
_CLONE_NEWNET, _CLONE_NEWUSER = 0x40000000, 0x10000000
_DESCRIPTORS = 256
_ENTRIES_LOOKED_AT = 4000
"""Of a worker's folder, so that looking takes milliseconds."""
NICENESS = 5
_KEPT = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PYTHONPATH")
"""Of the environment: what finds programs and libraries. Nothing that says who we are to anybody."""

_SWITCH = """
import os, sys
user, uid, gid, *argv = sys.argv[1:]
try:
    os.setgroups([])
    os.setresgid(*3 * [int(gid)])
    os.setresuid(*3 * [int(uid)])
except OSError as error:
    sys.exit(f"etl_user={user}: the node may not become it ({error.strerror})")
try:
    os.execvp(argv[0], argv)
except OSError as error:
    sys.exit(f"etl_user={user} may not run {argv[0]} ({error.strerror}): etl_python names an interpreter that it may")
"""
"""Program that becomes another user and then the worker.

`Popen` would fork to change the user, and not vfork: handlers of gRPC then run in the child, and now and then crash it.
"""


@dataclass(frozen=True, slots=True)
class Fences:
    """Of one worker. Sent to it as JSON."""

    memory_bytes: int
    """Of private memory that it may write to (RLIMIT_DATA). Beyond, its allocations fail; what it has in memory is
    watched besides, for what that does not count."""
    file_bytes: int
    """Of a file that it writes, and so of an output (RLIMIT_FSIZE)."""
    network: bool
    processes: int
    """That the worker's user may have, threads among them (RLIMIT_NPROC); 0: any. The kernel counts those of a user,
    whoever started them: it holds where workers have one of their own, and does nothing to root."""
    parent: int
    """The process whose death it must not outlive."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def start(argv: list[str], folder: Path, keep_fd: int, stderr: int, user: str) -> subprocess.Popen[bytes]:
    """A process of its own session, with nothing of ours but `keep_fd`. Raises TransformRefused, OSError.

    One that cannot run as that user ends, and says why.
    """
    environment = {name: os.environ[name] for name in _KEPT if name in os.environ}
    environment |= {"HOME": str(folder), "TMPDIR": str(folder), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    if user:
        argv = [sys.executable, "-I", "-S", "-c", _SWITCH, user, *map(str, ids_of(user)), *argv]
    return subprocess.Popen(
        argv,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=stderr,
        stderr=stderr,
        close_fds=True,
        pass_fds=(keep_fd,),
        start_new_session=True,
    )


def ids_of(user: str) -> tuple[int, int]:
    """Uid and gid. Raises TransformRefused where there is no such user."""
    import pwd

    from ais_loader.errors import TransformRefused

    try:
        found = pwd.getpwnam(user)
    except KeyError:
        raise TransformRefused(f"etl_user={user}: there is no such user on this machine") from None
    return found.pw_uid, found.pw_gid


def enter(fences: Fences) -> None:
    """In the worker, before anything of its transform is loaded. Raises OSError where a fence cannot be put up."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != fences.parent:  # it died before that
        sys.exit(1)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)  # programs that are another user's to whoever runs them
    if not fences.network and libc.unshare(_CLONE_NEWNET):
        if libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET):
            number = ctypes.get_errno()
            raise OSError(number, f"etl_network=false: no network namespace can be made here ({os.strerror(number)})")
        # Whoever makes a user namespace may do anything in it, and what it starts may then not open its input.
        drop_capabilities(libc)
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_NOFILE, _DESCRIPTORS)
    _limit(resource.RLIMIT_FSIZE, fences.file_bytes)
    _limit(resource.RLIMIT_DATA, fences.memory_bytes)
    if fences.processes:
        _limit(resource.RLIMIT_NPROC, fences.processes)
    with contextlib.suppress(OSError):
        os.nice(NICENESS)


def die_with_parent() -> None:
    """For `preexec_fn` of a program that a worker starts: the worker has one thread."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _limit(which: int, value: int) -> None:
    _, hard = resource.getrlimit(which)
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(which, (value, value))


def kill_group(pid: int) -> None:
    """The worker and all that it has started and that did not make a session of its own."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def folder_bytes(folder: Path, beyond: int) -> int:
    """What a worker has written below its folder, as far as that is soon told; no further than to be above `beyond`."""
    found, left, entries_left = 0, [folder], _ENTRIES_LOOKED_AT
    while left and found <= beyond and entries_left:
        with contextlib.suppress(OSError), os.scandir(left.pop()) as entries:  # they come and go meanwhile
            for entry in entries:
                entries_left -= 1
                if entry.is_dir(follow_symlinks=False):
                    left.append(Path(entry.path))
                else:
                    found += 512 * entry.stat(follow_symlinks=False).st_blocks
                if found > beyond or not entries_left:
                    break
    return found


def resident_bytes(pid: int) -> int:
    """What a process has in memory; 0 for one that has gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()
    except (OSError, IndexError, ValueError):
        return 0
