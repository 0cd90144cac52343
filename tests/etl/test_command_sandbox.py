"""Attacks by the data that a command is given, on a node: a shell runs the object as its script.

Each attack runs without the sandbox as well, where it has to succeed: an attack that fails there shows nothing.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import socket
import stat
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ais_loader import Bucket, Client, NodeCommand, connect, errors
from ais_loader.testing import eventually
from storage_node.etl.worker import sandbox
from storage_node.etl.worker.sandbox import Offered
from storage_node.server import NodeServer
from tests.etl.worker_kit import of_template, run_one
from tests.node.node_kit import serving

KERNEL = sandbox.offered()
NEEDS_LANDLOCK = pytest.mark.skipif(KERNEL.landlock_abi < 3, reason=f"Landlock ABI {KERNEL.landlock_abi}, 3 is needed")
NEEDS_SIGNAL_SCOPE = pytest.mark.skipif(
    KERNEL.landlock_abi < 6, reason=f"Landlock ABI {KERNEL.landlock_abi}, 6 is needed"
)
NEEDS_SECCOMP = pytest.mark.skipif(not KERNEL.seccomp, reason="this kernel or machine has no seccomp filters for us")
COMMANDS = {
    "script": "sh {input}",
    "bash": "bash {input}",
    "python": "/usr/bin/python3 -I {input}",
    "to_file": "sh {input} {output}.bin",
    "from_stdin": "sh",
}
SECRET = "a secret of the node"


@dataclass
class Place:
    """A node, its folder, and a client with a bucket."""

    node: NodeServer
    folder: Path
    client: Client
    bucket: Bucket

    def run(self, script: str, command: str = "script") -> bytes:
        self.bucket.put("attack", script.encode())
        return self.bucket.get("attack", etl=command)

    def attempt(self, script: str, command: str = "script") -> str:
        """The output of a script, or the error."""
        try:
            return self.run(script, command).decode()
        except errors.TransformFailed as error:
            return f"failed: {error}"


@contextlib.contextmanager
def place_of(folder: Path, **config: Any) -> Iterator[Place]:
    config = {"etl_commands": COMMANDS, "etl_workers": 1, "etl_cache_bytes": 0} | config
    with serving(folder, **config) as node, connect(node.url) as client:
        bucket = client.create_bucket("b")
        for name in COMMANDS:
            client.etl.init(name, NodeCommand(name))
        yield Place(node, folder, client, bucket)


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A node with the default settings."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIS_LOADER_TEST_SECRET", SECRET)
        with place_of(tmp_path_factory.mktemp("held")) as place:
            yield place


@pytest.fixture(scope="module")
def free(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with place_of(tmp_path_factory.mktemp("free"), etl_sandbox="off") as place:
        yield place


def size_of(path: Path) -> int:
    """Return the size of a file; 0 if it has gone."""
    try:
        return path.stat().st_size if path.is_file() else 0
    except FileNotFoundError:
        return 0


def of_drive(place: Place) -> list[Path]:
    """Files of the store: its record, its catalog, and an object that has a file of its own."""
    if not place.bucket.exists("other"):  # the file of one that is replaced goes later
        place.bucket.put("other", b"of another client " * 100_000)
    drive = place.folder / "drive"
    record, (catalog,) = drive / "record.json", drive.rglob("CURRENT")
    largest = max((drive / "objects").rglob("*"), key=size_of)
    assert record.exists() and size_of(catalog) and size_of(largest) >= 1_800_000
    return [record, catalog, largest]


# -- reading


@pytest.mark.slow
@NEEDS_LANDLOCK
def test_a_command_reads_neither_the_machine_nor_the_store(held: Place, free: Place, tmp_path: Path) -> None:
    secret = tmp_path / "peer-secret"
    secret.write_text(SECRET)
    everywhere = ["/etc/passwd", "/etc/hostname", str(secret), f"/proc/{os.getpid()}/environ", "/proc/1/cmdline"]
    for path in (*everywhere, *map(str, of_drive(free))):
        assert len(free.run(f"head -c 100 '{path}'")) > 0, path
    for path in (*everywhere, *map(str, of_drive(held))):
        assert "Permission denied" in held.attempt(f"head -c 100 '{path}'"), path
    for folder in ("/", "/etc", "/root", "/home", "/tmp", "/proc", str(held.folder)):
        assert "Permission denied" in held.attempt(f"ls {folder}"), folder


@pytest.mark.slow
@NEEDS_LANDLOCK
def test_a_link_leads_a_command_nowhere_else(held: Place, free: Place) -> None:
    assert b"root:" in free.run("ln -s /etc/passwd here; cat here")
    for script in (
        "ln -s /etc/passwd here; cat here",
        "ln /etc/passwd here && cat here",
        "ln -s / root; cat root/etc/passwd",
        "cat /proc/self/root/etc/passwd",
        "cat ../../../record.json",
    ):
        assert held.attempt(script).startswith("failed: "), script


def test_an_output_that_is_a_link_or_a_device_is_none(held: Place, free: Place) -> None:
    """The worker, which is not in the sandbox, opens the output."""
    for place in (held, free):
        for script in ("ln -s /etc/passwd $1", "mkfifo $1", "mkdir $1", "ln -s /dev/zero $1"):
            assert "is no regular file" in place.attempt(script, "to_file"), script
        assert "wrote no {output}" in place.attempt("rm -f $1", "to_file")
        assert place.run("printf done > $1", "to_file") == b"done"


# -- writing


@pytest.mark.slow
@NEEDS_LANDLOCK
def test_a_command_writes_only_below_its_folder(held: Place, free: Place, tmp_path: Path) -> None:
    def scripts(place: Place, name: str) -> list[str]:
        record = of_drive(place)[0]
        return [
            f"echo owned > {tmp_path}/{name}",
            f"echo owned > /tmp/ais-loader-{name}; rm /tmp/ais-loader-{name}",
            f"echo owned > /dev/shm/ais-loader-{name}; rm /dev/shm/ais-loader-{name}",
            f"cp {record} {tmp_path}/record",
            f"mkdir {place.folder}/drive/{name}",
            f"echo x > {place.folder}/drive/spool/{name}",
        ]

    for script in scripts(free, "free"):
        free.run(f"set -e; {script}")
    record, _, largest = of_drive(held)
    before = [(path.read_bytes(), path.stat().st_mode) for path in (record, largest)]
    for script in (
        *scripts(held, "held"),
        f"mv {record} {record}.away",
        f"rm {record}",
        f": > {record}",
        f"truncate -s 0 {record}",
        f"mv {held.folder}/drive/spool .",
    ):
        assert held.attempt(f"set -e; {script}").startswith("failed: "), script
    assert held.run("mkdir -p a/b; echo kept > a/b/c; mv a/b/c d; ln -s d e; cat e; echo x > /dev/null") == b"kept\n"
    assert (
        not list(tmp_path.glob("held*")) and [(p.read_bytes(), p.stat().st_mode) for p in (record, largest)] == before
    )


@NEEDS_LANDLOCK
@NEEDS_SECCOMP
def test_a_command_changes_no_modes_and_attributes_of_files(held: Place, free: Place, tmp_path: Path) -> None:
    """Landlock does not know these calls. `chmod` of its own files succeeds, as programs expect."""
    file = tmp_path / "file"
    file.write_bytes(b"")
    set_attribute = f"import os\nos.setxattr({str(file)!r}, 'user.x', b'y')\n"
    for place in (free, held):
        file.chmod(0o600)
        place.run(f"chmod 777 {file}; touch own; chmod 700 own")
        assert stat.S_IMODE(file.stat().st_mode) == (0o600 if place is held else 0o777)
    with contextlib.suppress(OSError):  # of a file system that has no attributes
        free.attempt(set_attribute, "python")
        there = os.listxattr(file)
        for name in there:
            os.removexattr(file, name)
        held.attempt(set_attribute, "python")
        assert os.listxattr(file) == []


@NEEDS_SECCOMP
def test_a_command_changes_no_times_of_files(held: Place, free: Place, tmp_path: Path) -> None:
    """`touch` of its own files succeeds."""
    file = tmp_path / "file"
    file.write_bytes(b"")
    before = file.stat().st_mtime_ns
    held.run(f"touch own; touch -d 2001-01-01 own {file}")
    assert file.stat().st_mtime_ns == before
    free.run(f"touch -d 2001-01-01 {file}")
    assert file.stat().st_mtime_ns < before


@NEEDS_LANDLOCK
def test_a_command_changes_no_object_by_the_descriptor_of_its_input(held: Place) -> None:
    script = f"set -e; echo changed > $0 || echo changed 1<> $0\n#{'x' * 5_000_000}"
    held.bucket.put("whole", script.encode())  # too large for memory: the command reads a file of the spool
    with pytest.raises(errors.TransformFailed, match="Permission denied"):
        held.bucket.get("whole", etl="script")
    assert held.bucket.get("whole") == script.encode()


# -- the network and other processes


@NEEDS_SECCOMP
def test_a_command_reaches_no_listener(held: Place, free: Place, tmp_path: Path) -> None:
    """The attacks use TCP, UDP, and Unix sockets, whose files a network namespace does not hide."""
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as unix:
        unix.bind(str(tmp_path / "listener"))
        unix.listen()
        for listener in (tcp, unix):
            listener.settimeout(60)
        port = tcp.getsockname()[1]
        by_bash = f"exec 3<>/dev/tcp/127.0.0.1/{port} && echo connected"
        by_unix = f"import socket\nsocket.socket(socket.AF_UNIX).connect({str(tmp_path / 'listener')!r})\nprint('done')"
        by_udp = f"import socket\nsocket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', {port}))"
        assert free.run(by_bash, "bash") == b"connected\n"
        tcp.accept()[0].close()

        assert free.run(by_unix, "python") == b"done\n"
        unix.accept()[0].close()

        free.run(by_udp, "python")
        for script, command in ((by_bash, "bash"), (by_unix, "python"), (by_udp, "python")):
            said = held.attempt(script, command)
            assert "not permitted" in said, said
        for listener in (tcp, unix):
            listener.setblocking(False)
            with pytest.raises(BlockingIOError):
                listener.accept()


@pytest.mark.slow
@NEEDS_SECCOMP
def test_a_command_reaches_neither_the_metadata_of_a_cloud_nor_the_node(held: Place, free: Place) -> None:
    """The node could be asked for other buckets, at its ports and sockets, and the metadata for keys of the cloud."""

    def attack(place: Place) -> dict[str, str]:
        ports = place.node.port, place.node.peer_port, place.node.lanes.port
        return {
            "metadata": (
                "import errno, socket\none = socket.socket()\none.setblocking(False)\n"
                "print('tried', errno.errorcode[one.connect_ex(('169.254.169.254', 80))])"
            ),
            "node": (
                "import socket\n"
                f"for port in {ports}:\n    socket.create_connection(('127.0.0.1', port), 5).close()\nprint('tried')"
            ),
            "lane": (
                "import socket\none = socket.socket(socket.AF_UNIX)\n"
                f"one.connect(chr(0) + {place.node.lanes._unix_name!r})\nprint('tried')"
            ),
        }

    for name, script in attack(free).items():
        assert free.run(script, "python").startswith(b"tried"), name
    for name, script in attack(held).items():
        said = held.attempt(script, "python")
        assert "not permitted" in said and "tried" not in said, (name, said)


@pytest.mark.slow
@NEEDS_SECCOMP
def test_a_command_sends_no_datagram_by_a_pair_of_sockets(held: Place, free: Place, tmp_path: Path) -> None:
    """A socket of a pair of datagram sockets sends to any address. A pair of streams does not, and is allowed."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "listener"))
        listener.setblocking(False)
        for kind in ("SOCK_DGRAM", "SOCK_RAW", "SOCK_DGRAM | socket.SOCK_CLOEXEC"):
            script = (
                f"import socket\none, _ = socket.socketpair(socket.AF_UNIX, socket.{kind})\n"
                f"one.sendto(b'told', {str(tmp_path / 'listener')!r})\n"
            )
            free.run(script, "python")
            assert listener.recv(8) == b"told"
            assert "not permitted" in held.attempt(script, "python")
            with pytest.raises(BlockingIOError):
                listener.recv(8)
    pair = "import socket\none, other = socket.socketpair()\none.send(b'x')\nprint(other.recv(8))\n"
    assert held.run(pair, "python") == b"b'x'\n"


@NEEDS_SIGNAL_SCOPE
def test_a_command_signals_no_other_process(held: Place, free: Place) -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: heard.append(number))
    try:
        free.run(f"kill -USR1 {os.getpid()}")
        eventually(lambda: heard == [signal.SIGUSR1])
        assert "not permitted" in held.attempt(f"kill -USR1 {os.getpid()}")
        assert "not permitted" in held.attempt("kill -KILL $PPID"), "its worker"
        assert heard == [signal.SIGUSR1]
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.slow
@NEEDS_SECCOMP
def test_a_command_sets_limits_of_no_other_process(held: Place, free: Place) -> None:
    with subprocess.Popen(["sleep", "600"]) as other:
        try:
            script = f"import resource\nresource.prlimit({other.pid}, resource.RLIMIT_CORE, (0, 0))\n"
            own = "resource.setrlimit(resource.RLIMIT_CORE, (0, 0))\nprint('own')\n"
            assert "Operation not permitted" in held.attempt(script, "python")
            assert held.run(script.partition("\n")[0] + "\n" + own, "python") == b"own\n"
            assert free.run(script + own, "python") == b"own\n"
        finally:
            other.kill()


@pytest.mark.slow
@NEEDS_SECCOMP
def test_a_command_changes_the_scheduling_of_no_other_process(held: Place, free: Place) -> None:
    with subprocess.Popen(["sleep", "600"]) as other:
        try:
            script = (
                f"import os\nos.setpriority(os.PRIO_PROCESS, {other.pid}, 7)\n"
                f"os.sched_setaffinity({other.pid}, {{0}})\n"
                f"os.sched_setscheduler({other.pid}, os.SCHED_IDLE, os.sched_param(0))\nprint('done')\n"
            )
            before = os.getpriority(os.PRIO_PROCESS, other.pid), os.sched_getscheduler(other.pid)
            assert held.run(script, "python") == b"done\n"
            assert (os.getpriority(os.PRIO_PROCESS, other.pid), os.sched_getscheduler(other.pid)) == before
            assert free.run(script, "python") == b"done\n"
            assert (os.getpriority(os.PRIO_PROCESS, other.pid), os.sched_getscheduler(other.pid)) == (7, os.SCHED_IDLE)
        finally:
            other.kill()


@NEEDS_LANDLOCK
def test_a_command_looks_into_no_other_process(held: Place) -> None:
    for name in ("environ", "maps", "mem", "fd/0", "cwd/record.json"):
        for pid in ("$PPID", str(os.getpid())):
            assert held.attempt(f"head -c 1 /proc/{pid}/{name}").startswith("failed: "), name


@pytest.mark.slow
@NEEDS_SECCOMP
def test_nothing_that_a_command_starts_outlives_it(held: Place) -> None:
    """Daemons leave their session, and are orphans at once. The worker takes them in, and ends them."""
    daemon = (
        "import os, sys, time\nif os.fork(): time.sleep(600)\n"
        "try: os.setsid()\nexcept PermissionError: print('held')\nsys.stdout.flush()\nif os.fork(): os._exit(0)\n"
    )
    (started,) = held.run("sleep 654 & echo $!").split()
    assert not Path(f"/proc/{int(started)}").exists()
    (started,) = held.run("(sleep 654 & echo $!) & wait").split()
    assert not Path(f"/proc/{int(started)}").exists()
    held.client.etl.init("slow", NodeCommand("python"), timeout_s=2.0)
    held.bucket.put("attack", (daemon + "time.sleep(655)\n").encode())
    with pytest.raises(errors.TransformTimeout):
        held.bucket.get("attack", etl="slow")

    def left() -> list[str]:
        found = []
        for pid in filter(str.isdecimal, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                found.append(Path(f"/proc/{pid}/cmdline").read_bytes().decode())
        return [line for line in found if str(held.folder) in line and "worker" not in line.split("\0")[-2]]

    eventually(lambda: not left())


# -- what a command is given


def test_nothing_of_the_node_is_in_the_environment_and_the_descriptors_of_a_command(held: Place) -> None:
    said = held.run("env; pwd").decode()
    assert SECRET not in said and "AIS_LOADER" not in said
    values = dict(line.partition("=")[::2] for line in said.splitlines() if "=" in line)
    assert values["HOME"] == values["TMPDIR"] == said.splitlines()[-1]
    script = "import os\nfor fd in range(256):\n  try: print(fd, oct(os.fstat(fd).st_mode))\n  except OSError: pass\n"
    listed = held.run(script, "python").decode().splitlines()
    kinds = [(int(fd), stat.S_IFMT(int(mode, 8))) for fd, mode in map(str.split, listed)]
    by_number = dict(kinds)
    assert set(by_number) >= {0, 1, 2} and len(by_number) <= 5  # its input, and that as the script that runs
    assert stat.S_IFSOCK not in by_number.values() and stat.S_IFDIR not in by_number.values()


def test_what_one_object_leaves_is_not_there_for_the_next_one(held: Place) -> None:
    held.run("echo x > left; echo x > $HOME/.profile; mkdir sub; chmod 0 sub; ln -s left link")
    assert held.run("ls -A") == b"input\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has capabilities to lose")
@NEEDS_SECCOMP
def test_a_command_of_root_has_no_capabilities(held: Place, free: Place) -> None:
    script = (
        "import ctypes\nheader, data = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()\n"
        "ctypes.CDLL(None).capget(header, data)\nprint(any(data))\n"
    )
    assert free.run(script, "python") == b"True\n"
    assert held.run(script, "python") == b"False\n"


def test_whoever_reads_stdin_is_given_the_object_there(held: Place) -> None:
    assert held.run("echo of stdin", "from_stdin") == b"of stdin\n"


@pytest.mark.slow
def test_a_command_opens_its_own_streams_by_name(held: Place) -> None:
    """If {output} is a file, standard output goes to the log."""
    assert held.run("echo one > /dev/stdout; echo two >> /dev/stdout; echo err > /dev/stderr") == b"one\ntwo\n"
    assert held.run("echo 'read x < /dev/null; cat /dev/stdin' > /dev/null; echo done", "from_stdin") == b"done\n"
    assert held.run("echo logged > /dev/stdout; echo three > $1", "to_file") == b"three\n"


@pytest.mark.slow
@pytest.mark.parametrize("abi", [1, 2, 3, 4, 5, 6])
def test_older_versions_of_landlock_are_used_as_far_as_they_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, abi: int
) -> None:
    if not abi <= KERNEL.landlock_abi or not KERNEL.seccomp:
        pytest.skip(f"this kernel has {KERNEL}")
    monkeypatch.setattr(sandbox, "offered", lambda: Offered(abi, True))
    other = tmp_path / "other"
    other.write_text("kept")
    config = {"etl_code": False, "etl_commands": COMMANDS}
    work = "mkdir a && echo x > a/b && mv a/b c && cat c > $1"
    assert run_one(tmp_path, of_template("to_file"), work.encode(), config) == b"x\n"
    for attack in (f"cat {other}", f"echo y > {other}", f"truncate -s 0 {other}", f"rm {other}", f"mv {other} ."):
        with pytest.raises(errors.TransformFailed, match=r"denied|not permitted"):
            run_one(tmp_path, of_template("script"), attack.encode(), config)
    assert other.read_text() == "kept"


# -- what an operator adds, requires and is told


@pytest.mark.slow
@NEEDS_LANDLOCK
def test_an_operator_adds_what_commands_may_read_but_nothing_of_the_store(tmp_path: Path) -> None:
    models = tmp_path / "models"
    models.mkdir()
    (models / "m").write_text("a model")
    program = models / "program"
    program.write_text(f"#!/bin/sh\ncat {models}/m\n")
    program.chmod(0o755)
    with place_of(tmp_path, etl_commands=COMMANDS | {"mine": str(program)}) as place:
        place.client.etl.init("mine", NodeCommand("mine"))
        # The program itself can be read, wherever it is; what lies beside it cannot.
        assert f"{models}/m: Permission denied" in place.attempt("", "mine")
    with place_of(
        tmp_path / "2", etl_commands=COMMANDS | {"mine": str(program)}, etl_command_paths=(str(models),)
    ) as place:
        place.client.etl.init("mine", NodeCommand("mine"))
        assert place.run("", "mine") == b"a model"
        assert place.attempt(f"echo x > {models}/m").startswith("failed: ")
    for wrong in (tmp_path, tmp_path / "2" / "drive" / "catalog"):
        with (
            pytest.raises(errors.InvalidRequest, match=r"etl_command_paths: .* lie in each other"),
            place_of(tmp_path / "2", etl_command_paths=(str(wrong),)),
        ):
            pass


@pytest.mark.slow
@pytest.mark.parametrize(
    ("less", "lacking"),
    [
        (Offered(0, True), ["no Landlock in this kernel", "can signal other processes"]),
        (Offered(0, False), ["no Landlock in this kernel", "no seccomp", "can use the network"]),
        (Offered(KERNEL.landlock_abi, False), ["no seccomp"]),
    ],
)
def test_where_the_kernel_lacks_something_the_node_says_so_and_runs_commands_if_it_may(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    less: Offered,
    lacking: list[str],
) -> None:
    if less.landlock_abi == 0 and not less.seccomp and KERNEL.lacking:
        pytest.skip(f"this kernel lacks something itself: {KERNEL}")
    monkeypatch.setattr(sandbox, "offered", lambda: less)
    with place_of(tmp_path) as place:
        shown = str(place.client.describe()["etl_sandbox"])
        for text in lacking:
            assert text in shown and text in caplog.text
        assert {one.levelname for one in caplog.records if "etl_sandbox" in one.message} == {"WARNING"}
        can_read = less.landlock_abi == 0
        assert (b"root:" in place.attempt("cat /etc/passwd").encode()) == can_read  # as the warning says
        with socket.create_server(("127.0.0.1", 0)) as listener:
            said = place.attempt(f"exec 3<>/dev/tcp/127.0.0.1/{listener.getsockname()[1]} && echo connected", "bash")
            assert (said == "connected\n") == (not less.seccomp and less.landlock_abi < 4)
        # What needs no help of the kernel holds all the same.
        assert "is no regular file" in place.attempt("ln -s /etc/passwd $1", "to_file")
        assert SECRET not in place.attempt("env")
    with (
        serving(tmp_path / "2", etl_commands=COMMANDS, etl_sandbox="required") as node,
        connect(node.url) as client,
        pytest.raises(errors.TransformRefused, match=f"etl_sandbox = required.*{lacking[0]}"),
    ):
        client.etl.init("script", NodeCommand("script"))


@pytest.mark.slow
def test_a_full_sandbox_is_shown_without_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox, "offered", lambda: Offered(7, True))
    with serving(tmp_path, etl_commands=COMMANDS) as node, connect(node.url) as client:
        assert client.describe()["etl_sandbox"] == "Landlock ABI 7, seccomp"
        assert "etl_sandbox" not in caplog.text
    with serving(tmp_path / "2") as node, connect(node.url) as client:
        assert client.describe()["etl_sandbox"] == ""  # it runs no commands


# -- FFmpeg: data that names other files


@pytest.mark.slow
@NEEDS_LANDLOCK
@NEEDS_SECCOMP
@pytest.mark.skipif(not shutil.which("ffmpeg"), reason="FFmpeg is not installed")
def test_a_playlist_opens_neither_files_nor_addresses(tmp_path: Path) -> None:
    import wave

    sound = tmp_path / "secret.wav"
    with wave.open(str(sound), "wb") as made:
        made.setnchannels(1), made.setsampwidth(2), made.setframerate(8000)
        made.writeframes(b"\1\2" * 8000)
    ffmpeg = "ffmpeg -v error -protocol_whitelist file,http,tcp,concat"
    commands = {
        "any": ffmpeg + " -f {format:hls|wav} -i {input} -f s16le {output}",
        "concat": ffmpeg + " -f concat -safe 0 -i {input} -f s16le {output}",
    }
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        listing = f"ffconcat version 1.0\nfile '{sound}'\n".encode()
        playlist = (
            f"#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\nhttp://127.0.0.1:{port}/a.ts\n#EXT-X-ENDLIST\n".encode()
        )
        for name, setting in (("free", "off"), ("held", "best_effort")):
            with (
                serving(tmp_path / name, etl_commands=commands, etl_workers=1, etl_sandbox=setting) as node,
                connect(node.url) as client,
            ):
                bucket = client.create_bucket("b")
                for command in commands:
                    client.etl.init(command, NodeCommand(command))
                client.etl.init("short", NodeCommand("any"), timeout_s=2.0)
                bucket.put("listing", listing)
                bucket.put("playlist", playlist)
                bucket.put("sound", sound.read_bytes())
                assert bucket.get("sound", etl="any", args={"format": "wav"}) == b"\1\2" * 8000
                if setting == "off":
                    assert bucket.get("listing", etl="concat") == b"\1\2" * 8000

                    def is_reached(bucket: Bucket = bucket) -> bool:
                        with pytest.raises(errors.TransformTimeout):  # it waits for what the listener never says
                            bucket.get("playlist", etl="short", args={"format": "hls"})
                        return bool(select.select([listener], [], [], 0)[0])

                    eventually(is_reached)
                    while select.select([listener], [], [], 0)[0]:
                        listener.accept()[0].close()
                else:
                    with pytest.raises(
                        errors.TransformFailed, match=r"secret\.wav.*Permission denied|Impossible to open"
                    ):
                        bucket.get("listing", etl="concat")
                    with pytest.raises(errors.TransformFailed):
                        bucket.get("playlist", etl="any", args={"format": "hls"})
                    listener.setblocking(False)
                    with pytest.raises(BlockingIOError):
                        listener.accept()
