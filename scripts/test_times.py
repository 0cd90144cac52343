"""Prints what a run of the tests cost, by folder, file and fixture, and its dearest tests.

    python -m scripts.test_times                      # the latest run below build/test-times
    python -m scripts.test_times build/test-times/quick.xml
    python -m scripts.test_times BEFORE.xml AFTER.xml # folders of two runs side by side

Each `make test…` writes its JUnit file below build/test-times, with the properties that `tests/run_times.py` adds.
Times are sums in seconds over all processes: the wall time of set-up, call and teardown, and the processor time of the
tests' process and its descendants.
"""

from __future__ import annotations

import argparse
import sys
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

FOLDER = Path("build/test-times")


@dataclass(slots=True)
class Cost:
    """Wall and processor seconds of a number of tests."""

    cases: int = 0
    wall_s: float = 0.0
    processor_s: float = 0.0

    def add(self, wall_s: float, processor_s: float) -> None:
        self.cases += 1
        self.wall_s += wall_s
        self.processor_s += processor_s

    def row(self) -> str:
        return f"{self.cases:>7} {self.wall_s:>9.1f} {self.processor_s:>10.1f}"


HEAD = f"{'cases':>7} {'wall s':>9} {'processor s':>10}"


@dataclass(slots=True)
class Run:
    """Costs of one run, from its JUnit file."""

    path: Path
    wall_s: float = 0.0
    processor_s: float = 0.0
    tests: dict[str, Cost] = field(default_factory=lambda: defaultdict(Cost))
    fixtures: dict[str, Cost] = field(default_factory=lambda: defaultdict(Cost))

    def by(self, place: Callable[[str], str]) -> dict[str, Cost]:
        """Sum the tests up by what `place` returns for their ids."""
        costs: dict[str, Cost] = defaultdict(Cost)
        for test, cost in self.tests.items():
            total = costs[place(test)]
            total.cases += cost.cases
            total.wall_s += cost.wall_s
            total.processor_s += cost.processor_s
        return costs


def read_run(path: Path) -> Run:
    """Read a JUnit file.

    Raises OSError if it cannot be opened, and ElementTree.ParseError if it is not XML, as after a run that was killed.
    """
    run = Run(path)
    for suite in ElementTree.parse(path).getroot().iter("testsuite"):
        run.wall_s += float(suite.get("time", 0))
        for given in suite.findall("properties/property"):
            if given.get("name") == "processor_s":
                run.processor_s += float(given.get("value", 0))
        for case in suite.iter("testcase"):
            properties = {each.get("name", ""): each.get("value", "") for each in case.findall("properties/property")}
            test = f"{case.get('file')}::{case.get('name')}"
            run.tests[test].add(float(case.get("time", 0)), float(properties.get("processor_s", 0)))
            for name, value in properties.items():
                if name.startswith("fixture:"):
                    wall_s, processor_s = map(float, value.split())
                    run.fixtures[name.removeprefix("fixture:")].add(wall_s, processor_s)
    return run


def file_of(test: str) -> str:
    return test.partition("::")[0]


def folder_of(test: str) -> str:
    """Return the folder directly below tests/ of a test, or tests/ itself."""
    parts = file_of(test).split("/")
    return "/".join(parts[:2]) if len(parts) > 2 else parts[0]


def print_table(title: str, costs: Iterable[tuple[str, Cost]]) -> None:
    print(f"\n{HEAD}  {title}")
    for name, cost in costs:
        print(f"{cost.row()}  {name}")


def print_run(run: Run, most: int) -> None:
    def dearest(costs: dict[str, Cost]) -> list[tuple[str, Cost]]:
        return sorted(costs.items(), key=lambda item: -item[1].processor_s - item[1].wall_s)

    cases = sum(cost.cases for cost in run.tests.values())
    print(f"{run.path}: {cases} cases, {run.wall_s / 60:.1f} minutes, {run.processor_s:.0f} s of processor time")
    print_table("folder", dearest(run.by(folder_of)))
    print_table("file", dearest(run.by(file_of))[:most])
    print_table("fixture, set-ups alone", dearest(run.fixtures)[:most])
    print_table("test", dearest(run.tests)[:most])


def print_change(before: Run, after: Run) -> None:
    for run in (before, after):
        print(f"{run.path}: {run.wall_s / 60:.1f} minutes, {run.processor_s:.0f} s of processor time")
    old, new = before.by(folder_of), after.by(folder_of)
    print(f"\n{HEAD} -> {HEAD}  folder")
    for folder in sorted(old.keys() | new.keys()):
        print(f"{old.get(folder, Cost()).row()} -> {new.get(folder, Cost()).row()}  {folder}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("files", nargs="*", type=Path, help=f"JUnit files (default: the latest below {FOLDER})")
    parser.add_argument("--most", type=int, default=30, help="rows of a table (default: 30)")
    arguments = parser.parse_args()
    paths = arguments.files or sorted(FOLDER.glob("*.xml"), key=lambda path: path.stat().st_mtime)[-1:]
    if not paths:
        sys.exit(f"no JUnit file below {FOLDER}: run `make test` first")
    if len(paths) > 2:
        parser.error("give one file, or two to compare")
    try:
        runs = [read_run(path) for path in paths]
    except (OSError, ElementTree.ParseError) as error:
        sys.exit(f"not a JUnit file that can be read: {error}")
    if len(runs) == 2:
        print_change(*runs)
    else:
        print_run(runs[0], arguments.most)


if __name__ == "__main__":
    main()
