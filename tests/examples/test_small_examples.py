"""The examples of images and of lines of text, as a user runs them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from ais_loader import connect
from examples import images, lines


def test_images_come_in_shuffled_minibatches(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    images.main(["--store", str(tmp_path / "store")])
    told = capsys.readouterr().out.splitlines()
    assert [line.split(",")[0] for line in told] == [f"step {step}: (8" for step in range(4)]
    assert all("(8, 3, 96, 96)" in line for line in told)
    with connect(tmp_path / "store", mode="r") as client:
        assert len(list(client.bucket("pictures").objects())) == 32
    (tmp_path / "none").mkdir()
    with pytest.raises(SystemExit):
        images.main([str(tmp_path / "none")])
    assert "has no .jpg" in capsys.readouterr().err


def test_lines_come_whole_and_each_once(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    texts = ["one", "", "größer", "a last one without an end"]
    (tmp_path / "a #.txt").write_bytes("\r\n".join(texts).encode())
    lines.main([str(tmp_path / "a #.txt"), "--batch-size", "3"])
    told = re.findall(r"^  (.*)$", capsys.readouterr().out, re.MULTILINE)
    assert sorted(told) == sorted(texts)


HELD = """
import builtins, runpy, signal, time
told, handle, got = builtins.print, signal.signal, []
def print_and_wait(line, **options):
    told(line, **options)
    while line.startswith("step 3:") and not got:
        time.sleep(0.01)
def handle_and_note(number, handler):
    return handle(number, (lambda *given: (got.append(number), handler(*given))) if callable(handler) else handler)
builtins.print, signal.signal = print_and_wait, handle_and_note
runpy.run_module("examples.tokens", run_name="__main__", alter_sys=True)
"""
"""The example, which waits behind its third step until it gets a signal."""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_run_on_tokens_goes_on_where_it_was_interrupted_or_killed(tmp_path: Path) -> None:
    (tmp_path / "arrays").mkdir()
    drawn = np.random.default_rng(1).integers(0, 1 << 16, 128 * 24 + 1, np.uint16)
    np.save(tmp_path / "arrays" / "a.npy", drawn)

    def run(store: str, number: signal.Signals | None = None) -> list[str]:
        """Return the lines of a run that gets a signal after its third step."""
        options = ["--store", str(tmp_path / store), "--checkpoint", str(tmp_path / f"{store}.pt"), "--every", "2"]
        program = ["-m", "examples.tokens"] if number is None else ["-c", HELD]
        command = [sys.executable, *program, str(tmp_path / "arrays"), *options]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
        ) as ran:
            assert ran.stdout is not None
            told = list[str]()
            for line in ran.stdout:
                told.append(line.strip())
                if number is not None and line.startswith("step 3:"):
                    ran.send_signal(number)
        return told

    whole = run("whole")
    assert [line.partition(":")[0] for line in whole] == [f"step {step}" for step in range(1, 7)]
    interrupted = run("interrupted", signal.SIGINT)
    assert re.fullmatch(r"stopped; the same command goes on with step \d", interrupted[-1])
    assert interrupted[:-1] + run("interrupted") == whole
    killed = run("killed", signal.SIGKILL)
    again = run("killed")
    assert killed == whole[: len(killed)]
    assert again == whole[-len(again) :]
    assert len(killed) + len(again) >= len(whole)
    assert torch.load(tmp_path / "killed.pt")["step"] == len(whole)
