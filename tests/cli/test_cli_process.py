"""The command line as processes: signals, closed pipes, terminals, two nodes that want the same thing."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ais_loader.cli import main
from ais_loader.objects.client import connect
from ais_loader.testing import NodeProcess
from tests.cli.kit import TIMEOUT_S, but_for_waiting, command, environment, run_process

pytestmark = pytest.mark.slow


@pytest.fixture
def store(local_url: str) -> str:
    """An embedded store with a bucket `b` of three objects."""
    with connect(local_url) as client:
        client.create_bucket("b").put_many([("t", b"text\n"), ("bin", bytes(1000)), ("big", bytes(1 << 20))])
    return local_url


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_serve_ends_cleanly_when_told_to(tmp_path: Path, number: signal.Signals) -> None:
    process = subprocess.Popen(
        command("serve", "--drive", tmp_path / "s", "--port", "0", "--json"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    )
    assert process.stdout is not None
    with _killed_after(process):
        url = json.loads(process.stdout.readline())["url"]
        assert run_process("bucket", "create", "b", store=url).returncode == 0
        process.send_signal(number)
        rest, messages = process.communicate(timeout=TIMEOUT_S)
        made = f"made a new store at {tmp_path / 's'}\n".encode()
        assert (process.returncode, rest, messages) == (0, b"", made)
    assert run_process("ls", store=str(tmp_path / "s")).stdout == b"b\n"


def test_serve_takes_options_before_set_and_set_before_a_file(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text(
        'memory_bytes = "64 MiB"\nmax_active_batches = 5\nread_threads = 3\nport = 1\n[tenant_weights]\na = 2\nb = 3\n'
    )
    process = subprocess.Popen(
        command(
            "serve",
            "--drive",
            tmp_path / "s",
            "--port",
            "0",
            "--config",
            file,
            "--set",
            "max_active_batches=6",
            "--set",
            "read_threads=2",
            "--set",
            "tenant_weights.b=default",
            "--read-threads",
            "1",
            "--advertise",
            "proxy.example.org:17480",
            "--json",
        ),
        stdout=subprocess.PIPE,
        env=environment(),
    )
    assert process.stdout is not None
    with _killed_after(process):
        said = json.loads(process.stdout.readline())
        assert said["advertised"] == "grpc://proxy.example.org:17480"
        with connect(said["url"]) as client:
            limits: Any = client.describe()["limits"]
    shown = {name: limits[name] for name in ("memory_bytes", "max_active_batches", "read_threads", "tenant_weights")}
    assert shown == {
        "memory_bytes": str(64 << 20),
        "max_active_batches": "6",
        "read_threads": "1",
        "tenant_weights": "a=2",
    }


@contextlib.contextmanager
def _killed_after(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """A deadline for a process that a test talks to."""
    deadline = threading.Timer(TIMEOUT_S, process.kill)
    deadline.start()
    try:
        yield
    finally:
        deadline.cancel()
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("command", "option"),
    [("serve", "--port"), ("serve", "--peer-port"), ("serve", "--metrics-port"), ("ui", "--port")],
)
def test_a_port_in_use_is_one_line_with_the_option_that_chose_it(
    node: NodeProcess, tmp_path: Path, command: str, option: str
) -> None:
    store = ["--store", node.url] if command == "ui" else ["--drive", tmp_path / "s", "--port", "0"]
    result = run_process(command, *store, option, str(node.port))
    reason = (
        f"Error: cannot listen on 127.0.0.1, port {node.port}: Address already in use; is another program listening "
        f"there? {option} takes another port, 0 any that is free\n"
    )
    assert (result.returncode, result.stdout, result.stderr.decode()) == (1, b"", reason)


def test_one_port_for_two_purposes_is_refused(tmp_path: Path) -> None:
    result = run_process("serve", "--drive", tmp_path / "s", "--port", "17480", "--metrics-port", "17480")
    assert result.returncode == 2 and b"--port and --metrics-port are both port 17480" in result.stderr


def test_a_store_that_a_node_holds_points_to_the_node(node: NodeProcess, tmp_path: Path) -> None:
    held = str(node.drives[0])
    for arguments in (["serve", "--drive", held, "--port", "0"], ["bucket", "create", "x", "--store", held]):
        result = run_process(*arguments)
        assert result.returncode == 1 and result.stderr.count(b"\n") == 1
        assert f"{held} is open for writing by process {node.pid}" in result.stderr.decode()
    assert b"--store grpc://HOST:PORT" in result.stderr
    assert run_process("ls", "--store", held).returncode == 0  # reading needs no lock


def test_serve_refuses_what_it_cannot_do(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.doc").write_bytes(b"")
    cases: list[tuple[list[str | Path], str]] = [
        (["--drive", tmp_path / "full", "--port", "0"], "is not a store, and not empty either (thesis.doc)"),
        (["--drive", tmp_path / "s", "--host", "no.such.invalid", "--insecure"], "cannot listen on no.such.invalid"),
    ]
    for arguments, reason in cases:
        result = run_process("serve", *arguments)
        assert result.returncode == 1 and reason in result.stderr.decode()
        assert result.stderr.count(b"\n") == 1


def test_serve_finds_wrong_options_before_it_touches_a_drive(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for arguments, reason in [
        (["--drive", tmp_path / "file"], "is a file"),
        (["--drive", tmp_path / "s", "--port", "99999"], "99999 is not in the range"),
        (["--drive", tmp_path / "s", "--read-threads", "0"], "0 is not in the range"),
        ([], "Missing option '--drive'"),
        (["--drive", tmp_path / "s", "--host", "0.0.0.0"], "0.0.0.0 is more than loopback, and there is no"),
        (["--drive", tmp_path / "s", "--host", "::"], "or --insecure to listen on a network nevertheless"),
        (["--drive", tmp_path / "s", "--peer-host", "10.0.0.5"], "10.0.0.5 is more than loopback"),
        (
            ["--drive", tmp_path / "s", "--peer-host", "0.0.0.0", "--insecure"],
            "needs peer_secret_file: without a secret",
        ),
        (["--drive", tmp_path / "s", "--set", "host=box.example.org"], "box.example.org is more than loopback"),
        (["--drive", tmp_path / "s", "--host", "localhost.example.org"], "is more than loopback"),
        (["--drive", tmp_path / "s", "--identity", tmp_path / "i"], "--identity is the folder of --secure"),
        (["--drive", tmp_path / "s", "--cert", "a.pem"], "TLS needs all of cert_file, key_file and ca_file"),
        (
            ["--drive", tmp_path / "s", "--secure", "--cert", "a", "--key", "b", "--ca", "c"],
            "--secure makes certificates, and --cert names one",
        ),
        (
            ["--drive", tmp_path / "s", "--secure", "--host", "0.0.0.0", "--metrics-port", "0"],
            "0.0.0.0 is more than loopback, and metrics have no TLS",
        ),
    ]:
        result = CliRunner().invoke(main, ["serve", *map(str, arguments)])
        assert result.exit_code == 2 and reason in " ".join(result.stderr.split())
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.fixture
def heeding_ctrl_c() -> Iterator[None]:
    """Children begin with what this process has: a shell that starts it in the background has it ignore Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heeding_ctrl_c")
def test_ctrl_c_stops_a_put_quietly_and_stores_no_part_of_it(store: str) -> None:
    process = subprocess.Popen(
        command("put", "-", "b/half"), stdin=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(store)
    )
    assert process.stdin is not None
    with _killed_after(process):
        process.stdin.write(bytes(1 << 20))  # more than a pipe holds: once it is written, the put is under way
        process.stdin.flush()
        process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT_S) == 130
        assert process.stderr is not None
        messages = process.stderr.read()
    assert b"Traceback" not in messages and b"Error" not in messages and b"Aborted" not in messages
    with connect(store, mode="r") as client:
        assert [info.name for info in client.bucket("b").objects()] == ["big", "bin", "t"]


@pytest.mark.parametrize("arguments", [["ls", "b"], ["get", "b/bin"], ["get", "b/big"], ["ls", "--help"]])
def test_a_reader_that_stops_reading_ends_it_quietly(store: str, arguments: list[str]) -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        result = subprocess.run(
            command(*arguments),
            stdout=write,
            stderr=subprocess.PIPE,
            timeout=TIMEOUT_S,
            env=environment(store),
        )
    finally:
        os.close(write)
    assert (result.returncode, but_for_waiting(result.stderr)) == (141, b"")


def test_an_interrupt_while_the_command_is_imported_is_no_traceback() -> None:
    interrupt = """
import sys
class Finder:
    def find_spec(self, name, *_):
        if name == "click":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Finder())
from ais_loader.cli import main
"""
    result = subprocess.run([sys.executable, "-c", interrupt], capture_output=True, timeout=TIMEOUT_S)
    assert (result.returncode, result.stdout, result.stderr) == (130, b"", b"")


def test_head_of_a_listing_is_its_first_line(store: str) -> None:
    listing = " ".join(command("ls", "b"))
    result = subprocess.run(
        ["bash", "-c", f"{listing} | head -1"], capture_output=True, timeout=TIMEOUT_S, env=environment(store)
    )
    assert (result.stdout, but_for_waiting(result.stderr)) == (b"b/big\n", b"")


def _on_a_terminal(arguments: list[str], store: str) -> tuple[int, bytes, bytes]:
    """Exit code, what the terminal showed, and standard error."""
    outer, inner = pty.openpty()
    try:
        result = subprocess.run(
            command(*arguments),
            stdin=subprocess.DEVNULL,
            stdout=inner,
            stderr=subprocess.PIPE,
            timeout=TIMEOUT_S,
            env=environment(store),
        )
        os.write(inner, b"END")  # a read from an empty terminal would wait
        shown = b""
        while not shown.endswith(b"END"):
            shown += os.read(outer, 4096)
    finally:
        os.close(outer)
        os.close(inner)
    return result.returncode, shown.removesuffix(b"END"), but_for_waiting(result.stderr)


def test_a_terminal_gets_text_and_is_spared_the_rest(store: str, tmp_path: Path) -> None:
    assert _on_a_terminal(["get", "b/t"], store) == (0, b"text\r\n", b"")
    code, shown, messages = _on_a_terminal(["get", "b/bin"], store)
    assert (code, shown) == (1, b"") and b"this is not text, and standard output is a terminal" in messages
    (tmp_path / "list").write_text("b/t\n")
    code, shown, messages = _on_a_terminal(["batch", str(tmp_path / "list"), "-o", "-"], store)
    assert (code, shown) == (2, b"") and b"use a pipe" in messages


def test_two_commands_share_a_store_as_one_writer_and_readers(store: str) -> None:
    with connect(store) as writer:
        writer.bucket("b").put("new", b"1")
        assert run_process("ls", "b", store=store).stdout == b"b/big\nb/bin\nb/new\nb/t\n"
        refused = run_process("put", "-", "b/x", store=store, stdin=b"x")
        assert refused.returncode == 1 and f"by process {os.getpid()}".encode() in refused.stderr


def test_a_put_survives_a_node_that_restarts_meanwhile(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "s") as node:
        with connect(node.url) as client:
            client.create_bucket("b")
        process = subprocess.Popen(command("put", "-", "b/x", "--store", node.url), stdin=subprocess.PIPE)
        with _killed_after(process):
            node.restart()
            process.communicate(b"bytes", timeout=TIMEOUT_S)
            assert process.returncode == 0
        assert run_process("get", "b/x", store=node.url).stdout == b"bytes"
