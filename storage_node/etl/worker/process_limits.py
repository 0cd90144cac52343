"""Limits of a worker process: those that the kernel enforces, and what the worker does not inherit.

Each worker is a process in a session of its own, killed as a group. It dies with the process that started it. It has
limits on memory, on the size of its files and on descriptors, a scrubbed environment, an empty working folder and a low
priority. If the operator says so and the system allows it, it also has another user, and a network namespace with
nothing in it. It inherits one descriptor, its socket. Workers import this module before they start, so it imports very
little.

docs/etl.md lists what these limits do not prevent: without another user, a worker reads what the node's user may read.
The folders of drives are closed to other users (`storage_node/store/permissions.py`). Programs that the worker of a
command starts are restricted further, see `sandbox.py`.
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
"""Maximum number of entries of a worker's folder that are counted, so that a check takes milliseconds."""
NICENESS = 5
_KEPT = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PYTHONPATH")
"""Environment variables that a worker keeps: those that locate programs and libraries. None of them identifies
this node or contains a credential."""

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
"""Program that becomes another user and then executes the worker.

To change the user, `Popen` would fork instead of using vfork. gRPC's fork handlers would then run in the child and
occasionally crash it.
"""


@dataclass(frozen=True, slots=True)
class ProcessLimits:
    """Limits of one worker. Sent to it as JSON."""

    memory_bytes: int
    """Limit of private writable memory (RLIMIT_DATA). Allocations beyond it fail. The resident memory is watched as
    well, because RLIMIT_DATA does not count all of it."""
    file_bytes: int
    """Maximum size of a file that it writes, and so of an output (RLIMIT_FSIZE)."""
    network: bool
    processes: int
    """Maximum number of processes and threads of the worker's user (RLIMIT_NPROC); 0 means no limit. The kernel counts
    all processes of a user, regardless of which process started them. The limit is therefore useful only if workers
    have a user of their own, and it does not apply to root."""
    parent: int
    """Process id of the parent, which the worker must not outlive."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def start(argv: list[str], folder: Path, keep_fd: int, stderr: int, user: str) -> subprocess.Popen[bytes]:
    """Start a process in a session of its own, which inherits no descriptor except `keep_fd`. Raises TransformRefused,
    OSError.

    A process that cannot run as that user exits with a message.
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
    """Return the uid and gid of a user. Raises TransformRefused if the user does not exist."""
    import pwd

    from ais_loader.errors import TransformRefused

    try:
        found = pwd.getpwnam(user)
    except KeyError:
        raise TransformRefused(f"etl_user={user}: there is no such user on this machine") from None
    return found.pw_uid, found.pw_gid


def enter(process_limits: ProcessLimits) -> None:
    """Apply the limits in the worker, before any code of its transform is loaded. Raises OSError if one cannot be
    applied."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != process_limits.parent:  # it died before the call
        sys.exit(1)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)  # disables setuid programs
    if not process_limits.network and libc.unshare(_CLONE_NEWNET):
        if libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET):
            number = ctypes.get_errno()
            raise OSError(number, f"etl_network=false: no network namespace can be made here ({os.strerror(number)})")
        # The creator of a user namespace has all capabilities in it, and the programs that it starts could then not
        # open their input.
        drop_capabilities(libc)
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_NOFILE, _DESCRIPTORS)
    _limit(resource.RLIMIT_FSIZE, process_limits.file_bytes)
    _limit(resource.RLIMIT_DATA, process_limits.memory_bytes)
    if process_limits.processes:
        _limit(resource.RLIMIT_NPROC, process_limits.processes)
    with contextlib.suppress(OSError):
        os.nice(NICENESS)


def die_with_parent() -> None:
    """For `preexec_fn` of a program that a worker starts. Safe there, because the worker has one thread."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _limit(which: int, value: int) -> None:
    _, hard = resource.getrlimit(which)
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(which, (value, value))


def kill_group(pid: int) -> None:
    """Kill the worker and every process that it has started, except those with a session of their own."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def folder_bytes(folder: Path, beyond: int) -> int:
    """Return the bytes in the files below a worker's folder. Counting stops when they exceed `beyond`, and after a
    bounded number of entries."""
    found, left, entries_left = 0, [folder], _ENTRIES_LOOKED_AT
    while left and found <= beyond and entries_left:
        with contextlib.suppress(OSError), os.scandir(left.pop()) as entries:  # files may vanish
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
    """Return the resident memory of a process; 0 if it has ended."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()
    except (OSError, IndexError, ValueError):
        return 0
