"""Which files of a folder `ais-loader put` stores, what it would store, and how many copies of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from ais_loader.cli import main
from tests.cli.kit import Run, Stored
from tests.node.cluster_kit import LocalCluster

FILES = {"a.wav": b"a", "a.txt": b"text", "x/b.wav": b"bb", "x/.cache/c.wav": b"c", ".hidden": b"h"}


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    for name, data in FILES.items():
        path = tmp_path / "corpus" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return tmp_path / "corpus"


def test_hidden_files_stay_behind_unless_asked_for(run: Run, corpus: Path, bucket_name: str, stored: Stored) -> None:
    first = run("put", "-r", corpus, bucket_name, "--create-bucket")
    assert stored.names() == ["a.txt", "a.wav", "x/b.wav"]
    assert first.stderr.splitlines()[-1] == "skipped: 2 hidden names; --hidden includes them"
    assert run("put", "-r", corpus, bucket_name, "--hidden").exit_code == 0
    assert stored.contents() == FILES
    assert run("put", corpus / ".hidden", f"{bucket_name}/p/").exit_code == 0  # it was named
    assert "p/.hidden" in stored.names()


def test_patterns_choose_files_by_name_or_by_path(run: Run, corpus: Path, bucket_name: str, stored: Stored) -> None:
    done = run("put", "-r", corpus, f"{bucket_name}/p", "--create-bucket", "--include", "*.wav", "--exclude", "x/*")
    assert done.exit_code == 0 and stored.names() == ["p/a.wav"]
    assert "skipped: 2 files by --include and --exclude\n" in done.stderr
    assert run("put", corpus / "a.txt", bucket_name, "--include", "*").exit_code == 2


def test_a_dry_run_shows_what_would_be_stored_and_changes_nothing(
    run: Run, corpus: Path, bucket_name: str, stored: Stored
) -> None:
    missing = run("put", "-r", corpus, bucket_name, "--dry-run")
    assert missing.exit_code == 1 and "use --create-bucket to create it" in missing.stderr
    told = run("put", "-r", corpus, f"{bucket_name}/p", "-n", "--create-bucket")
    assert told.exit_code == 0
    assert told.stdout.splitlines()[0] == f"{corpus}/a.txt -> {bucket_name}/p/a.txt"
    assert f"would store 3 objects in bucket {bucket_name}, which would be made (7 B); nothing was" in told.stderr
    assert bucket_name not in run("ls").stdout.split()
    run("put", corpus / "a.txt", bucket_name, "--create-bucket")
    (corpus / "a.txt").write_bytes(b"TEXT")
    for option, names in (("--skip-equal", ["a.txt", "a.wav", "x/b.wav"]), ("--if-absent", ["a.wav", "x/b.wav"])):
        lines = run("put", "-r", corpus, bucket_name, "--dry-run", "--json", option).stdout.splitlines()
        assert [json.loads(line)["name"] for line in lines] == names
    assert stored.contents() == {"a.txt": b"text"}


def test_a_dry_run_makes_no_store(run: Run, corpus: Path, tmp_path: Path) -> None:
    for more, code in ((["--create-bucket"], 0), ([], 1)):
        assert run("put", "-r", corpus, "b", "-n", *more, "--store", tmp_path / "none").exit_code == code
    assert not (tmp_path / "none").exists()


@pytest.mark.slow
def test_on_several_nodes_a_new_bucket_says_how_many_copies_it_makes(corpus: Path, tmp_path: Path) -> None:
    with LocalCluster(tmp_path, 2) as cluster:
        runner = CliRunner(env={"AIS_LOADER_URL": cluster.nodes[0].url})
        one = runner.invoke(main, ["put", str(corpus / "a.txt"), "one", "--create-bucket"])
        # A slow machine may say before that it waits for the node.
        assert (
            "made bucket one on 2 nodes, with 1 copy of each object: what a lost node had is lost; --copies 2 keeps two"
        ) in one.stderr.splitlines()
        again = runner.invoke(main, ["put", str(corpus / "a.txt"), "one", "--create-bucket"])
        assert again.exit_code == 0 and "made bucket" not in again.stderr
        other = runner.invoke(main, ["put", str(corpus / "a.txt"), "one", "--create-bucket", "--copies", "2"])
        assert (other.exit_code, other.stderr) == (
            1,
            "Error: bucket 'one' exists, with 1 copy of each object; "
            "`ais-loader bucket set one copies=2` changes that\n",
        )
        assert runner.invoke(main, ["put", str(corpus / "a.txt"), "one", "--copies", "2"]).exit_code == 2
        two = runner.invoke(main, ["bucket", "create", "two", "--copies", "2"])
        assert two.stderr == "made bucket two on 2 nodes, with 2 copies of each object\n"
