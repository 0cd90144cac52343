"""Other libraries' own loaders, as rows of benchmarks.training.datasets: each shuffles by itself, with k workers.

    python -m venv build/peers && build/peers/bin/pip install --editable '.[dev]' mosaicml-streaming litdata \\
        'datasets>=3' 'huggingface-hub<1' grain lancedb
    build/peers/bin/python -m benchmarks.training.datasets --own-loaders 0,2

Each has its own format, uncompressed, on the local drive, made from the same samples. Samples are bytes, in lists of
128. Workers are started before the rounds and kept, except Grain's, which belong to an epoch. Before the rounds, one
epoch of each loader is compared with the samples. Nothing is downloaded, and none compares a sample with a checksum.

- mosaicml-streaming: StreamingDataset in torch's DataLoader; its shuffle within blocks is the default one.
- litdata: StreamingDataset in its StreamingDataLoader. Samples are copied, as they are views of mapped memory.
- datasets: a data set on disk in torch's DataLoader, which reads a batch with one call.
- Grain: shuffled numbers, in batches, of which each is one read of an ArrayRecord file.
- LanceDB: a Permutation of a table in torch's DataLoader, which reads a batch with one call.

Workers of datasets and of LanceDB are spawned, as their threads do not survive a fork.
"""

from __future__ import annotations

import importlib.util
import os
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader

from benchmarks.loaders.peers import Samples

BATCH = 128
Epochs = Iterable[list[bytes]]
"""Batches of one epoch in each iteration, in another order each time."""


@dataclass(frozen=True, slots=True)
class Loader:
    """A library's loader: `make` writes samples into an empty folder and returns how they are loaded."""

    name: str
    make: Callable[[Path, Samples, int], Epochs]
    module: str

    @property
    def installed(self) -> bool:
        return importlib.util.find_spec(self.module) is not None


def _data_of(rows: list[Any]) -> list[bytes]:
    return [row["data"] for row in rows]


def _copied(rows: list[Any]) -> list[bytes]:
    return [bytes(row) for row in rows]


def _torch_loader(dataset: Any, workers: int, **options: Any) -> Epochs:
    kept = {"persistent_workers": True} if workers else {}
    return DataLoader(dataset, batch_size=BATCH, collate_fn=_data_of, num_workers=workers, **kept, **options)


def _spawned(workers: int) -> dict[str, Any]:
    """Return options for a library whose threads do not survive a fork."""
    return {"multiprocessing_context": "spawn"} if workers else {}


def mosaic(folder: Path, samples: Samples, workers: int) -> Epochs:
    from streaming import MDSWriter, StreamingDataset

    size_limit = samples.per_shard * (samples.size_bytes + 16) + 2048
    with MDSWriter(out=str(folder), columns={"data": "bytes"}, size_limit=size_limit) as writer:
        for sample in samples:
            writer.write({"data": sample})
    return _torch_loader(StreamingDataset(local=str(folder), shuffle=True, batch_size=BATCH), workers)


def lightning(folder: Path, samples: Samples, workers: int) -> Epochs:
    os.environ["LITDATA_DISABLE_VERSION_CHECK"] = "1"
    from litdata import StreamingDataLoader, StreamingDataset, optimize

    numbers = list(range(samples.count))
    optimize(samples.__getitem__, numbers, str(folder), chunk_size=samples.per_shard, num_workers=1, verbose=False)
    kept = {"persistent_workers": True} if workers else {}
    dataset = StreamingDataset(str(folder), shuffle=True)
    loader: Epochs = StreamingDataLoader(dataset, batch_size=BATCH, num_workers=workers, collate_fn=_copied, **kept)
    return loader


def hugging_face(folder: Path, samples: Samples, workers: int) -> Epochs:
    import datasets

    datasets.disable_progress_bars()
    features = datasets.Features({"data": datasets.Value("binary")})
    table = datasets.Dataset.from_dict({"data": list(samples)}, features=features)
    table.save_to_disk(str(folder), num_shards=samples.shards)
    return _torch_loader(datasets.load_from_disk(str(folder)), workers, shuffle=True, **_spawned(workers))


class _Reshuffled:
    """An iterator of its own for each epoch, from the epoch's number."""

    def __init__(self, epoch_of: Callable[[int], Iterable[list[bytes]]]) -> None:
        self._epoch_of, self._epoch = epoch_of, 0

    def __iter__(self) -> Iterator[list[bytes]]:
        self._epoch += 1
        return iter(self._epoch_of(self._epoch))


def grains(folder: Path, samples: Samples, workers: int) -> Epochs:
    import grain
    from array_record.python.array_record_module import ArrayRecordWriter

    path = str(folder / "samples.array_record")
    writer = ArrayRecordWriter(path, "group_size:1,uncompressed")
    for sample in samples:
        writer.write(sample)
    writer.close()
    source = grain.sources.ArrayRecordDataSource(path)

    def epoch_of(epoch: int) -> Iterable[list[bytes]]:
        numbers = grain.MapDataset.range(samples.count).seed(epoch).shuffle().batch(BATCH)
        read = numbers.map(lambda batch: source.__getitems__(batch.tolist())).to_iter_dataset()
        batches: Iterable[list[bytes]] = read
        if workers:
            batches = read.mp_prefetch(grain.MultiprocessingOptions(num_workers=workers))
        return batches

    return _Reshuffled(epoch_of)


def lance(folder: Path, samples: Samples, workers: int) -> Epochs:
    import lancedb
    import pyarrow as pa
    from lancedb.permutation import Permutation

    rows = pa.table({"data": pa.array(list(samples), pa.binary())})
    table = lancedb.connect(str(folder)).create_table("samples", rows)
    return _torch_loader(Permutation.identity(table), workers, shuffle=True, **_spawned(workers))


LOADERS = [
    Loader("mosaicml-streaming", mosaic, "streaming"),
    Loader("litdata", lightning, "litdata"),
    Loader("datasets", hugging_face, "datasets"),
    Loader("Grain", grains, "grain"),
    Loader("LanceDB", lance, "lancedb"),
]


def rows(folder: Path, samples: Samples, workers: Iterable[int]) -> dict[str, Epochs]:
    """Return the loaders that are installed, by the names of their rows.

    Raises SystemExit if an epoch has other samples than were written.
    """
    found: dict[str, Epochs] = {}
    wanted = sorted(map(zlib.crc32, samples))
    for count in workers:
        for loader in LOADERS:
            if loader.installed:
                name = f"{loader.name}, its own loader, {count} workers"
                place = folder / f"{loader.name}-{count}"
                place.mkdir(parents=True)
                epochs = found[name] = loader.make(place, samples, count)
                if sorted(zlib.crc32(sample) for batch in epochs for sample in batch) != wanted:
                    raise SystemExit(f"{name} returned other samples than were written")
    return found
