"""Standard streams that are closed or full, and messages in the words of the command line."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from ais_loader.cli import main
from ais_loader.objects.client import connect
from tests.cli.kit import TIMEOUT_S, Run, Stored, but_for_waiting, command, environment


def shell(redirection: str, *arguments: str | Path, store: str) -> subprocess.CompletedProcess[bytes]:
    """`ais-loader` as a shell starts it with this redirection."""
    return subprocess.run(
        ["sh", "-c", f'exec "$@" {redirection}', "sh", *command(*arguments)],
        capture_output=True,
        timeout=TIMEOUT_S,
        env=environment(store),
    )


@pytest.fixture
def store(local_url: str) -> str:
    with connect(local_url) as client:
        client.create_bucket("b").put("a", b"1\n")
    return local_url


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [("put", "-", "b/new"), ("rm", "-r", "b")], ids=" ".join)
def test_a_closed_input_is_no_empty_one(store: str, arguments: tuple[str, ...]) -> None:
    result = shell("<&-", *arguments, store=store)
    assert result.returncode == 1
    assert b"standard input is closed" in result.stderr and b"Traceback" not in result.stderr
    assert Stored(store, "b").contents() == {"a": b"1\n"}


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [("get", "b/a"), ("--help",)], ids=" ".join)
def test_a_closed_output_has_not_been_written_to(store: str, arguments: tuple[str, ...]) -> None:
    result = shell(">&-", *arguments, store=store)
    assert (result.returncode, but_for_waiting(result.stderr)) == (1, b"Error: standard output is closed\n")


@pytest.mark.slow
def test_a_full_output_is_one_line_for_help_too(store: str) -> None:
    result = shell(">/dev/full", "--help", store=store)
    assert (result.returncode, result.stderr) == (1, b"Error: No space left on device\n")


@pytest.mark.slow
def test_no_file_of_a_store_gets_a_standard_stream_s_number(store: str, tmp_path: Path) -> None:
    (tmp_path / "list").write_text("b/a\n")
    code = (
        "import os, sys\n"
        "from ais_loader.cli.main import hold_standard_streams\n"
        "hold_standard_streams()\n"
        "from ais_loader.objects.client import connect\n"
        "with connect(sys.argv[1]) as client:\n"
        "    held = [os.readlink(f'/proc/self/fd/{number}') for number in range(3)]\n"
        "    open(sys.argv[2], 'w').write(repr(held))\n"
    )
    python = command()[0]
    subprocess.run(
        ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", python, "-c", code, store, str(tmp_path / "held")],
        timeout=TIMEOUT_S,
        env=environment(),
        check=True,
    )
    assert (tmp_path / "held").read_text() == repr(["/dev/null"] * 3)


@pytest.mark.slow
def test_everything_closed_hinders_nothing_that_needs_none(store: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"2")
    assert shell("<&- >&- 2>&-", "put", tmp_path / "file", "b", store=store).returncode == 0
    assert shell("<&- >&- 2>&-", "get", "b/none", tmp_path / "none", store=store).returncode == 1
    assert Stored(store, "b").contents() == {"a": b"1\n", "file": b"2"}


def test_a_missing_bucket_is_made_by_a_command_here(run: Run, tmp_path: Path) -> None:
    (tmp_path / "list").write_text("none/a\n")
    commands: list[list[str | Path]] = [
        ["ls", "none"],
        ["get", "none/a"],
        ["rm", "none/a"],
        ["batch", tmp_path / "list", "--on-error", "placeholder"],
    ]
    for arguments in commands:
        result = run(*arguments)
        assert result.exit_code == 1
        assert "bucket 'none' does not exist; `ais-loader bucket create` makes it" in result.output, arguments


def test_a_file_s_name_that_is_too_long_is_told_with_that_name(run: Run, filled: str, tmp_path: Path) -> None:
    name = "n" * 300
    result = run("get", f"{filled}/z", tmp_path / name)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == f"Error: {tmp_path / name}: File name too long\n"
    assert list(tmp_path.glob("*.part")) + list(tmp_path.glob(".*.part")) == []


def test_a_node_that_is_not_there_is_one_short_line() -> None:
    with socket.socket() as held:  # bound, and not listened on: nobody else gets the port meanwhile
        held.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{held.getsockname()[1]}"
        result = CliRunner().invoke(main, ["ls", "--store", f"grpc://{address}", "--retry", "0"])
    expected = f"Error: {address}: no node can be reached there: Connection refused\n"
    assert (result.exit_code, result.stderr) == (1, expected)
