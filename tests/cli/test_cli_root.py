"""The root of the command line: what it loads, how it fails, and the options that all commands have."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from ais_loader.cli import main
from ais_loader.cli.main import _SHORT_HELP as SHORT_HELP
from ais_loader.cli.main import one_line
from ais_loader.cli.show import count_text, printable, size_text
from ais_loader.extras import install_command
from storage_node.cli.cluster import up
from storage_node.cli.settings import given_settings
from tests.cli.kit import TIMEOUT_S, Run, environment, run_process
from tests.table import table

HEAVY = ("grpc", "torch", "rocksdict", "ray", "storage_node.store", "storage_node.server")


def all_commands() -> list[tuple[str, ...]]:
    context = click.Context(main)
    found: list[tuple[str, ...]] = [()]
    for name in main.list_commands(context):
        command = main.get_command(context, name)
        found.append((name,))
        if isinstance(command, click.Group):
            found += [(name, each) for each in command.commands]
    return found


@pytest.mark.slow
def test_help_of_any_command_loads_neither_grpc_nor_the_store() -> None:
    code = (
        "import sys; from ais_loader.cli import main\n"
        f"for command in {all_commands()!r}: main([*command, '--help'], standalone_mode=False)\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=TIMEOUT_S, env=environment()
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1] == "[]"


@pytest.mark.slow
@table("command", all_commands(), ids="-".join)
def test_help_fits_80_columns_and_explains_every_option(command: tuple[str, ...]) -> None:
    result = CliRunner().invoke(main, [*command, "--help"], terminal_width=80)
    assert result.exit_code == 0
    assert max(map(len, result.stdout.splitlines())) <= 80
    context = click.Context(main)
    found: click.Command = main
    for name in command:
        assert isinstance(found, click.Group)
        found = found.get_command(context, name)  # type: ignore[assignment]
    assert found.help
    assert [option.name for option in found.params if isinstance(option, click.Option) and not option.help] == []


@pytest.mark.slow
def test_help_of_the_root_imports_no_command_of_a_trainer_and_nothing_that_takes_long() -> None:
    code = (
        "import sys; from ais_loader.cli import main\n"
        "main(['--help'], standalone_mode=False)\n"
        "heavy = ('numpy', 'google.protobuf', 'ais_loader.objects.client', 'ais_loader.cli.put')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=TIMEOUT_S, env=environment()
    )
    assert result.stdout.splitlines()[-1] == "[]", result.stderr


def test_what_the_root_says_of_a_command_is_what_the_command_says() -> None:
    context = click.Context(main)
    for name, text in SHORT_HELP.items():
        command = main.get_command(context, name)
        assert command is not None and (command.get_short_help_str(200)).startswith(text.rstrip(".")), name


def test_only_commands_that_exist_are_listed() -> None:
    listed = CliRunner().invoke(main, ["--help"]).stdout
    assert "\n  etl " in listed
    commands = main.list_commands(click.Context(main))
    assert all(f"\n  {name} " in listed for name in commands)
    assert "dsort" not in listed and CliRunner().invoke(main, ["dsort"]).exit_code == 2


def test_exit_codes_are_documented_at_the_root() -> None:
    text = CliRunner().invoke(main, ["--help"]).stdout
    for code in (0, 1, 2, 3, 130, 141):
        assert f"\n    {code} " in text


@pytest.mark.every_transport
def test_a_failure_is_one_line_and_a_traceback_only_on_request(run: Run) -> None:
    plain = run("ls", "no-such-bucket")
    assert plain.exit_code == 1
    assert plain.stderr.startswith("Error: bucket 'no-such-bucket' does not exist") and plain.stderr.count("\n") == 1
    for asked in (run("--debug", "ls", "no-such-bucket"),):
        assert "Traceback (most recent call last)" in asked.stderr
        assert asked.stderr.endswith(plain.stderr)


def test_the_variable_asks_for_tracebacks_too(tmp_path: Path) -> None:
    runner = CliRunner(env={"AIS_LOADER_DEBUG": "1", "AIS_LOADER_URL": str(tmp_path / "none")})
    assert "Traceback" in runner.invoke(main, ["ls"]).stderr


def test_a_store_must_be_named(tmp_path: Path) -> None:
    runner = CliRunner(env={"AIS_LOADER_URL": None})
    result = runner.invoke(main, ["ls"])
    assert result.exit_code == 2
    assert result.stderr.endswith("Error: no store given: use --store, or set AIS_LOADER_URL\n")


def test_a_store_that_cannot_be_meant_is_a_usage_error(tmp_path: Path) -> None:
    for url in ("ftp://host/x", "grpc://host", "grpc://host:port", f"{tmp_path},", f"{tmp_path},{tmp_path}"):
        result = CliRunner().invoke(main, ["ls", "--store", url])
        assert result.exit_code == 2, result.output
        assert "Invalid value for '--store'" in result.stderr


def test_a_tilde_that_the_shell_left_is_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert CliRunner().invoke(main, ["bucket", "create", "b", "--store=~/s"]).exit_code == 0
    assert (tmp_path / "s" / "drive.json").is_file()


def test_only_what_may_make_a_store_makes_one_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"1")
    store = tmp_path / "store"
    told = f"made a new store at {store}"
    for command in (
        ["ls"],
        ["ls", "b"],
        ["get", "b/a"],
        ["du", "b"],
        ["rm", "b/a"],
        ["put", str(tmp_path / "file"), "b"],
    ):
        result = CliRunner().invoke(main, [*command, "--store", str(store)])
        assert (result.exit_code, told in result.stderr) == (1, False)
        assert f"no store at {store}; look at the path, or `ais-loader bucket create` makes one" in result.stderr
    assert not store.exists()
    put = ["put", str(tmp_path / "file"), "b", "--create-bucket", "--store", str(store)]
    for lines in (1, 0):
        result = CliRunner().invoke(main, put)
        assert (result.exit_code, result.stderr.splitlines().count(told)) == (0, lines)


def test_a_node_s_address_without_its_scheme_is_a_usage_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for command in (["ls"], ["bucket", "create", "b"], ["put", "-r", ".", "b", "--create-bucket"]):
        result = CliRunner().invoke(main, [*command, "--store", "localhost:7480"])
        assert (result.exit_code, "need grpc://localhost:7480" in result.stderr) == (2, True)
    result = CliRunner().invoke(main, ["doctor", "localhost:7480"])
    assert (result.exit_code, "need grpc://localhost:7480" in result.stderr) == (2, True)
    assert not list(tmp_path.iterdir())


def test_a_node_that_does_not_answer_is_given_up_on_after_a_while() -> None:
    result = CliRunner().invoke(main, ["ls", "--store", "grpc://127.0.0.1:1", "--retry", "0.1"])
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: 127.0.0.1:1: ") and result.stderr.count("\n") == 1


@pytest.mark.slow
def test_a_missing_rocksdb_says_what_to_install(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['rocksdict'] = None; from ais_loader.cli import main; "
        f"main(['ls', '--store', {str(tmp_path)!r}])"
    )
    (tmp_path / "drive.json").write_text("{}")
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=TIMEOUT_S)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith("Error: rocksdict is needed for a store on this machine and cannot be imported: ")
    assert install_command("store") in result.stderr and result.stderr.count("\n") == 1


def test_errors_are_told_without_pythons_way_of_writing_them() -> None:
    assert one_line(FileNotFoundError(2, "No such file or directory", "/x")) == "/x: No such file or directory"
    assert one_line(OSError("cannot listen")) == "cannot listen"
    assert one_line(KeyError("x")) == "unexpected KeyError: 'x' (AIS_LOADER_DEBUG=1 shows where)"
    assert "\n" not in one_line(RuntimeError("two\nlines"))


def test_sizes_and_counts_are_written_for_people() -> None:
    sizes = [0, 1023, 1024, 1024**2 - 1, 1024**2, 5 * 1024**4, 3000 * 1024**5]
    assert [*map(size_text, sizes)] == ["0 B", "1023 B", "1.0 KiB", "1.0 MiB", "1.0 MiB", "5.0 TiB", "3,000.0 PiB"]
    assert [count_text(n, "object") for n in (0, 1, 1200)] == ["0 objects", "1 object", "1,200 objects"]


def test_printable_changes_only_what_a_terminal_would_obey() -> None:
    assert printable("grüße 中\u00a0x.txt") == "grüße 中\u00a0x.txt"
    assert printable("a\tb\x9bc\ud800\u2028") == "a\\tb\\x9bc\\ud800\\u2028"


@pytest.mark.slow
def test_version_and_no_command() -> None:
    assert run_process("--version").stdout.startswith(b"ais-loader, version ")
    assert run_process().returncode == 2


@pytest.mark.parametrize("command", ["serve", "cluster up"])
def test_a_command_for_clients_that_is_wrong_is_refused_before_anything_starts(tmp_path: Path, command: str) -> None:
    where = ["--drive" if command == "serve" else "--root", str(tmp_path)]
    for given, what in [
        ("ffmpeg", "need NAME=WORDS"),
        ("ffmpeg -i a=b", "need NAME=WORDS"),
        ("wav=ffmpeg {rate}", "is none of {input}, {output}, {NAME:TYPE}"),
    ]:
        result = CliRunner().invoke(main, [*command.split(), *where, "--etl-command", given])
        assert result.exit_code == 2 and what in " ".join(result.output.split()), result.output
    assert list(tmp_path.iterdir()) == []


def test_options_of_commands_keep_every_character(tmp_path: Path) -> None:
    words = """sox "a b" {input} -r {rate:int(8000,48000)=16000} 'x="y"' {output}.wav"""
    with up.make_context("up", ["--root", str(tmp_path), "--etl-code", "--etl-command", f"wav={words}"]):
        given = given_settings(None, (), of_cluster=True)
    assert given == {"etl_code": True, "etl_commands": {"wav": words}}


def test_serve_allows_transforms_that_are_named_and_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from storage_node.ops import serve as ops
    from storage_node.settings.config import ServerConfig

    served: list[ServerConfig] = []
    monkeypatch.setattr(ops, "run_node", lambda drives, config, announce, **_: served.append(config))
    allowed = [
        "--etl-code",
        "--etl-command",
        "wav=ffmpeg -i {input} -ar {rate:int} {output}.wav",
        "--etl-command",
        "same=/bin/cat",
        "--etl-server",
        "http://[::1]:9000",
    ]
    for options in ([], allowed):
        result = CliRunner().invoke(main, ["serve", "--drive", str(tmp_path), "--port", "0", *options])
        assert result.exit_code == 0, result.output
    assert [(one.etl.code, one.etl.commands, one.etl.servers) for one in served] == [
        (False, {}, ()),
        (
            True,
            {"wav": "ffmpeg -i {input} -ar {rate:int} {output}.wav", "same": "/bin/cat"},
            ("http://[::1]:9000",),
        ),
    ]
