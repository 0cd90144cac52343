"""A run of the tests fails if it leaves the checkout changed or a process, in one process and in several."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.run_bounds import git_status

WRITES = """
from pathlib import Path

def test_a():
    Path(__file__).parents[1].joinpath("pipe:1").write_text("left")

def test_b(tmp_path):
    (tmp_path / "kept-apart").write_text("")
"""


LEAVES = """
import multiprocessing
import time

def test_a():
    process = multiprocessing.get_context("{method}").Process(target=time.sleep, args=(600,))
    process.start()

def test_b():
    assert False, "the reason"
"""


LEAVES_WORKER = """
from torch.utils.data import DataLoader

KEPT = []

def test_a():
    KEPT.append(iter(DataLoader(range(100), num_workers=1)))
    next(KEPT[0])
"""


HANGS = """
import time

def test_a():
    pass

def test_b():
    time.sleep(600)
"""


SCHEDULES = """
import os

def test_a():
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))

def test_b():
    assert os.sched_getscheduler(0) == os.SCHED_OTHER
"""


def git(root: Path, *command: str) -> None:
    identity = ["-c", "user.name=A", "-c", "user.email=a@example.org"]
    subprocess.run(["git", *identity, *command], cwd=root, check=True, capture_output=True, text=True)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository whose only test writes into it, checked by this repository's plugin."""
    (root := tmp_path / "checkout").mkdir()
    (tests := root / "tests").mkdir()
    (tests / "run_bounds.py").write_bytes(Path(__file__).with_name("run_bounds.py").read_bytes())
    (tests / "conftest.py").write_text("pytest_plugins = ['tests.run_bounds']\n")
    (tests / "test_it.py").write_text(WRITES)
    (root / ".gitignore").write_text("__pycache__/\n")
    git(root, "init", "--quiet")
    git(root, "add", ".")
    git(root, "commit", "--quiet", "--message", "Begin")
    return root


def run(root: Path, *options: str) -> tuple[int, str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, "tests"]
    done = subprocess.run(
        command, cwd=root, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=450
    )
    return done.returncode, done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--numprocesses", "2")], ids=["one process", "two processes"])
def test_a_run_that_leaves_a_file_in_the_checkout_fails_and_names_it(checkout: Path, options: tuple[str, ...]) -> None:
    (checkout / "tests" / "test_it.py").write_text(WRITES + "# edited before the run\n")
    code, said = run(checkout, *options)
    assert "2 passed" in said
    assert code == pytest.ExitCode.TESTS_FAILED and said.count("?? pipe:1") == 1, said
    assert "test_it.py" not in said.partition("git status")[2], said
    code, said = run(checkout, *options)  # it is there before this run
    assert code == 0 and "git status" not in said, said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "options"),
    [("fork", ()), ("spawn", ("--numprocesses", "2"))],
    ids=["fork of one process", "spawned by one of two"],
)
def test_a_run_that_leaves_a_process_ends_and_names_it(checkout: Path, method: str, options: tuple[str, ...]) -> None:
    (checkout / "tests" / "test_it.py").write_text(LEAVES.format(method=method))
    code, said = run(checkout, *options)
    assert code == pytest.ExitCode.TESTS_FAILED and "1 passed" in said, said
    assert "tests/test_it.py::test_b failed at call: AssertionError: the reason" in said, said
    assert "Processes were left behind" in said, said


@pytest.mark.slow
def test_a_test_that_changes_how_its_process_is_scheduled_fails_and_no_other(checkout: Path) -> None:
    (checkout / "tests" / "test_it.py").write_text(SCHEDULES)
    code, said = run(checkout)
    assert code == pytest.ExitCode.TESTS_FAILED and "2 passed, 1 error" in said, said
    assert "was given scheduling policy 3" in said, said


@pytest.mark.slow
def test_a_run_that_leaves_a_worker_of_a_loader_ends_and_names_it(checkout: Path) -> None:
    (checkout / "tests" / "test_it.py").write_text(LEAVES_WORKER)
    code, said = run(checkout)
    assert code == pytest.ExitCode.TESTS_FAILED and "1 passed" in said, said
    assert "Processes were left behind" in said and "RuntimeError" not in said, said


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--numprocesses", "2")], ids=["one process", "two processes"])
def test_a_run_that_stands_still_ends_and_names_the_test_with_its_stack(
    checkout: Path, options: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    # A bound of 0 s for what an interrupted test may take; the test's own bound is not reached.
    bounds = (checkout / "tests" / "run_bounds.py").read_text().replace("limit_s + _INTERRUPTED_S + 30.0", "0.0")
    (checkout / "tests" / "run_bounds.py").write_text(bounds)
    (checkout / "tests" / "test_it.py").write_text(HANGS)
    for silence_s in ("20", "100") if options else ("2", "20", "100"):  # a busy machine takes longer to get to the test
        monkeypatch.setenv("TESTS_SILENCE_S", silence_s)
        code, said = run(checkout, "--timeout", "300", *options)
        if "::test_b" in said:
            break
    assert code != pytest.ExitCode.OK and f"no test has ended for {silence_s} s" in said, said
    assert "  tests/test_it.py::test_b\n" in said and 'test_it.py", line 8 in test_b' in said, said


@pytest.mark.slow
def test_outside_a_checkout_nothing_is_compared(checkout: Path) -> None:
    (checkout / ".git").rename(checkout.parent / "elsewhere")
    assert run(checkout)[0] == 0


def test_the_status_is_known_only_at_the_top_of_a_checkout(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert git_status(checkout) == frozenset()
    (checkout / "new").write_text("")
    assert git_status(checkout) == frozenset({"?? new"})
    (unpacked := checkout / "unpacked").mkdir()
    assert git_status(unpacked) is None
    assert git_status(checkout.parent) is None
    monkeypatch.setenv("PATH", str(unpacked))  # no git
    assert git_status(checkout) is None
