"""Node folder: the files by which the processes of a host find the one node that serves a store, or start it.

They are in the folder `node` of the store's first drive:

    pid         The id of the node's process. Whoever starts the node locks this file, and the node keeps the lock until
                it ends, so the kernel tells whether there is a node.
    address     Where the node listens, as JSON. Present from the time when it accepts connections until it stops.
    log, log.1  The output of a node that was started on demand.
    socket.PID  Unix socket of such a node, which no other user can reach, because the folder is closed to them.

The lock is a `flock`: it belongs to an open file, not to a process. A process that has the store's catalog open can
open and close these files without losing the catalog's own lock.

The drive may be found where other users can write, such as below /tmp. So it and the folder are opened as `OwnFolder`s.

A folder that was found rather than made, such as one below /tmp, may belong to somebody else, and a link in it would
choose which file is written, and which is believed. Whoever finds a folder opens it here: it has to belong to this
user, others can no longer write to it, and its files are regular files of this user, opened without following links.

The credentials and places of a node on demand are variables of the process that started it. The address of the node has
a digest of each such variable, so that another process can tell whether its own differ. The digests have a key of their
own for each node: nobody can look a value up in a table, or compare two nodes.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import platform
import re
import socket
import stat
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Self
from urllib.parse import quote, unquote

from ais_loader.wire.channel_options import peer_of

FOLDER_NAME = "node"
_DRIVE_FILE = "drive.json"
_SOCKET = "socket."
_LONGEST_SOCKET_PATH = 107
"""In bytes: unix(7)."""
UNIX_SCHEME = "unix:"
_FOLDER_MODE = 0o700


@dataclass(frozen=True, slots=True)
class NodeAddress:
    """The address of a running node."""

    endpoint: str
    """HOST:PORT, or the path of a Unix socket as `unix_endpoint` returns it; for clients on the same host."""
    pid: int
    version: str
    """The version of ais_loader that the node runs."""
    host: str
    """The host on which `endpoint` is valid; see `host_id`."""
    environment: dict[str, str] = field(default_factory=dict, hash=False)
    """Digests of the environment of a node that was started on demand; see `node_environment`."""


class NodeFolder:
    """The node folder of the store on these drives. Several drives may be given in any order.

    Attributes:
        drive: The drive that has the folder.
        path: The folder itself, an absolute path without links.
    """

    def __init__(self, drives: Sequence[str | os.PathLike[str]]) -> None:
        paths = sorted(Path(os.path.realpath(drive)) for drive in drives)
        # A drive that is not mounted now is an empty folder, or none.
        self.drive = next((path for path in paths if _is_drive(path)), paths[0])
        self.path = self.drive / FOLDER_NAME
        self.pid_path = self.path / "pid"
        self.log_path = self.path / "log"
        self._address_path = self.path / "address"

    @property
    def has_store(self) -> bool:
        return _is_drive(self.drive)

    @property
    def exists(self) -> bool:
        """Whether the folder exists, and this user may know."""
        return os.path.isdir(self.path)

    def lock(self) -> int | None:
        """Lock the folder, which is created if necessary. Returns a descriptor that holds the lock, and is not
        inherited by programs; None while a node is running or being started. Raises OSError; PermissionError if the
        drive, the folder or a file in it is another user's.

        A forked child inherits the lock, so a process must not fork until it has closed the descriptor.
        """
        if not self.exists:
            self.drive.mkdir(_FOLDER_MODE, parents=True, exist_ok=True)
        with OwnFolder(self.drive):
            self.path.mkdir(_FOLDER_MODE, exist_ok=True)
            lock = self._open("pid", os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return None
        except BaseException:
            os.close(lock)
            raise
        return lock

    def _open(self, name: str, flags: int) -> int:
        with OwnFolder(self.path) as folder:
            return folder.open(name, flags)

    def open_log(self, most_bytes: int) -> int:
        """Return a descriptor that appends to the log, which is renamed if it has more bytes. Raises OSError."""
        log = self._open("log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        if os.fstat(log).st_size <= most_bytes:
            return log
        os.close(log)
        os.replace(self.log_path, self.path / "log.1")
        return self._open("log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def address(self) -> NodeAddress | None:
        """Read the address. It is valid only if the folder was locked just before. Returns None if there is none.

        Raises PermissionError if another user wrote it, or listens at its socket.
        """
        try:
            with open(self._open("address", os.O_RDONLY), "rb") as file:
                address = NodeAddress(**json.load(file))
        except (FileNotFoundError, ValueError, TypeError):
            return None
        if address.endpoint.startswith(UNIX_SCHEME):
            _require_own_socket(unquote(address.endpoint.removeprefix(UNIX_SCHEME)))
        return address

    def pid(self) -> int | None:
        """Read the id of the node's process; None if there is none."""
        with contextlib.suppress(OSError, ValueError):
            return int(self.pid_path.read_bytes())
        return None

    def make_socket_path(self) -> Path:
        """Return a path for the Unix socket of this process's node, and remove sockets of nodes before. Call it with
        the folder locked. Raises OSError.

        The socket is in this folder, or, where its path would be too long for a socket, in a folder of its own below
        the system's folder for temporary files.
        """
        for former in self.path.glob(f"{_SOCKET}*"):
            former.unlink(missing_ok=True)
        path = self.path / f"{_SOCKET}{os.getpid()}"
        if len(os.fsencode(path)) <= _LONGEST_SOCKET_PATH:
            return path
        return Path(tempfile.mkdtemp(prefix="ais-loader-node-")) / "socket"

    def publish(self, lock: int, address: NodeAddress) -> None:
        """Write the address of this process's node. `lock`: the descriptor from `lock`. Raises OSError."""
        os.ftruncate(lock, 0)
        os.pwrite(lock, b"%d\n" % address.pid, 0)
        new = self.path / "address.new"
        new.unlink(missing_ok=True)
        with open(self._open(new.name, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "w") as file:
            json.dump(asdict(address), file)
        os.replace(new, self._address_path)

    def withdraw(self, lock: int) -> None:
        """Remove the address and the id of the process. `lock`: the descriptor from `lock`. Raises OSError."""
        os.ftruncate(lock, 0)
        self._address_path.unlink(missing_ok=True)


def unix_endpoint(path: Path) -> str:
    """Return the endpoint of a Unix socket, as gRPC takes it."""
    return UNIX_SCHEME + quote(os.fsencode(path))


def _require_own_socket(path: str) -> None:
    """Require that a process of this user listens at a Unix socket, if one does. Raises PermissionError."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except OSError:
            return  # gRPC tells
        user = peer_of(probe)[1]
    if user != os.geteuid():
        raise PermissionError(0, f"user {user} listens there, and this process is user {os.geteuid()}", path)


def _is_drive(path: Path) -> bool:
    return os.path.exists(path / _DRIVE_FILE)  # not `Path.exists`, which raises PermissionError


def host_id() -> str:
    """Return what the processes have in common that reach the same loopback addresses: the host since its last start,
    and the network namespace."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return f"{file.read().strip()} {os.readlink('/proc/self/ns/net')}"
    except OSError:
        return platform.node()


_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_FILE_MODE = 0o600


class OwnFolder:
    """An open folder of this user. Raises OSError; PermissionError if another user can choose what is in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            found = os.fstat(self.fd)
            _require_own(found, path)
            if found.st_mode & _OTHERS_WRITE:
                os.fchmod(self.fd, stat.S_IMODE(found.st_mode) & ~_OTHERS_WRITE)
        except BaseException:
            os.close(self.fd)
            raise

    def open(self, name: str, flags: int) -> int:
        """Return a descriptor of a file. Not for O_TRUNC, which would come before the check."""
        path = self.path / name
        try:
            fd = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, _FILE_MODE, dir_fd=self.fd)
        except OSError as error:
            raise type(error)(error.errno, error.strerror, str(path)) from None
        try:
            found = os.fstat(fd)
            _require_own(found, path)
            if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
                raise PermissionError(0, "it is a link, or no regular file", str(path))
        except BaseException:
            os.close(fd)
            raise
        return fd

    def read(self, name: str) -> bytes:
        with open(self.open(name, os.O_RDONLY), "rb") as file:
            return file.read()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)


def _require_own(found: os.stat_result, path: Path) -> None:
    """Require that a file belongs to this user. Raises PermissionError."""
    if found.st_uid != (user := os.geteuid()):
        raise PermissionError(0, f"it belongs to user {found.st_uid}, and this process is user {user}", str(path))


_VARIABLE = re.compile("(AIS(?!_LOADER_)|AWS|AZURE|GOOGLE)_.*|(HTTPS?|ALL|NO)_PROXY", re.IGNORECASE)
_KEY = ""
"""Name of the key among the digests; no variable has an empty name."""


def environment_digests(key: bytes | None = None) -> dict[str, str]:
    """Return the digests of this process's variables by name, and their key in hexadecimal."""
    key = key or os.urandom(16)
    digests = {
        name: hashlib.blake2b(value.encode(errors="surrogateescape"), digest_size=16, key=key).hexdigest()
        for name, value in os.environ.items()
        if _VARIABLE.fullmatch(name)
    }
    return {_KEY: key.hex(), **digests}


def other_variables(digests: Mapping[str, str]) -> list[str]:
    """Return the names of the variables that this process has, and the node has not, or with another value.

    What only the node has is no difference: a process without credentials may use those of another one.
    """
    if not digests:
        return []
    own = environment_digests(bytes.fromhex(digests[_KEY]))
    return sorted(name for name, digest in own.items() if digests.get(name) != digest)
