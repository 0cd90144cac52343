"""Megatron-Energon over the store: the samples that it has over the same files, in the same order."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

import ais_loader
from ais_loader.testing import NodeProcess, throwaway_folder
from tests.data import utterances

SHARDS, PER_SHARD = 4, 25
PROGRAM = """
import sys
from zlib import crc32
from megatron.energon import Cooker, DefaultTaskEncoder, TextSample, WorkerConfig, basic_sample_keys, stateless
from megatron.energon import get_loader, get_train_dataset


@stateless
def cook(sample):
    return TextSample(**basic_sample_keys(sample), text=f"{crc32(sample['raw'])} {sample['txt']}")


class Encoder(DefaultTaskEncoder):
    cookers = [Cooker(cook)]


if __name__ == "__main__":
    path, workers, shuffle = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    dataset = get_train_dataset(
        path, worker_config=WorkerConfig(rank=0, world_size=1, num_workers=workers), batch_size=4, repeat=False,
        shuffle_buffer_size=shuffle or None, max_samples_per_sequence=10 if shuffle else None, task_encoder=Encoder(),
    )
    for batch in get_loader(dataset):
        print(list(zip(batch.__key__, batch.text)))
"""


@pytest.fixture(scope="module")
def corpus() -> Iterator[Path]:
    """A folder with shards of real speech, prepared by Energon. Energon would decode the ending flac."""
    from megatron.energon.flavors.webdataset import BaseWebdatasetFactory

    with throwaway_folder() as folder:
        root = folder / "corpus"
        root.mkdir()
        for shard in range(SHARDS):
            with tarfile.open(root / f"s-{shard}.tar", "w") as tar:
                for number, one in enumerate(utterances()[shard * PER_SHARD : (shard + 1) * PER_SHARD]):
                    for ending, data in (("raw", one.path.read_bytes()), ("txt", one.text.encode())):
                        member = tarfile.TarInfo(f"{shard}{number:03d}.{ending}")
                        member.size = len(data)
                        tar.addfile(member, io.BytesIO(data))
        names = [f"s-{shard}.tar" for shard in range(SHARDS)]
        BaseWebdatasetFactory.prepare_dataset(root, names, split_parts_ratio=[("train", 1.0)], workers=1)
        kind = {"__module__": "megatron.energon", "__class__": "CrudeWebdataset"}
        (root / ".nv-meta" / "dataset.yaml").write_text(yaml.safe_dump(kind))
        yield root


@pytest.fixture(scope="module", params=["embedded", "node"])
def store(request: pytest.FixtureRequest, corpus: Path) -> Iterator[str]:
    with throwaway_folder() as folder:
        if request.param == "embedded":
            with ais_loader.connect(folder / "store") as client:
                client.create_bucket("speech").put_folder(corpus, "corpus", hidden=True)
            yield str(folder / "store")
        else:
            with NodeProcess(folder / "store") as node:
                with ais_loader.connect(node.url) as client:
                    client.create_bucket("speech").put_folder(corpus, "corpus", hidden=True)
                yield node.url


def batches(path: str, workers: int, shuffle: int, folder: Path, store: str = "") -> list[str]:
    (folder / "train.py").write_text(PROGRAM)
    options = {"base_path": "speech", "store": store}
    bundle = {"provider_bundle": {"type": "ais_loader.integrations.msc.AISBundle", "options": options}}
    (folder / "msc.yaml").write_text(yaml.safe_dump({"profiles": {"speech": bundle}} if store else {}))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(folder / "train.py"), path, str(workers), str(shuffle)],
        env={**os.environ, "MSC_CONFIG": str(folder / "msc.yaml")},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout.splitlines()


@pytest.mark.parametrize("shuffle", [0, 30])
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_those_of_files(store: str, corpus: Path, workers: int, shuffle: int, tmp_path: Path) -> None:
    expected = batches(str(corpus), workers, shuffle, tmp_path)
    assert len(expected) >= SHARDS * PER_SHARD // 4
    assert batches("msc://speech/corpus", workers, shuffle, tmp_path, store) == expected


def test_energons_own_preparation_writes_into_the_store(store: str, corpus: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(corpus, copy, ignore=shutil.ignore_patterns(".nv-meta", "*.idx"))
    with ais_loader.connect(store) as client:
        client.bucket("speech").put_folder(copy, "fresh")
    script = (
        "from megatron.energon.flavors.webdataset import BaseWebdatasetFactory\n"
        f"names = ['s-%d.tar' % at for at in range({SHARDS})]\n"
        "if __name__ == '__main__':\n"
        "    BaseWebdatasetFactory.prepare_dataset(\n"
        "        'msc://speech/fresh', names, split_parts_ratio=[('train', 1.0)], workers=1)\n"
    )
    (tmp_path / "prepare.py").write_text(script)
    options = {"base_path": "speech", "store": store}
    bundle = {"provider_bundle": {"type": "ais_loader.integrations.msc.AISBundle", "options": options}}
    (tmp_path / "msc.yaml").write_text(yaml.safe_dump({"profiles": {"speech": bundle}}))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(tmp_path / "prepare.py")],
        env={**os.environ, "MSC_CONFIG": str(tmp_path / "msc.yaml")},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    with ais_loader.connect(store, mode="r") as client:
        bucket = client.bucket("speech")
        assert bucket.get("fresh/.nv-meta/split.yaml") == (corpus / ".nv-meta" / "split.yaml").read_bytes()
        assert bucket.exists("fresh/.nv-meta/index.sqlite")
