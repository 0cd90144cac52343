"""The examples of images and of lines of text, as a user runs them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

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
