"""Tests that are known to fail by chance, and the count of those that were run again.

A failed quick test runs once more, and a slow one, which kills, freezes and cuts on machines that others keep busy,
twice: the Makefile limits how many. Each rerun is a defect, of the test or of what it tests. The summary names all of
them, and apart from the others those that this list does not have: find their causes, or record them here with what is
known.
"""

from __future__ import annotations

from _pytest.terminal import TerminalReporter

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
}
"""Ids of tests without their parameters, with the reason or the suspicion."""


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    again = [report.nodeid.partition("[")[0] for report in terminalreporter.stats.get("rerun", [])]
    for line in reruns_said(again) if again or terminalreporter.config.option.reruns else []:
        terminalreporter.write_line(line, yellow=bool(again))


def reruns_said(again: list[str]) -> list[str]:
    """Say how many tests were run again, and which; those without an entry come last."""
    known, unknown = ([name for name in again if (name in KNOWN_FLAKY) is listed] for listed in (True, False))
    lines = [f"tests that failed once and were run again: {len(again)}, of which {len(unknown)} are not known as flaky"]
    lines += [f"  known: {name}: {KNOWN_FLAKY[name]}" for name in known]
    return lines + [f"  NOT KNOWN, record it in {__name__}: {name}" for name in unknown]
