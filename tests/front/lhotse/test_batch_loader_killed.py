"""The batch loader in the middle of a batch, when a worker or a node is killed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lhotse import CutSet, MonoCut
from lhotse.audio import AudioLoadingError
from lhotse.dataset import DynamicCutSampler
from lhotse.dataset.collation import collate_audio
from lhotse_kit import CountedLoader, cut, eager, encoded, put_audio, samples
from torch.utils.data import DataLoader

from ais_loader import connect
from ais_loader.integrations.lhotse import AISBatchLoader
from ais_loader.integrations.lhotse.batch_loader import PendingCuts
from ais_loader.testing import NodeProcess, eventually, throwaway_folder
from tests.cluster_processes import ClusterProcesses


class HeldDataset:
    """Says by a file that a worker has begun a batch, and asks for it when there is another file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._loader = AISBatchLoader()

    def __getitem__(self, cuts: CutSet) -> tuple[Any, list[str]]:
        (self._folder / f"begun-{os.getpid()}").touch()
        eventually(lambda: (self._folder / "go").exists())
        filled = self._loader(cuts)
        audio, _ = collate_audio(filled)
        return audio, [one.id for one in filled]


def test_a_worker_killed_in_mid_batch_is_told_at_once_and_the_next_epoch_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with NodeProcess(tmp_path / "drive") as node:
        monkeypatch.setenv("AIS_LOADER_URL", node.url)
        with connect(node.url) as client:
            cuts = put_audio(client.create_bucket("b"), 12)
        batches = DataLoader(
            HeldDataset(tmp_path),  # type: ignore[arg-type]
            sampler=DynamicCutSampler(CutSet.from_cuts(cuts), max_cuts=3),
            batch_size=None,
            num_workers=2,
        )
        reader = iter(batches)
        eventually(lambda: len(list(tmp_path.glob("begun-*"))) == 2)
        node.pause()
        (tmp_path / "go").touch()
        began_s = time.monotonic()
        victim = int(next(tmp_path.glob("begun-*")).name.partition("-")[2])
        eventually(lambda: asks(victim, node.url))
        os.kill(victim, signal.SIGKILL)
        with pytest.raises(RuntimeError, match=r"worker .* (killed|exited unexpectedly)"):
            next(reader)
        assert time.monotonic() - began_s < 30  # the loader's own patience with a silent store
        node.resume()
        del reader
        found = {name: row for audio, names in batches for name, row in zip(names, audio, strict=True)}
        assert list(found) == [one.id for one in cuts]
        for at, row in enumerate(found.values()):
            assert np.array_equal(row.numpy(), samples(1.0, at))


def asks(pid: int, url: str) -> bool:
    """Whether the process has a connection to the node."""
    port = f"{int(url.rpartition(':')[2]):04X}"
    lines = [line for kind in ("tcp", "tcp6") for line in Path(f"/proc/{pid}/net/{kind}").read_text().splitlines()]
    inodes = {fields[9] for fields in map(str.split, lines) if fields[2].endswith(f":{port}")}
    links = []
    for file in Path(f"/proc/{pid}/fd").iterdir():
        try:
            links.append(os.readlink(file))
        except OSError:
            continue
    return any(f"socket:[{inode}]" in links for inode in inodes)


RECORDINGS, SECONDS = 40, 30.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterProcesses]:
    """Three nodes with the same recordings in a bucket of two copies and in one of a single copy."""
    with throwaway_folder() as folder, ClusterProcesses(folder, 3, buckets={"twice": 2, "once": 1}) as nodes:
        with connect(nodes.url) as client:
            for bucket in ("twice", "once"):
                recordings = ((f"{at}.wav", encoded(samples(SECONDS, at))) for at in range(RECORDINGS))
                client.bucket(bucket).put_many(recordings)
        yield nodes


def long_cuts(bucket: str) -> list[MonoCut]:
    return [cut(str(at), f"ais://{bucket}/{at}.wav", seconds=SECONDS) for at in range(RECORDINGS)]


def begun_before_a_node_is_killed(cluster: ClusterProcesses, loader: CountedLoader, bucket: str) -> PendingCuts:
    """A batch that all three nodes have been asked for, of which one had no time to answer."""
    loader.begin(eager(*long_cuts(bucket))).finish()  # connected to all
    loader.requests.clear()
    cluster.nodes[1].pause()
    pending = loader.begin(eager(*long_cuts(bucket)))
    cluster.kill([1])
    return pending


def test_a_node_killed_in_mid_batch_costs_nothing_where_others_have_copies(cluster: ClusterProcesses) -> None:
    with connect(cluster.url) as client:
        loader = CountedLoader(client)
        pending = begun_before_a_node_is_killed(cluster, loader, "twice")
        filled = pending.finish()
        for at, one in enumerate(filled):
            assert np.array_equal(one.load_audio()[0], samples(SECONDS, at))
        assert len(loader.requests) == 1


def test_a_node_killed_in_mid_batch_costs_the_cuts_that_it_alone_had(cluster: ClusterProcesses) -> None:
    with connect(cluster.url) as client:
        pending = begun_before_a_node_is_killed(cluster, CountedLoader(client, timeout_s=5.0), "once")
        filled = pending.finish()
    lost = []
    for at, one in enumerate(filled):
        try:
            assert np.array_equal(one.load_audio()[0], samples(SECONDS, at))
        except AudioLoadingError as error:
            assert f"ais://once/{at}.wav: " in str(error)
            lost.append(at)
    assert 0 < len(lost) < RECORDINGS
