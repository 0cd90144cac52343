"""Sandbox of commands: restricts what a program that a transform runs may open and communicate with.

Three mechanisms of the kernel, all of which an ordinary user may use, restrict a command and everything that it starts:

- Landlock: it reads programs and libraries, the folders that the operator adds, and its input. It writes only below its
  scratch folder. It cannot look into other processes, signal them, or use TCP, as far as the kernel's version goes.
- seccomp: it cannot make a socket that reaches another process, change modes, owners, times and attributes of files,
  change how other processes are scheduled, or leave its process group, which ends with its worker.
- Capabilities: it has none, also where its user is root.

`offered` returns what this kernel supports. The node queries it and sends it to its workers. A worker uses every
mechanism that it is sent, or fails. Workers import this module, so it imports little.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
import signal
import socket
import stat
import struct
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_ABI_QUERY, _PATH_BENEATH = 1, 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_REMOVE_DIR, _REMOVE_FILE, _MAKE_DIR, _MAKE_REG = 1 << 4, 1 << 5, 1 << 7, 1 << 8
_MAKE_SOCK, _MAKE_FIFO, _MAKE_SYM, _REFER, _TRUNCATE = 1 << 9, 1 << 10, 1 << 12, 1 << 13, 1 << 14
_FS_BITS = {1: 13, 2: 14, 3: 15, 4: 15}
"""Number of file rights in each version of Landlock; 16 from version 5 on."""
_NET_RIGHTS, _SCOPES = 0b11, 0b11
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_SCRATCH = (
    _WRITE_FILE | _READ_FILE | _READ_DIR | _REMOVE_DIR | _REMOVE_FILE | _MAKE_DIR | _MAKE_REG | _MAKE_SOCK | _MAKE_FIFO
) | (_MAKE_SYM | _REFER | _TRUNCATE)
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE
TRUNCATE_ABI, SIGNALS_ABI = 3, 6
"""From these versions on, Landlock covers truncate(2), and signals to other processes."""

SYSTEM_FOLDERS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_SYSTEM_FILES = (
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/ld.so.preload",
    "/etc/alternatives",
    "/etc/fonts",
    "/etc/localtime",
    "/etc/ImageMagick-6",
    "/etc/ImageMagick-7",
    "/dev/zero",
    "/dev/random",
    "/dev/urandom",
    "/proc/cpuinfo",
    "/proc/meminfo",
    "/sys/devices/system/cpu",
)

_PR_SET_SECCOMP, _PR_CAPBSET_DROP, _PR_SET_CHILD_SUBREAPER = 22, 24, 36
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
_SECCOMP_MODE_FILTER = 2
_CAPABILITY_VERSION_3 = 0x20080522
_CAPABILITIES = 64


@dataclass(frozen=True, slots=True)
class _Calls:
    """Numbers of system calls on one kind of machine, and the number of the machine itself in a filter."""

    machine: int
    away: tuple[int, ...]
    """socket, io_uring_setup (which makes sockets, too), setpgid, setsid."""
    shared: tuple[int, ...]
    """add_key, request_key, keyctl, shmget, shmat: what other processes of the same user keep in the kernel."""
    pair: int
    """socketpair, which a command may use for streams. A datagram socket of a pair can also send to any address."""
    prlimit: int
    """prlimit64, which a command may use for its own process only (pid 0): otherwise it could remove limits of the
    node."""
    truncating: tuple[int, ...]
    """truncate, which Landlock covers only in later versions."""
    attributes: tuple[int, ...]
    """chmod, chown, setxattr, removexattr and utime in all forms, and file_setattr: they change a file's mode, owner,
    attributes or times. Landlock does not cover them, and they need no descriptor that may be written. They do nothing
    and succeed: programs set the modes and times of their own files."""
    scheduling: tuple[int, ...]
    """setpriority, sched_setparam, sched_setscheduler, sched_setaffinity, sched_setattr and ioprio_set: they could slow
    down the node, or bind it to one processor. They do nothing and succeed, too: programs place their own threads."""


_CALLS = {
    "x86_64": _Calls(
        0xC000003E,
        (41, 425, 109, 112),
        (248, 249, 250, 29, 30),
        53,
        302,
        (76,),
        (90, 91, 268, 452, 92, 93, 94, 260, 188, 189, 190, 197, 198, 199, 463, 466, 469, 132, 235, 261, 280),
        (141, 142, 144, 203, 314, 251),
    ),
    "aarch64": _Calls(
        0xC00000B7,
        (198, 425, 154, 157),
        (217, 218, 219, 194, 196),
        199,
        261,
        (45,),
        (52, 53, 452, 54, 55, 5, 6, 7, 14, 15, 16, 463, 466, 469, 88),
        (140, 118, 119, 122, 274, 30),
    ),
}
_X32_CALLS = 0x40000000
_SOCKET_TYPES = 0xF
"""Bits of a socket's type; the others are flags."""


@dataclass(frozen=True, slots=True)
class Offered:
    """Mechanisms of a kernel that can restrict commands. Sent to workers as JSON."""

    landlock_abi: int
    """Version of Landlock; 0 if there is none."""
    seccomp: bool

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def lacking(self) -> tuple[str, ...]:
        """Sentences about a command, each naming something that it can do because the kernel lacks a mechanism."""
        found = []
        if not self.landlock_abi:
            found.append("it can read and write every file that its user can (no Landlock in this kernel)")
        elif self.landlock_abi < TRUNCATE_ABI and not self.seccomp:
            found.append(f"it can truncate files of its user (Landlock ABI {self.landlock_abi}, 3 is needed)")
        if self.landlock_abi < SIGNALS_ABI:
            found.append(f"it can signal other processes of its user (Landlock ABI {self.landlock_abi}, 6 is needed)")
        if not self.seccomp:
            some = "Unix and UDP sockets" if self.landlock_abi >= 4 else "the network"
            found.append(
                f"it can use {some}, and outlive its time limit in other processes (no seccomp for "
                f"{platform.machine()} here)"
            )
        return tuple(found)

    def __str__(self) -> str:
        """Text for status: the mechanisms in use, and what is lacking."""
        used = []
        if self.landlock_abi:
            used.append(f"Landlock ABI {self.landlock_abi}")
        if self.seccomp:
            used.append("seccomp")
        text = ", ".join(used) or "none"
        return f"{text}; a command is not fully contained: {'; '.join(self.lacking)}" if self.lacking else text


def offered() -> Offered:
    """Query the kernel. It costs two system calls."""
    libc = ctypes.CDLL(None, use_errno=True)
    abi = libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_ABI_QUERY))
    # With a null filter, a kernel that knows filters fails with EFAULT; otherwise it rejects the mode.
    libc.prctl(_PR_SET_SECCOMP, ctypes.c_ulong(_SECCOMP_MODE_FILTER), None, 0, 0)
    seccomp = ctypes.get_errno() == errno.EFAULT and platform.machine() in _CALLS
    return Offered(max(0, abi), seccomp)


class Sandbox:
    """Sandbox of one run. Created by a worker before it starts the command, entered by the command's process.

    Args:
        readable: Files and folders that may be read and executed, in addition to the system's.
        input_fd: File that may be read; -1 for none.
        output_fds: Files that may be written. The command has them as its standard streams, and may reopen them through
            /dev/stdout and the like.

    Raises OSError if the kernel refuses.
    """

    def __init__(
        self, offered: Offered, scratch: str, readable: Sequence[str], input_fd: int, output_fds: Sequence[int]
    ) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._filter = _filter(offered) if offered.seccomp else None
        self._ruleset = -1
        abi = offered.landlock_abi
        if not abi:
            return
        self._rights = (1 << _FS_BITS.get(abi, 16)) - 1
        attributes = struct.pack("=QQQ", self._rights, _NET_RIGHTS, _SCOPES)[: 8 if abi < 4 else 16 if abi < 6 else 24]
        self._ruleset = _checked(
            self._libc.syscall(_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint32(0))
        )
        try:
            for path in (*SYSTEM_FOLDERS, *_SYSTEM_FILES, *readable):
                self._allow_path(path, _READ)
            self._allow_path("/dev/null", _READ_FILE | _WRITE_FILE | _TRUNCATE)
            self._allow_path(scratch, _SCRATCH)
            if input_fd >= 0:
                self._allow(input_fd, _READ_FILE)
            for fd in output_fds:
                self._allow(fd, _READ_FILE | _WRITE_FILE | _TRUNCATE)
        except BaseException:
            self.close()
            raise

    def enter(self) -> None:
        """Apply the sandbox in the process of the command, between fork and exec. Raises OSError; then the command must
        not run."""
        libc = self._libc
        for number in range(_CAPABILITIES):  # otherwise root would regain them at exec
            libc.prctl(_PR_CAPBSET_DROP, ctypes.c_ulong(number), 0, 0, 0)
        libc.prctl(_PR_CAP_AMBIENT, ctypes.c_ulong(_PR_CAP_AMBIENT_CLEAR_ALL), 0, 0, 0)
        drop_capabilities(libc)
        if self._ruleset >= 0:
            _checked(libc.syscall(_RESTRICT_SELF, self._ruleset, ctypes.c_uint32(0)))
        if self._filter is not None:
            program = ctypes.create_string_buffer(self._filter)
            header = struct.pack("HP", len(self._filter) // 8, ctypes.addressof(program))
            _checked(libc.prctl(_PR_SET_SECCOMP, ctypes.c_ulong(_SECCOMP_MODE_FILTER), header, 0, 0))

    def close(self) -> None:
        if self._ruleset >= 0:
            os.close(self._ruleset)
            self._ruleset = -1

    def _allow_path(self, path: str, rights: int) -> None:
        """Allow a path. A path that does not exist needs no rule."""
        try:
            fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            return
        try:
            self._allow(fd, rights)
        finally:
            os.close(fd)

    def _allow(self, fd: int, rights: int) -> None:
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            rights &= _OF_FILES
        rule = struct.pack("=Qi", rights & self._rights, fd)
        try:
            _checked(self._libc.syscall(_ADD_RULE, self._ruleset, _PATH_BENEATH, rule, ctypes.c_uint32(0)))
        except OSError as error:
            if error.errno != errno.EBADFD:  # a memory file: the holder of its descriptor may open it
                raise


def drop_capabilities(libc: ctypes.CDLL) -> None:
    """Drop all capabilities of this process. Raises OSError."""
    header, none = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0), (ctypes.c_uint32 * 6)()
    if libc.capset(header, none):
        number = ctypes.get_errno()
        raise OSError(number, f"capabilities cannot be dropped: {os.strerror(number)}")


def adopt_orphans() -> None:
    """From now on, orphaned descendants of this process become its children."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(1), 0, 0, 0)


def end_children() -> None:
    """Kill all children of this process, and the orphans that it adopts by that. Returns when none is left."""
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG)[0]:
                continue
        except ChildProcessError:
            return
        for pid in _children():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(-1, 0)


def _children() -> list[int]:
    found = []
    own = str(os.getpid())
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with contextlib.suppress(OSError, IndexError), open(f"/proc/{name}/stat") as file:
                if file.read().rpartition(")")[2].split()[1] == own:
                    found.append(int(name))
    return found


def _filter(offered: Offered) -> bytes:
    """Return a classic BPF program that fails some system calls with EPERM, skips some, and allows all others.

    Programs of another architecture (32-bit ones) are killed, because their calls have other numbers.
    """
    calls = _CALLS[platform.machine()]
    denied = (*calls.away, *calls.shared, *(calls.truncating if offered.landlock_abi < TRUNCATE_ABI else ()))
    skipped = (*calls.attributes, *calls.scheduling)
    load, mask, equal, at_least, give = 0x20, 0x54, 0x15, 0x35, 0x06
    kill, allow, fail = 0x80000000, 0x7FFF0000, 0x00050000
    number_at, machine_at, first_argument_at, second_argument_at = 0, 4, 16, 24
    left = len(denied) + len(skipped)
    """Comparisons with these calls. 8 instructions about prlimit64 and socketpair follow, then the three ends: allow,
    skip, deny."""
    program = [(load, 0, 0, machine_at), (equal, 1, 0, calls.machine), (give, 0, 0, kill), (load, 0, 0, number_at)]
    program.append((at_least, left + 10, 0, _X32_CALLS))
    program += [(equal, left - at + 9, 0, call) for at, call in enumerate(denied)]
    program += [(equal, left - at + 8, 0, call) for at, call in enumerate(skipped, len(denied))]
    program += [(equal, 0, 2, calls.prlimit), (load, 0, 0, first_argument_at), (equal, 5, 7, 0)]
    program += [(equal, 0, 4, calls.pair), (load, 0, 0, second_argument_at), (mask, 0, 0, _SOCKET_TYPES)]
    program += [(equal, 1, 0, socket.SOCK_STREAM), (equal, 0, 2, socket.SOCK_SEQPACKET)]
    program += [(give, 0, 0, allow), (give, 0, 0, fail), (give, 0, 0, fail | errno.EPERM)]
    return b"".join(struct.pack("HBBI", *one) for one in program)


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"the sandbox of commands: {os.strerror(number)}")
    return result
