"""Ray Data reads of small objects: `read_ais` compared with `read_binary_files` through fsspec, from the same store.

    .venv-front/bin/python -m benchmarks.loaders.ray_data  # writes the table and the plot beside this file

The objects have 10 KiB and are read over gRPC. Each contestant reads all of them once in a round, with the same two
blocks on one Ray with two CPUs, and drops the rows. Both are given the URLs, and the measured time of both includes
making their list of names. Workers and connections are warm from a pass before the first round.

Prediction, written before the first run: 5 times as fast, since `read_binary_files` opens (with a HEAD) and reads each
file separately through pyarrow and fsspec, which takes about 2 ms, while 128 of our objects arrive together in a few
ms. Ray's own second or so for a dataset reduces the factor.

Since a file is opened with one request, which brings a small object, `read_binary_files` is compared with the same of
local files, too. It sent two requests for each file, one of which is pyarrow's question whether it is a file, and had
0.35 of the rate; one request would have 0.47. Now files that are opened in order arrive together. Prediction, written
before the first run of this: 0.7 of local files, on two cores that the node shares with Ray's workers, and the same for
an embedded store, where a file takes two calls in the process.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import fsspec
import ray
import ray.data

from ais_loader import connect
from ais_loader.integrations.ray_data import read_ais
from ais_loader.testing import NodeProcess, seeded_bytes
from benchmarks.kit.harness import Claim, run_rounds
from benchmarks.kit.pages import publish

OBJECT_BYTES = 10 << 10
BLOCKS = 2
TABLE = Path(__file__).with_suffix(".md")
OURS, THEIRS, LOCAL = "read_ais", "read_binary_files, fsspec", "read_binary_files, local files"
EMBEDDED = "read_binary_files, fsspec, embedded"
CLAIMS = [Claim(OURS, THEIRS, 1.5), Claim(THEIRS, LOCAL, 0.7), Claim(EMBEDDED, LOCAL, 0.7)]


def timed(make: Callable[[], Any], expected: int) -> Callable[[], float]:
    def rate() -> float:
        started_s = time.perf_counter()
        rows = size_bytes = 0
        for batch in make().iter_batches(batch_size=None, batch_format="pyarrow"):
            rows += batch.num_rows
            size_bytes += sum(chunk.nbytes for chunk in batch["bytes"].chunks)
        if rows != expected or size_bytes < expected * OBJECT_BYTES:
            raise SystemExit(f"{rows} rows of {size_bytes} bytes came, not {expected}")
        return rows / (time.perf_counter() - started_s)

    return rate


@click.command()
@click.option("--rounds", default=5, show_default=True)
@click.option("--objects", default=10_000, show_default=True)
@click.option("--ray-address", help="A Ray that runs; without it one is started.")
@click.option("--write/--no-write", default=True, show_default=True, help="Keep the table.")
def main(rounds: int, objects: int, ray_address: str | None, write: bool) -> None:
    started = {} if ray_address else {"num_cpus": BLOCKS, "include_dashboard": False}
    if not ray_address:
        os.environ["RAY_AUTH_MODE"] = "disabled"  # it would keep a token in the home folder
    ray.init(ray_address, log_to_driver=False, **started)
    ray.data.DataContext.get_current().enable_progress_bars = False
    with tempfile.TemporaryDirectory() as folder, NodeProcess(Path(folder) / "drive") as node:
        ring = seeded_bytes(OBJECT_BYTES + objects)
        embedded = str(Path(folder) / "embedded")
        for store in (node.url, embedded):
            with connect(store) as client:
                pairs = ((f"{at:06d}", ring[at : at + OBJECT_BYTES]) for at in range(objects))
                client.create_bucket("b").put_many(pairs)
        urls = [f"ais://b/{at:06d}" for at in range(objects)]
        files = fsspec.filesystem("ais", store=node.url)
        local = Path(folder) / "local"
        local.mkdir()
        for at in range(objects):
            (local / f"{at:06d}").write_bytes(ring[at : at + OBJECT_BYTES])
        paths = [str(local / f"{at:06d}") for at in range(objects)]

        def opened_by_ray(filesystem: Any) -> Any:
            names = [url.removeprefix("ais://") for url in urls]
            return ray.data.read_binary_files(names, filesystem=filesystem, override_num_blocks=BLOCKS)

        passes = {
            OURS: lambda: read_ais(urls, store=node.url, include_paths=False, override_num_blocks=BLOCKS),
            THEIRS: lambda: opened_by_ray(files),
            EMBEDDED: lambda: opened_by_ray(fsspec.filesystem("ais", store=embedded)),
            LOCAL: lambda: ray.data.read_binary_files(paths, override_num_blocks=BLOCKS),
        }
        contestants = {name: timed(make, objects) for name, make in passes.items()}
        for warm in contestants.values():
            warm()
        rates = run_rounds(contestants, rounds)
    ray.shutdown()
    publish(
        "Ray Data",
        __doc__,
        f"Ray {ray.__version__}. {rounds} rounds of {objects:,} objects.",
        rates,
        "objects/s",
        CLAIMS,
        table=TABLE if write else None,
        size_bytes=OBJECT_BYTES,
        picture=True,
    )


if __name__ == "__main__":
    main()
