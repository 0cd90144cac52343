"""Private Ray head for one root on this machine: started, found again and ended without touching any other Ray.

ROOT/.cluster/ray.json    its processes, and their addresses
ROOT/.cluster/token       anyone who can read it can use this Ray (and so run code)
ROOT/.cluster/ray.log     output of `ray start`

`ray start --block` gets a session (setsid) of its own, in which all its children stay. A session's number is not reused
while a member lives, so "what we started" is exactly that session. `ray stop` selects processes by name, and would end
every Ray on the machine.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from ais_loader.errors import LoaderError
from ais_loader.extras import needs
from ais_loader.wire.node_folder import OwnFolder
from storage_node.ops.node_file import free_port
from storage_node.store.files.growing_file import write_atomically
from storage_node.store.permissions import private

FOLDER_NAME = ".cluster"
LOOPBACK = "127.0.0.1"
START_TIMEOUT_S = 120.0
END_TIMEOUT_S = 10.0
_TRIES = 3
_POLL_S = 0.05
_OBJECT_STORE_BYTES = 256 << 20
_LONGEST_TEMPORARY = 20
"""In characters. Ray's socket paths are about 75 characters longer than its folder, and must stay below 108."""


class ClusterError(LoaderError):
    """A cluster could not be started, found or stopped; the message is for the operator."""


@dataclass(frozen=True, slots=True)
class RayHead:
    """A Ray that was started for a root."""

    address: str
    """host:port of its GCS."""
    dashboard: str
    """http://host:port for submitting jobs; empty without a dashboard."""
    temporary: str
    session: int
    started_ticks: int
    boot: str

    @property
    def environment(self) -> dict[str, str]:
        """Variables that a process needs to use this Ray, and to start it."""
        return {
            "RAY_AUTH_MODE": "token",
            # The only switch that keeps Ray from listening on all interfaces of the machine.
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
            "RAY_ENABLE_AUTO_CONNECT": "0",
            "RAY_USAGE_STATS_ENABLED": "0",
        }

    def processes(self) -> list[int]:
        """Return its living processes, unless the machine has rebooted since."""
        if self.boot != _boot_id():
            return []
        alive = {pid: stat for pid, stat in _processes().items() if stat.session == self.session and stat.state != "Z"}
        leader = alive.get(self.session)
        # Another process may lead a session of this number, long after all of ours have ended.
        return [] if leader is not None and leader.started_ticks != self.started_ticks else sorted(alive)

    def answers(self) -> bool:
        """Whether the session's leader lives, and one of its processes listens at the recorded address of the GCS.

        Another Ray that was started at the same moment may have taken the port first.
        """
        pids = self.processes()
        return self.session in pids and _listens(pids, int(self.address.rpartition(":")[2]))


def token_path(root: Path) -> Path:
    return root / FOLDER_NAME / "token"


def log_path(root: Path) -> Path:
    return root / FOLDER_NAME / "ray.log"


def environment(root: Path, head: RayHead) -> dict[str, str]:
    """Return variables that let a process use the Ray of this root."""
    return {**head.environment, "RAY_AUTH_TOKEN_PATH": str(token_path(root))}


@contextlib.contextmanager
def only_command(root: Path) -> Iterator[None]:
    """Lock: one command at a time changes what runs for a root. Raises ClusterError, OSError."""
    folder = root / FOLDER_NAME
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with OwnFolder(folder) as own:
        try:
            fcntl.flock(own.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ClusterError(f"another command is changing the cluster of {root}; wait for it") from None
        yield


def remembered(root: Path) -> RayHead | None:
    """Return the Ray that was last started for a root, alive or not; None after it was ended."""
    try:
        with OwnFolder(root / FOLDER_NAME) as folder:
            return RayHead(**json.loads(folder.read("ray.json")))
    except (OSError, ValueError, TypeError):
        return None


class _EndedEarly(ClusterError):
    """Ray ended by itself during its start."""


def require_ray() -> None:
    """Require that Ray is installed. Raises ClusterError."""
    with needs("ray", "a cluster's nodes", ClusterError):
        if importlib.util.find_spec("ray") is None:  # it is imported later, with other variables set
            raise ModuleNotFoundError("No module named 'ray'")


def start(root: Path, *, dashboard: bool, timeout_s: float = START_TIMEOUT_S) -> RayHead:
    """Start a Ray for this root on loopback, and return when it accepts connections.

    Raises ClusterError, OSError.
    """
    for tries_left in reversed(range(_TRIES)):
        try:
            return _start(root, dashboard=dashboard, timeout_s=timeout_s)
        except _EndedEarly:  # another process may have taken a port since it was chosen
            if not tries_left:
                raise
    raise AssertionError("the last try returns or raises")


def _start(root: Path, *, dashboard: bool, timeout_s: float) -> RayHead:
    (root / FOLDER_NAME).mkdir(mode=0o700, parents=True, exist_ok=True)
    # Ray's own defaults, if they are free; 10002 to 19999 belong to its workers.
    gcs, agent = _free_port(6379), _free_port(52_365)
    client = free_port(LOOPBACK, among=(10_001, *range(20_001, 21_000)))
    page = _free_port(8265) if dashboard else 0
    head = RayHead(
        address=f"{LOOPBACK}:{gcs}",
        dashboard=f"http://{LOOPBACK}:{page}" if page else "",
        temporary=_temporary_folder(),
        session=0,
        started_ticks=0,
        boot=_boot_id(),
    )
    command = [
        sys.executable,
        "-m",
        "ray.scripts.scripts",
        "start",
        "--head",
        "--block",
        "--disable-usage-stats",
        f"--port={gcs}",
        f"--ray-client-server-port={client}",
        f"--dashboard-agent-listen-port={agent}",
        f"--include-dashboard={'true' if dashboard else 'false'}",
        f"--temp-dir={head.temporary}",
        f"--object-store-memory={_OBJECT_STORE_BYTES}",
        "--log-color=false",
    ]
    if dashboard:
        command += [f"--dashboard-host={LOOPBACK}", f"--dashboard-port={page}"]
    else:
        command.append("--include-log-monitor=false")
    _write_token(root)
    with open(log_path(root), "wb", opener=private) as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd="/",
            env=_ray_environment(os.environ) | environment(root, head),
        )
    stat = _stat(process.pid)
    if stat is not None:
        head = RayHead(**{**asdict(head), "session": process.pid, "started_ticks": stat.started_ticks})
        write_atomically(root / FOLDER_NAME / "ray.json", json.dumps(asdict(head)).encode())
    deadline = time.monotonic() + timeout_s
    while not (head.answers() and _is_up(root)):
        if process.poll() is None and time.monotonic() > deadline and head.answers():
            break  # a later version of Ray may word it differently
        if process.poll() is not None or time.monotonic() > deadline:
            code = process.returncode
            why = f"ended with code {code}" if code is not None else f"did not start within {timeout_s:g} s"
            end(root)
            failure = ClusterError if code is None else _EndedEarly
            raise failure(f"Ray {why}; {log_path(root)} has what it said{_last_words(root)}")
        time.sleep(_POLL_S)
    return head


def end(root: Path, timeout_s: float = END_TIMEOUT_S) -> int:
    """Kill all remaining processes of the Ray of this root, and delete its record. Returns their number.

    Drain the nodes before. Raises ClusterError if a process does not end.
    """
    head = remembered(root)
    if head is None:
        return 0
    seen: set[int] = set()
    deadline = time.monotonic() + timeout_s
    while alive := head.processes():
        if time.monotonic() > deadline:
            raise ClusterError(f"processes of Ray that do not end: {', '.join(map(str, alive))}")
        seen.update(alive)
        # The leader last: it distinguishes this session from a later one with the same number.
        for pid in sorted(alive, key=lambda pid: pid == head.session):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(head.session, os.WNOHANG)  # in case this process started it
        time.sleep(_POLL_S)
    shutil.rmtree(head.temporary, ignore_errors=True)
    with contextlib.suppress(FileNotFoundError):
        (root / FOLDER_NAME / "ray.json").unlink()
    return len(seen)


def _ray_environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the environment that Ray's processes, and the jobs they run, inherit."""
    kept = {name: value for name, value in inherited.items() if not name.startswith("RAY_")}
    # A job's `python` is found on this path: the one that has the package, whether or not its environment is active.
    kept["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), kept.get("PATH", os.defpath)])
    return kept


def _free_port(first: int) -> int:
    return free_port(LOOPBACK, among=range(first, first + 1000))


def _temporary_folder() -> str:
    folder = tempfile.gettempdir()
    return tempfile.mkdtemp(prefix="ais-", dir=folder if len(folder) <= _LONGEST_TEMPORARY else "/tmp")


def _write_token(root: Path) -> None:
    write_atomically(token_path(root), secrets.token_hex(32).encode())


def _is_up(root: Path) -> bool:
    """Whether `ray start` reports that all parts run, not only its GCS: on a busy machine it may still give up."""
    return "Ray runtime started" in log_path(root).read_text(errors="replace")


def _last_words(root: Path) -> str:
    lines = [line for line in log_path(root).read_text(errors="replace").splitlines() if line.strip()]
    return f": {lines[-1].strip()}" if lines else ""


def _listens(pids: Iterable[int], port: int) -> bool:
    """Whether one of these processes listens on the port. Source: proc(5), /proc/net/tcp; 0A is LISTEN."""
    sockets = set()
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                    sockets.add(f"socket:[{fields[9]}]")
    for pid in pids if sockets else ():
        try:
            if any(os.readlink(one) in sockets for one in Path(f"/proc/{pid}/fd").iterdir()):
                return True
        except PermissionError:
            return True  # another user's process: that it lives has to suffice
        except OSError:
            continue  # the process, or its descriptor, has just ended
    return False


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@dataclass(frozen=True, slots=True)
class _Stat:
    state: str
    session: int
    started_ticks: int


def _stat(pid: int) -> _Stat | None:
    """Read a process's state from /proc; None for one that has ended. Source: proc(5), fields 3, 6 and 22."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return _Stat(fields[0], int(fields[3]), int(fields[19]))


def _processes() -> dict[int, _Stat]:
    pids = (int(name) for name in os.listdir("/proc") if name.isdecimal())
    return {pid: stat for pid in pids if (stat := _stat(pid)) is not None}
