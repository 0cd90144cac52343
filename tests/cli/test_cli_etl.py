"""`ais-loader etl`: transforms made, shown, stopped, started and deleted, on a store and on a node."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ais_loader import connect
from ais_loader.cli import main
from tests.node.node_kit import serving

CODE = """
SUFFIX = b"!"


def upper(data):
    return bytes(data).upper() + SUFFIX


def breaks(
"""


FLIP = "tr {from:word} {to:word=A}"


@pytest.fixture(scope="module", params=["embedded", "grpc"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder: Path = tmp_path_factory.mktemp(request.param)
    if request.param == "embedded":
        with connect(folder / "store") as client:
            client.create_bucket("b").put("a", b"abc")
        yield str(folder / "store")
        return
    with serving(folder, etl_code=True, etl_commands={"flip": FLIP}, etl_workers=1) as node:
        with connect(node.url) as client:
            client.create_bucket("b").put("a", b"abc")
        yield node.url


def etl(store: str, *arguments: str | Path) -> Result:
    return CliRunner(env={"AIS_LOADER_URL": store}).invoke(main, ["etl", *map(str, arguments)])


def made_of(store: str, name: str) -> bytes:
    with connect(store) as client:
        return client.bucket("b").get("a", etl=name)


@pytest.mark.slow
def test_a_function_of_a_file_needs_no_file_on_the_node(store: str, tmp_path: Path) -> None:
    file = tmp_path / "of_mine.py"
    file.write_text(CODE.rpartition("def breaks")[0])
    done = etl(store, "init", "up", "--python", f"{file}:upper", "--json")
    assert done.exit_code == 0, done.output
    made = json.loads(done.stdout)
    assert (made["name"], made["kind"], made["source"]) == ("up", "function", "upper")
    file.unlink()
    assert made_of(store, "up") == b"ABC!"
    again = etl(store, "init", "up", "--command", "tr a-z A-Z")
    assert again.exit_code == 1 and "there is a transform 'up'" in again.stderr and again.stderr.count("\n") == 1
    assert etl(store, "init", "up", "--command", "tr a-z A-Z", "--replace").exit_code == 0
    assert made_of(store, "up") == b"ABC"
    assert json.loads(etl(store, "show", "up", "--json").stdout)["version"] != made["version"]
    assert etl(store, "rm", "up").exit_code == 0


def test_commands_of_the_operator_are_listed_and_made_transforms(store: str) -> None:
    listed = etl(store, "commands")
    assert listed.exit_code == 0
    if not store.startswith("grpc://"):
        assert listed.stdout == ""
        return
    assert listed.stdout == "flip  from:word, to:word=A  (1 node)\n"
    (one,) = map(json.loads, etl(store, "commands", "--json").stdout.splitlines())
    assert one == {"name": "flip", "arguments": "from:word, to:word=A", "nodes": [store]}
    done = etl(store, "init", "flip", "--node-command", "flip", "--args", '{"from": "a"}')
    assert done.exit_code == 0 and made_of(store, "flip") == b"Abc"
    assert etl(store, "ls").stdout == "flip  command  running  flip from=a\n"
    wrong = etl(store, "init", "x", "--node-command", "flip", "--args", '{"from": "-d"}')
    assert wrong.exit_code == 1 and "need a word" in wrong.stderr and "flip takes from:word, to:word=A" in wrong.stderr
    assert "--args goes with --node-command" in etl(store, "init", "x", "--command", "cat", "--args", "{}").stderr
    assert etl(store, "rm", "flip").exit_code == 0


@pytest.mark.slow
@pytest.mark.every_transport
def test_it_is_listed_shown_stopped_started_and_deleted(store: str) -> None:
    assert etl(store, "init", "tr", "--command", "tr a-z 'A-Z'").exit_code == 0
    (line,) = map(json.loads, etl(store, "ls", "--json").stdout.splitlines())
    assert (line["name"], line["source"], line["stopped"]) == ("tr", "tr a-z A-Z", False)
    assert etl(store, "ls").stdout.startswith("tr  command  ")
    assert json.loads(etl(store, "stop", "tr", "--json").stdout)["stopped"] is True
    assert etl(store, "stop", "tr").stdout == ""
    assert etl(store, "ls").stdout == "tr  command  stopped  tr a-z A-Z\n"
    got = CliRunner(env={"AIS_LOADER_URL": store}).invoke(main, ["get", "ais://b/a", "-", "--etl", "tr"])
    assert got.exit_code == 1 and "is stopped; `ais-loader etl start` starts it again" in got.output
    assert "--replace puts this in its place" in etl(store, "init", "tr", "--command", "tr a b").output
    assert json.loads(etl(store, "show", "tr", "--json").stdout)["stopped"] is True
    started = json.loads(etl(store, "start", "tr", "--json").stdout)
    assert (started["name"], started["version"], started["stopped"]) == ("tr", line["version"], False)
    assert made_of(store, "tr") == b"ABC"
    assert f"version {line['version']}\n" in etl(store, "show", "tr").stdout
    assert etl(store, "log", "tr").exit_code == 0
    (told,) = map(json.loads, etl(store, "log", "tr", "--json").stdout.splitlines())
    assert told.keys() == {"node", "log"}
    assert json.loads(etl(store, "rm", "tr", "--json").stdout)["version"] == line["version"]
    assert etl(store, "ls").stdout == ""
    for command in ("show", "log", "stop", "start", "rm"):
        gone = etl(store, command, "tr")
        assert gone.exit_code == 1 and "there is no transform 'tr'" in gone.stderr, (command, gone.output)


def test_what_is_wrong_is_said_before_the_store_is_asked(tmp_path: Path) -> None:
    file = tmp_path / "broken.py"
    file.write_text(CODE)
    wrong = [
        ([], "need one of --python, --node-command, --command and --server", 2),
        (["--command", "tr", "--server", "http://127.0.0.1:1"], "need one of", 2),
        (["--command", "tr", "--streaming"], "--streaming goes with --python", 2),
        (["--command", "tr 'a"], "No closing quotation", 2),
        (["--command", " "], "need a program", 2),
        (["--python", str(file)], "need FILE.py:NAME", 2),
        (["--python", f"{tmp_path}/none.py:f"], "no such file", 2),
        (["--python", f"{file}:upper"], "cannot be run: SyntaxError", 1),
    ]
    for options, said, code in wrong:
        result = etl(str(tmp_path / "none"), "init", "x", *options)
        assert (result.exit_code, said in result.stderr) == (code, True), (options, result.output)


@pytest.mark.slow
def test_get_writes_what_a_transform_makes(store: str) -> None:
    assert etl(store, "init", "shift", "--command", "tr {args.from} {args.to:x-z}").exit_code == 0

    def get(*arguments: str) -> Result:
        return CliRunner(env={"AIS_LOADER_URL": store}).invoke(main, ["get", "b/a", *arguments])

    assert get("--etl", "shift", "--args", '{"from": "a-c"}').stdout_bytes == b"xyz"
    assert get("--etl", "shift", "--args", '{"from": "a-c"}', "--start", "1").stdout_bytes == b"yz"
    for arguments, code, what in (
        (("--args", "{}"), 2, "--args needs --etl"),
        (("--etl", "shift", "--args", "[1]"), 2, "need a JSON object"),
        (("--etl", "shift"), 1, "'from' is missing"),
        (("--etl", "none"), 1, "there is no transform 'none'"),
    ):
        done = get(*arguments)
        assert done.exit_code == code and what in done.output, done.output
