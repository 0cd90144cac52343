"""Every case is quick, slow or exhaustive; a run creates those that it asks for, and keeps what they took."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from scripts.test_times import file_of, folder_of, read_run

ROOT = Path(__file__).resolve().parents[1]
PLUGINS = ["tests.case_sets", "tests.run_times"]
CASES = """
import pytest

@pytest.fixture(params=["embedded", "grpc", "cluster"])
def url(request):
    return request.param

@pytest.mark.every_transport
@pytest.mark.parametrize("case", range(4))
def test_transports(url, case):
    assert case >= 0

@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", range(5))
def test_sampled(case):
    pass

@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("case", range(3))
def test_quick_cases(case):
    pass

@pytest.mark.slow
def test_slow():
    pass

@pytest.mark.exhaustive
def test_exhaustive(tmp_path):
    pass
"""
SLOW_MODULE = """
import pytest

pytestmark = pytest.mark.slow  # and not even imported
assert {import_it}

def test_in_a_slow_module():
    pass
"""
PROPERTIES = """
import pytest
from hypothesis import given
from hypothesis import strategies as st

@pytest.mark.parametrize("case", range(3))
@given(number=st.integers())
def test_property(case, number):
    assert case >= 0
"""
MARKERS = "markers =\n  every_transport:\n  slow:\n  exhaustive:\n  sampled(n):\n  quick_cases(n):\n"


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    (folder := tmp_path / "suite").mkdir()
    (folder / "test_cases.py").write_text(CASES)
    (folder / "test_slow_module.py").write_text(SLOW_MODULE.format(import_it=True))
    (tmp_path / "pytest.ini").write_text(f"[pytest]\njunit_family = xunit1\n{MARKERS}")
    return folder


def run(suite: Path, *options: str) -> tuple[int, str]:
    plugins = [word for name in PLUGINS for word in ("-p", name)]
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *plugins, *options, str(suite)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=400)
    return done.returncode, done.stdout + done.stderr


def collected(suite: Path, *options: str) -> list[str]:
    code, said = run(suite, "--collect-only", "-q", *options)
    assert code == 0, said
    return [line.rpartition("::")[2] for line in said.splitlines() if "::" in line]


@pytest.mark.slow
def test_every_case_is_in_one_set(suite: Path) -> None:
    sets = [collected(suite, "-m", which) for which in ("not slow", "slow and not exhaustive", "exhaustive")]
    quick, slow, _ = sets
    assert sorted(case for cases in sets for case in cases) == sorted(collected(suite))
    assert sum("embedded" in case for case in quick) == 4  # each case on the first transport
    elsewhere = [[case for case in cases if "grpc" in case or "cluster" in case] for cases in sets]
    assert list(map(len, elsewhere)) == [1, 1, 6]  # one on each of the others, of which one is quick
    assert len({case.partition("-")[0] for case in elsewhere[0] + elsewhere[1]}) == 2
    assert [sum(name in case for case in quick) for name in ("sampled", "quick_cases", "test_slow", "exh")] == [
        2,
        1,
        0,
        0,
    ]
    assert sum("quick_cases" in case for case in slow) == 2


@pytest.mark.slow
def test_a_slow_module_is_not_imported_by_a_quick_run_and_too_many_cases_fail(suite: Path) -> None:
    (suite / "test_slow_module.py").write_text(SLOW_MODULE.format(import_it=False))
    quick = collected(suite, "-m", "not slow", "--at-most", "8")
    assert len(quick) == 8
    assert run(suite, "-m", "slow")[0] != 0
    code, said = run(suite, "--collect-only", "-m", "not slow", "--at-most", "7")
    assert code == pytest.ExitCode.USAGE_ERROR and "8 cases are selected, 7 are allowed" in said, said


@pytest.mark.slow
def test_all_cases_of_a_property_can_be_asked_for(suite: Path) -> None:
    """The marker `hypothesis` comes from its plugin."""
    (suite / "test_properties.py").write_text(PROPERTIES)
    exhaustive = collected(suite, "-m", "exhaustive or hypothesis")
    assert exhaustive.count("test_exhaustive") == 1
    assert [case for case in exhaustive if "property" in case] == [f"test_property[{case}]" for case in range(3)]
    assert not [case for case in exhaustive if "quick_cases" in case]


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--numprocesses", "2")], ids=["one process", "two processes"])
def test_times_of_a_run_are_kept_and_printed(suite: Path, options: tuple[str, ...], tmp_path: Path) -> None:
    code, said = run(suite, "-m", "not slow", "--junitxml", str(file := tmp_path / "times.xml"), *options)
    assert code == 0 and "processor time: " in said, said
    times = read_run(file)
    assert len(times.tests) == 8 and times.wall_s > 0 and times.processor_s > 0
    assert sum(cost.cases for cost in times.by(folder_of).values()) == 8
    assert {Path(test).name for test in times.by(file_of)} == {"test_cases.py"}
    for files in ([file], [file, file]):
        printed = subprocess.run(
            [sys.executable, "-m", "scripts.test_times", *map(str, files)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=400,
        )
        assert printed.returncode == 0 and "suite" in printed.stdout, printed
