"""The example of one WebDataset user's script, as files, over a store and by number."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ais_loader import connect
from ais_loader.integrations.webdataset import uninstall
from ais_loader.testing import throwaway_folder
from examples.webdataset_user import main
from tests.tar_kit import packed_tar


@pytest.mark.parametrize("way", ["files", "store", "by number"])
def test_the_same_loop_gets_every_sample_once(way: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    shards = {
        f"t-{number}.tar": packed_tar(
            {f"{number:03d}-{at:02d}.txt": f"text {number} {at}".encode() for at in range(12)}
        )
        for number in range(4)
    }
    with throwaway_folder() as folder:
        with connect(folder / "store") as client:
            client.create_bucket("b").put_many(shards.items())
        for name, data in shards.items():
            (tmp_path / name).write_bytes(data)
        try:
            if way == "files":
                main([f"{tmp_path}/t-{{0..3}}.tar"])
            else:
                options = ["--by-number"] if way == "by number" else []
                main(["ais://b/t-{0..3}.tar", "--store", str(folder / "store"), *options])
        finally:
            uninstall()
    told = capsys.readouterr().out
    assert told.splitlines()[-1] == "48 samples, 48 different"
    spread = max(int(found) for found in re.findall(r"spread (\d)", told))
    assert spread >= 2 if way == "by number" else spread <= 4
