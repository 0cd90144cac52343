"""AISBatchLoader: data of 32 cuts by one GetBatch, compared with single GETs, bare GetBatch, and Lhotse over files.

    make .venv-front/.ais-loader-ready
    .venv-front/bin/python -m benchmarks.training.lhotse_batches  # writes the table and the plot beside this file

A batch is 32 of the recordings in tests/data/speech (FLAC), different ones each time, or 32 windows of 2 s of one WAV
of 600 s. Loading includes decoding where the row says so. Prediction, written before the first run: 12 times the rate
of single GETs, 0.8 of the bare batch, 0.95 of Lhotse over files where both decode, and windows at 8 times the rate of
whole files. "features" is a K2SpeechRecognitionDataset with OnTheFlyFeatures, which reads cut by cut, and with
Fetched around it: their ratio was expected to be 1.5. "audio" is a dataset that only decodes, with an expected ratio
of 2. Features are computed by one thread.
"""

from __future__ import annotations

import io
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
import lhotse
import numpy as np
import soundfile
import torch
from lhotse import AudioSource, CutSet, Fbank, FbankConfig, MonoCut, Recording, SupervisionSegment
from lhotse.dataset import K2SpeechRecognitionDataset
from lhotse.dataset.input_strategies import OnTheFlyFeatures

import ais_loader
from ais_loader import BatchOptions, Client, Entry
from ais_loader.integrations.lhotse import AISBatchLoader, Fetched, install
from ais_loader.integrations.lhotse.needs import entry_of, needs_of
from ais_loader.testing import NodeProcess
from ais_loader.values.requests import requests_for_entries
from benchmarks.kit.harness import Claim, run_rounds
from benchmarks.kit.pages import publish
from benchmarks.kit.processor_time import ProcessorTime

RATE, BATCH = 16_000, 32
SPEECH = Path(__file__).resolve().parents[2] / "tests" / "data" / "speech"
LONG_SECONDS, WINDOW_SECONDS = 600, 2
HALF_A_MILLISECOND = "0.5 ms each"
TABLE = Path(__file__).with_suffix(".md")


def long_wav() -> bytes:
    noise = np.random.default_rng(0).normal(0, 0.1, LONG_SECONDS * RATE).clip(-1, 1).astype(np.float32)
    file = io.BytesIO()
    soundfile.write(file, noise, RATE, format="WAV", subtype="PCM_16")
    return file.getvalue()


def make_cut(path: Path, kind: str, source: str) -> MonoCut:
    info = soundfile.info(path)
    whole = Recording(source, [AudioSource(kind, [0], source)], info.samplerate, info.frames, info.duration)
    said = SupervisionSegment(source, source, 0.0, info.duration, text=path.stem)
    return MonoCut(source, start=0.0, duration=info.duration, channel=0, supervisions=[said], recording=whole)


def windows() -> list[MonoCut]:
    step = (LONG_SECONDS - WINDOW_SECONDS) / BATCH
    source = AudioSource("url", [0], "ais://b/long.wav")
    whole = Recording("long", [source], RATE, LONG_SECONDS * RATE, float(LONG_SECONDS))
    return [
        MonoCut(f"w{at}", start=at * step, duration=WINDOW_SECONDS, channel=0, recording=whole) for at in range(BATCH)
    ]


def per_second(work: Callable[[Sequence[Any]], object], cuts: Sequence[Any], batches: int) -> Callable[[], float]:
    """Batches of 32 of these, chosen anew each time."""
    choose = random.Random(0)

    def run() -> float:
        wanted = [choose.sample(list(cuts), BATCH) for _ in range(batches)]
        start = time.perf_counter()
        for batch in wanted:
            work(batch)
        return batches / (time.perf_counter() - start)

    return run


def build_request(cuts: Sequence[Any]) -> object:
    return requests_for_entries([entry_of(need, {}) for need in needs_of(cuts)], BatchOptions())


def single_gets(client: Client) -> Callable[[Sequence[Any]], object]:
    bucket = client.bucket("b")
    return lambda cuts: [bucket.get(Entry.from_url(cut.recording.sources[0].source).name) for cut in cuts]


def bare_batch(client: Client) -> Callable[[Sequence[Any]], object]:
    return lambda cuts: client.get_batch([cut.recording.sources[0].source for cut in cuts]).tobytes()


class AudioDataset:
    """A dataset that reads and decodes cut by cut."""

    def __getitem__(self, cuts: CutSet) -> object:
        return decoded(list(cuts))


def batches_of(dataset: Any) -> Callable[[Sequence[Any]], object]:
    return lambda cuts: dataset[CutSet.from_cuts(cuts)]


def decoded(cuts: Sequence[Any]) -> object:
    return [cut.load_audio() for cut in cuts]


@click.command(help=__doc__)
@click.option("--batches", default=20, show_default=True)
@click.option("--rounds", default=5, show_default=True)
@click.option("--folder", type=click.Path(file_okay=False, path_type=Path), default=None)
@click.option("--write/--no-write", default=True, show_default=True, help="Keep the table beside this file.")
def main(batches: int, rounds: int, folder: Path | None, write: bool) -> None:
    with (
        tempfile.TemporaryDirectory(dir=folder) as here,
        NodeProcess([Path(here) / "drive"]) as node,
        ais_loader.connect(node.url) as over_grpc,
        ais_loader.connect(Path(here) / "store") as embedded,
    ):
        paths = sorted(SPEECH.rglob("*.flac"))
        size_bytes = sum(path.stat().st_size for path in paths) // len(paths)
        long = long_wav()
        for client in (over_grpc, embedded):
            bucket = client.create_bucket("b")
            bucket.put_many((str(path.relative_to(SPEECH)), path) for path in paths)
            bucket.put("long.wav", long)
        remote = [make_cut(path, "url", f"ais://b/{path.relative_to(SPEECH)}") for path in paths]
        local = [make_cut(path, "file", str(path)) for path in paths]
        here_loader, node_loader = AISBatchLoader(store=embedded.url), AISBatchLoader(store=node.url)
        whole_loader = AISBatchLoader(store=node.url, windows=False)
        spent, few = ProcessorTime(node.pid), max(batches // 5, 1)
        install(node.url)
        torch.set_num_threads(1)
        by_cut = K2SpeechRecognitionDataset(input_strategy=OnTheFlyFeatures(Fbank(FbankConfig(sampling_rate=8000))))
        contestants = {
            "request of 32 cuts": per_second(build_request, remote, 20 * batches),
            HALF_A_MILLISECOND: lambda: 2000.0,
            **{
                name: spent.of(name, per_second(work, remote, count), count)
                for name, work, count in (
                    ("loader, gRPC", node_loader, batches),
                    ("bare get_batch, gRPC", bare_batch(over_grpc), batches),
                    ("single GETs, gRPC", single_gets(over_grpc), few),
                )
            },
            "loader, embedded, decoded": per_second(lambda cuts: decoded(here_loader(cuts)), remote, batches),
            "Lhotse over files, decoded": per_second(decoded, local, batches),
            "audio, gRPC": per_second(batches_of(AudioDataset()), remote, few),
            "audio, Fetched, gRPC": per_second(batches_of(Fetched(AudioDataset())), remote, few),
            "features, gRPC": per_second(batches_of(by_cut), remote, few),
            "features, Fetched, gRPC": per_second(batches_of(Fetched(by_cut)), remote, few),
            "32 windows, gRPC": per_second(node_loader, windows(), batches),
            "32 windows, of the whole, gRPC": per_second(whole_loader, windows(), few),
        }
        for work in contestants.values():
            work()  # caches of entries, headers and pages
        spent.forget()
        rates = run_rounds(contestants, rounds)
        window_bytes = sum(len(cut.recording.sources[0].source) for cut in node_loader(windows()))
    publish(
        "AISBatchLoader",
        __doc__,
        f"Lhotse {lhotse.__version__}. {rounds} rounds of {batches} batches; {len(paths):,} recordings of "
        f"{size_bytes / 1024:.0f} KiB. Client and node share the cores. The windows contain "
        f"{window_bytes / 1024:,.0f} of {len(long) / 1024:,.0f} KiB.",
        rates,
        "batches/s",
        [
            Claim("request of 32 cuts", HALF_A_MILLISECOND, 1.0),
            Claim("loader, gRPC", "single GETs, gRPC", 8.0),
            Claim("loader, gRPC", "bare get_batch, gRPC", 1 / 1.6),
            Claim("loader, embedded, decoded", "Lhotse over files, decoded", 1 / 1.2),
            Claim("audio, Fetched, gRPC", "audio, gRPC", 2.0),
            Claim("features, Fetched, gRPC", "features, gRPC", 1.5),
            Claim("32 windows, gRPC", "32 windows, of the whole, gRPC", 4.0),
        ],
        spent.table("a batch of 32"),
        table=TABLE if write else None,
        picture=True,
    )


if __name__ == "__main__":
    main()
