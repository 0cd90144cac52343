"""Installed by one call or by the launcher: Lhotse finds ours in this process, in workers of every kind, and in scripts
as they are."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from lhotse_kit import eager, put_audio

from ais_loader import connect
from ais_loader.testing import throwaway_folder

TRAIN = """
import sys
import torch
from lhotse import CutSet
from lhotse.dataset.input_strategies import AudioSamples
from lhotse.dataset.sampling import SimpleCutSampler


class Speech(torch.utils.data.Dataset):
    def __init__(self):
        self.strategy = AudioSamples(fault_tolerant=True, use_batch_loader=True)

    def __getitem__(self, cuts):
        # Made in the worker, where nobody has installed anything.
        strategy = AudioSamples(fault_tolerant=True, use_batch_loader=True)
        manifest = CutSet.from_file(MANIFEST)
        audio, _, left = strategy(cuts)
        again, _, _ = self.strategy(cuts)
        assert (audio == again).all()
        kind = type(strategy.ais_batch_loader).__module__
        return len(audio), float(audio.abs().sum()), kind, len(list(manifest))


MANIFEST = "ais://b/cuts.jsonl.gz"

if __name__ == "__main__":
    {line}
    cuts = CutSet.from_file(MANIFEST).to_eager()
    for method in sys.argv[1:]:
        loader = torch.utils.data.DataLoader(
            Speech(), sampler=SimpleCutSampler(cuts, max_cuts=2), batch_size=None, num_workers=1,
            multiprocessing_context=method,
        )
        for count, loudness, kind, lines in loader:
            print(count, loudness > 0, kind, lines)
"""
WANTED = ["2 True ais_loader.integrations.lhotse.batch_loader 4"] * 2


@pytest.fixture(scope="module")
def store() -> Iterator[Path]:
    """With a manifest, compressed, and the four recordings that it names."""
    with throwaway_folder() as folder:
        with connect(folder / "store") as client:
            bucket = client.create_bucket("b")
            eager(*put_audio(bucket, 4)).to_file(folder / "cuts.jsonl.gz")
            bucket.put("cuts.jsonl.gz", folder / "cuts.jsonl.gz")
        yield folder / "store"


def run(*command: str, store: Path) -> list[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AIS_")}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", *command],
        env={**environment, "AIS_LOADER_URL": str(store)},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_one_line_in_a_script_is_enough_for_workers_of_every_kind(store: Path, tmp_path: Path, method: str) -> None:
    (tmp_path / "train.py").write_text(
        TRAIN.replace("{line}", "from ais_loader.integrations.lhotse import install; install()")
    )
    assert run(str(tmp_path / "train.py"), method, store=store) == WANTED


@pytest.mark.parametrize("how", ["script", "module", "torchrun"])
def test_the_launcher_needs_no_line_in_the_script(store: Path, tmp_path: Path, how: str) -> None:
    (tmp_path / "train.py").write_text(TRAIN.replace("{line}", "import beside"))
    (tmp_path / "beside.py").write_text("")
    launcher = ["-m", "ais_loader.integrations.lhotse"]
    if how == "script":
        assert run(*launcher, str(tmp_path / "train.py"), "spawn", store=store) == WANTED
    elif how == "module":
        code = f"import sys, runpy; sys.path.insert(0, {str(tmp_path)!r}); sys.argv = ['', '-m', 'train', 'fork']; "
        assert run("-c", code + f"runpy.run_module({launcher[1]!r}, run_name='__main__')", store=store) == WANTED
    else:
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1"]
        assert run(*torchrun, *launcher, str(tmp_path / "train.py"), "fork", store=store) == WANTED


def test_the_launcher_says_how_it_is_used() -> None:
    command = [sys.executable, "-m", "ais_loader.integrations.lhotse"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode != 0
    assert "TRAIN.py" in done.stderr


def test_installing_puts_ours_wherever_lhotse_looks_and_again_changes_the_store(store: Path) -> None:
    code = (
        "import lhotse.ais, lhotse.ais.batch_loader, lhotse, multiprocessing.spawn as spawn\n"
        "from lhotse.dataset.input_strategies import AudioSamples\n"
        "from ais_loader.integrations.lhotse import AISBatchLoader, install\n"
        "install('/nowhere'); install({store!r})\n"
        "assert lhotse.ais.AISBatchLoader is lhotse.ais.batch_loader.AISBatchLoader is AISBatchLoader\n"
        "assert 'memory_raw' not in lhotse.ais.batch_loader.FILE_TO_MEMORY_TYPE.values()\n"
        "assert not hasattr(spawn.get_preparation_data.of_others, 'of_others')\n"
        "cuts = lhotse.CutSet.from_file('ais://b/cuts.jsonl.gz').to_eager()\n"
        "audio, _ = AudioSamples(use_batch_loader=True)(cuts)\n"
        "print(tuple(audio.shape))\n"
    )
    assert run("-c", code.replace("{store!r}", repr(str(store))), store=Path("/nowhere/else")) == ["(4, 16000)"]
