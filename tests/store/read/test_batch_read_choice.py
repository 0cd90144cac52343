"""Which batch reader runs: the native one where it is built, or as AIS_LOADER_READER says."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from storage_node.store.read import batch_reader as batch_read
from storage_node.store.read.batch_reader import FailureCode
from tests.store.batch_read_kit import READERS


def test_the_failure_codes_of_the_native_module_are_those_of_the_reference() -> None:
    if "native" in READERS:
        from storage_node.store import _native

        assert {code.name: getattr(_native, code.name) for code in FailureCode} == dict(FailureCode.__members__)


def chosen(setting: str, before: str = "") -> subprocess.CompletedProcess[str]:
    code = (
        f"import sys; {before}\n"
        "from storage_node.store.read import batch_reader as b; print(b.IMPLEMENTATION, b.read_frame)"
    )
    environment = os.environ | {"AIS_LOADER_READER": setting, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)


UNBUILT = "sys.modules['storage_node.store._native'] = None"


@pytest.mark.slow
def test_auto_takes_the_native_reader_where_it_is_built() -> None:
    assert chosen("auto").stdout.split()[0] == ("native" if "native" in READERS else "python")


def test_the_chosen_functions_are_those_of_the_named_implementation() -> None:
    chosen_reader = READERS[batch_read.IMPLEMENTATION]
    assert (batch_read.read_frame, batch_read.read_list) == (chosen_reader.read_frame, chosen_reader.read_list)


@pytest.mark.slow
def test_python_can_be_forced() -> None:
    assert chosen("python").stdout.startswith("python <function read_frame_python")


@pytest.mark.slow
def test_auto_falls_back_to_python_where_the_extension_is_absent() -> None:
    assert chosen("auto", UNBUILT).stdout.startswith("python <function read_frame_python")


@pytest.mark.slow
def test_native_forced_but_absent_says_what_to_do() -> None:
    result = chosen("native", UNBUILT)
    assert result.returncode != 0
    assert "AIS_LOADER_READER=native, but storage_node.store._native cannot be loaded" in result.stderr
    assert "set AIS_LOADER_READER=auto" in result.stderr


@pytest.mark.slow
def test_an_unknown_setting_is_refused() -> None:
    result = chosen("fast")
    assert result.returncode != 0
    assert "AIS_LOADER_READER must be auto, native or python, got 'fast'" in result.stderr
