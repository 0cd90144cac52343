"""Tests that are known to fail by chance, and the second try of those that failed.

Machines are shared, and many tests kill, freeze and cut. With `--again N`, at most N failed tests run once more at the
end: alone, in a process of their own, with nothing beside them. The run passes if all of them do. Each is a defect
nevertheless, of the test or of what it tests. All are named, and apart from the others those that this list does not
have: find their causes, or record them here with what is known.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Generator

import pytest
from _pytest.terminal import TerminalReporter

from tests.run_bounds import CHECKOUT_CHANGED, RUN_VARIABLE, watch_the_end

KNOWN_FLAKY: dict[str, str] = {
    "tests/batch/test_damaged_replicas.py"
    "::test_an_object_is_not_called_corrupt_while_a_drive_that_may_have_it_is_missing": (
        "on a very busy machine the emptied drive is used again before the last read, which then says CorruptObject; "
        "what makes its folder anew is not known"
    ),
    "tests/replication/test_conditional_writes.py::test_while_objects_move_what_a_former_owner_has_counts": (
        "seen once, at a load of 45: a write succeeded although a former owner had been stopped; perhaps the node of "
        "another test had its port by then"
    ),
    "tests/faults/test_cluster_snapshots.py"
    "::test_under_writers_and_kills_all_copies_have_the_same_and_go_on_having_it": (
        "seen once: the test reads the drives of nodes that run, and an object of a snapshot may be moved between its "
        "listing and its reading"
    ),
}
"""Ids of tests without their parameters, with the reason or the suspicion."""
SECOND_TRY_TIMEOUT_S = 1200.0


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--again",
        type=int,
        default=0,
        metavar="N",
        help="run failed tests once more at the end, alone, if they are at most N; the run passes if they do",
    )


@pytest.hookimpl(wrapper=True, tryfirst=True)  # after the summary, and after what was left behind has ended
def pytest_sessionfinish(session: pytest.Session) -> Generator[None]:
    yield
    limit: int = session.config.getoption("again")
    reporter = session.config.pluginmanager.getplugin("terminalreporter")
    if not limit or reporter is None or hasattr(session.config, "workerinput"):
        return
    failed = failed_tests(reporter)
    if (
        session.exitstatus != pytest.ExitCode.TESTS_FAILED
        or not failed
        or session.config.stash.get(CHECKOUT_CHANGED, False)
    ):
        return
    if len(failed) > limit:
        reporter.write_line(f"{len(failed)} tests failed, which are too many for a second try (--again {limit})")
        return
    reporter.write_line(f"second try, one after another with nothing beside them: {len(failed)} failed tests")
    if passes(session.config, failed):
        session.exitstatus = pytest.ExitCode.OK
        for line in defects([name.partition("[")[0] for name in failed]):
            reporter.write_line(line, yellow=True)


def failed_tests(reporter: TerminalReporter) -> list[str]:
    reports = [*reporter.stats.get("failed", []), *reporter.stats.get("error", [])]
    return list(dict.fromkeys(report.nodeid for report in reports))


def passes(config: pytest.Config, tests: list[str]) -> bool:
    """Whether these tests pass in a process of their own, which inherits the terminal."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "--tb",
        "native",
        f"--rootdir={config.rootpath}",
    ]
    if config.pluginmanager.hasplugin("timeout") and (timeout_s := config.getoption("timeout", None)):
        command += ["--timeout", str(timeout_s)]
    environment = {name: value for name, value in os.environ.items() if name != RUN_VARIABLE}
    sys.stdout.flush()
    watch_the_end(config, SECOND_TRY_TIMEOUT_S)
    try:
        done = subprocess.run(
            [*command, *(f"{config.rootpath}/{test}" for test in tests)],
            cwd=config.invocation_params.dir,
            env=environment,
            timeout=SECOND_TRY_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        return False
    finally:
        watch_the_end(config)
    return done.returncode == 0


def defects(tests: list[str]) -> list[str]:
    """Name the tests that failed and passed alone; those without an entry come last."""
    known, unknown = ([name for name in tests if (name in KNOWN_FLAKY) is listed] for listed in (True, False))
    lines = [f"tests that failed, and passed alone: {len(tests)}, of which {len(unknown)} are not known as flaky"]
    lines += [f"  known: {name}: {KNOWN_FLAKY[name]}" for name in known]
    return lines + [f"  NOT KNOWN, record it in {__name__}: {name}" for name in unknown]
