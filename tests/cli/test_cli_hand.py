"""What helps a hand at the keyboard: the store said first, names that are near, completion, a word while one waits."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import pty
import shutil
import socket
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from ais_loader.cli import main, show
from ais_loader.extras import install_command
from ais_loader.objects.client import connect
from tests.cli.kit import TIMEOUT_S, environment
from tests.table import table


@pytest.fixture
def store(local_url: str) -> str:
    with connect(local_url) as client:
        client.create_bucket("speech").put_many(
            [("en/anna.wav", b"1"), ("en/bob.wav", b"2"), ("top", b"3"), ("$(x)", b"")]
        )
    return local_url


def test_the_store_is_named_before_the_command_or_after_it_and_after_counts(store: str, tmp_path: Path) -> None:
    other = str(tmp_path / "other")
    with connect(other) as client:
        client.create_bucket("there")
    runner = CliRunner(env={"AIS_LOADER_URL": other})
    assert runner.invoke(main, ["--store", store, "ls"]).stdout == "speech\n"
    assert runner.invoke(main, ["--store", store, "ls", "--store", other]).stdout == "there\n"
    assert runner.invoke(main, ["--store", store, "bucket", "ls"]).stdout == "speech\n"
    assert runner.invoke(main, ["bucket", "--store", store, "ls"]).stdout == "speech\n"
    assert runner.invoke(main, ["--store", store, "bucket", "--store", other, "ls"]).stdout == "there\n"
    assert runner.invoke(main, ["ls"]).stdout == "there\n"
    wrong = runner.invoke(main, ["--store", store, "cluster", "status"])
    assert wrong.exit_code == 2 and "`cluster` has no --store" in wrong.stderr


def test_the_folder_of_a_cluster_is_named_by_the_environment(tmp_path: Path) -> None:
    result = CliRunner(env={"AIS_LOADER_ROOT": str(tmp_path)}).invoke(main, ["cluster", "status"])
    assert (result.exit_code, f"no cluster below {tmp_path}" in result.output) == (1, True)
    assert CliRunner(env={"AIS_LOADER_ROOT": str(tmp_path)}).invoke(main, ["cluster", "drive", "list"]).exit_code < 2


@pytest.mark.parametrize("line", [["up", "--nodes", "2"], ["add"]])
def test_without_ray_nothing_is_made_for_a_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: list[str]
) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: find_spec(name, *more) if name != "ray" else None
    )
    result = CliRunner().invoke(main, ["cluster", *line, "--root", str(tmp_path / "new")])
    assert result.exit_code == 1 and install_command("store,ray") in result.stderr
    assert (result.stderr.count("\n"), os.listdir(tmp_path)) == (1, [])


def test_nodes_are_not_made_inside_a_store(store: str) -> None:
    before = sorted(os.listdir(store))
    made = CliRunner().invoke(main, ["cluster", "up", "--root", store])
    assert (made.exit_code, made.stdout) == (1, "")
    assert made.stderr == (
        f"Error: {store} is a store itself, which `ais-loader serve --drive {store}` serves; nodes need a folder of "
        "their own\n"
    )
    assert sorted(os.listdir(store)) == before


@pytest.mark.slow
@table(
    ("line", "hint"),
    [
        (["lss"], "no command 'lss'; did you mean 'ls'?"),
        (["promot"], "did you mean 'promote'?"),
        (["status"], "no command 'status'; did you mean 'cluster status'?"),
        (["upload"], "did you mean 'put -r'?"),
        (["bucket", "delete", "speech"], "no command 'delete'; did you mean 'rm'?"),
        (["bucket", "crate", "speech"], "no command 'crate'; did you mean 'create'?"),
        (["snapshot", "list"], "did you mean 'ls'?"),
        (["etl", "strat", "x"], "did you mean 'start'?"),
        (["get", "speech/top", __file__ + "/x"], f"{__file__}: not a folder"),
        (["get", "speech"], "speech is a bucket: need BUCKET/NAME, or -r for the objects in it"),
        (["get", "speech/en"], "no object 'en' in bucket 'speech'; did you mean the folder speech/en/, with -r?"),
        (["ls", "speach"], "did you mean 'speech'?"),
        (["get", "speech/en/ana.wav"], "no object 'en/ana.wav' in bucket 'speech'; did you mean speech/en/anna.wav?"),
        (["get", "--head", "speech/topp"], "did you mean speech/top?"),
        (["set-metadata", "speech/en/bop.wav", "a=b"], "did you mean speech/en/bob.wav?"),
        (
            ["get", "speech/en/*.wav"],
            "no object 'en/*.wav' in bucket 'speech'; a name is not a pattern: use -r with --inc",
        ),
        (["rm", "speech/en/b?b.wav"], "a name is not a pattern: use -r with --prefix"),
        (["put", __file__, "speech@today/x"], "'speech@today' is a snapshot, which never changes; write to the bucket"),
        (["put", __file__, "speech@today/x", "--create-bucket"], "'speech@today' is a snapshot, which never changes"),
    ],
)
def test_what_is_near_to_a_wrong_name_is_told(store: str, line: list[str], hint: str) -> None:
    result = CliRunner().invoke(main, ["--store", store, *line])
    assert result.exit_code in (1, 2) and hint in result.stderr
    assert result.stdout == "" and "pattern=" not in result.stderr  # which is for Python


@pytest.mark.slow
@table("words", [[], ["put"], ["bucket"], ["bucket", "create"], ["serve"]])
def test_help_is_shown_for_the_word_help_too(words: list[str]) -> None:
    shown = CliRunner().invoke(main, [*words, "--help"], prog_name="ais-loader")
    assert CliRunner().invoke(main, ["help", *words], prog_name="ais-loader").stdout == shown.stdout != ""


def test_help_of_no_command_says_so() -> None:
    result = CliRunner().invoke(main, ["help", "pot"])
    assert result.exit_code == 2 and "no command 'pot'; did you mean 'put'?" in result.stderr


def test_nothing_is_guessed_where_nothing_is_near(store: str) -> None:
    assert "did you mean" not in CliRunner().invoke(main, ["--store", store, "get", "speech/zzzzzzz"]).stderr
    assert "did you mean" not in CliRunner().invoke(main, ["xyzzy"]).stderr


def offered(*line: str) -> list[str]:
    complete = ShellComplete(main, {}, "ais-loader", "_AIS_LOADER_COMPLETE")
    return [item.value for item in complete.get_completions(list(line[:-1]), line[-1])]


def test_a_shell_is_offered_commands_buckets_and_one_level_of_names(
    store: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AIS_LOADER_URL", store)
    assert offered("pro") == ["promote"] and "--recursive" in offered("get", "--re")
    assert offered("ls", "sp") == ["speech/"]
    assert offered("get", "speech/") == ["speech/en/", "speech/top"]  # a shell would run $(x)
    assert offered("rm", "-r", "speech/en/an") == ["speech/en/anna.wav"]
    assert offered("get", "ais://speech/t") == ["ais://speech/top"]
    monkeypatch.setenv("AIS_LOADER_URL", "grpc://127.0.0.1:1")
    assert offered("--store", store, "ls", "") == ["speech/"]
    assert offered("ls", "sp") == []
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bash") is None, reason="about bash")
def test_bash_completes_a_name_by_the_script(store: str, tmp_path: Path) -> None:
    script = CliRunner().invoke(main, ["completion", "bash"])
    assert script.exit_code == 0
    (tmp_path / "ais-loader").write_text(f"#!{sys.executable}\nfrom ais_loader.cli import main\nmain()\n")
    (tmp_path / "ais-loader").chmod(0o755)
    typed = "COMP_WORDS=(ais-loader ls speech/e); COMP_CWORD=2; compopt() { :; }; _ais_loader_completion ais-loader"
    done = subprocess.run(
        ["bash", "-c", f'{script.stdout}\n{typed}; echo "${{COMPREPLY[@]}}"'],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env=environment(store) | {"PATH": f"{tmp_path}:{os.environ['PATH']}"},
    )
    assert done.stdout == "speech/en/\n", done.stderr
    for shell in ("zsh", "fish"):
        assert "_AIS_LOADER_COMPLETE" in CliRunner().invoke(main, ["completion", shell]).stdout


@pytest.mark.slow
def test_who_waits_for_a_node_is_told_for_which(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(show, "WAIT_S", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        url = f"grpc://127.0.0.1:{mute.getsockname()[1]}"
        result = CliRunner().invoke(main, ["ls", "--store", url, "--retry", "0"])
    assert result.exit_code == 1 and result.stderr.startswith(f"waiting for {url} to answer\n")


@table("columns", [20, 40, 80])
def test_a_bar_of_a_narrow_terminal_keeps_its_figures(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    outer, inner = pty.openpty()
    fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    with os.fdopen(inner, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        with show.progress(1000, unit=" objects") as under_way:
            under_way.n = 500
            told = str(under_way)
    os.close(outer)
    assert len(told) <= columns and told.startswith(" 50%|")
    assert columns == 20 or told.endswith(" objects/s]" if columns == 80 else "| 500/1000 00:00")
