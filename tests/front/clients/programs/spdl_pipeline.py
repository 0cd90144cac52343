"""SPDL: a pipeline whose first stage fetches a batch with one request, and whose second one decodes it.

Differs: The source is numbers of batches, not paths.
"""

import io
import os
from collections.abc import Iterator
from pathlib import Path

import soundfile
from spdl.pipeline import PipelineBuilder

from ais_loader import BatchSampler, MapDataset, ShufflePlan

PACKAGES = ("spdl",)
STORE = os.environ["AIS_LOADER_URL"]
samples = MapDataset(STORE, "ais://speech/", lambda item: item.tobytes())  # change
paths = sorted(Path(os.environ["SPEECH"]).rglob("*.flac"), key=lambda path: str(path.relative_to(os.environ["SPEECH"])))
batches = list(BatchSampler(ShufflePlan(len(samples), 8, seed=1)))


def read_files(numbers: list[int]) -> list[bytes]:
    return [paths[number].read_bytes() for number in numbers]


def decode(files: list[bytes]) -> list[list[float]]:
    return [soundfile.read(io.BytesIO(file))[0].tolist() for file in files]


def work(fetch: object) -> Iterator[list[list[float]]]:
    builder = PipelineBuilder().add_source(batches).pipe(fetch, concurrency=2, output_order="input")
    pipeline = builder.pipe(decode, concurrency=2, output_order="input").add_sink(4).build(num_threads=4)
    with pipeline.auto_stop():
        yield from pipeline


assert list(work(samples.__getitems__)) == list(work(read_files))  # change
