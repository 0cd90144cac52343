"""CutBatches: how long a trainer waits for its batches, compared with a loop of AISBatchLoader and decoding.

    make .venv-front/.ais-loader-ready
    .venv-front/bin/python -m benchmarks.training.cut_batches  # writes the table and the plot beside this file

This isolates the work that is done beside the trainer's step. A batch has 32 FLAC recordings of 3 s (about 80 KiB each)
from a storage node, drawn by Lhotse's DynamicCutSampler and decoded to one array. A step takes three times as long as
fetching and decoding a batch, and computes nothing here, like a step that runs on a device, so the loop waits for a
quarter of its time. Waiting is the time from when a batch is wanted until it is available, including drawing. The first
batch of each run does not count, because nothing can be done for it in advance.

Expected: The loop waits for 25 % of the time, CutBatches for less than 1 %. A first version, whose step was matrix
products on the same cores, showed nothing on a machine with forty processes for two cores: 93 % and 82 %, because its
step was too short.
"""

from __future__ import annotations

import io
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import lhotse
import numpy as np
import soundfile
import torch
from lhotse import AudioSource, CutSet, MonoCut, Recording
from lhotse.dataset import DynamicCutSampler

import ais_loader
from ais_loader.integrations.lhotse import AISBatchLoader
from ais_loader.integrations.lhotse.cut_batches import CutBatches
from ais_loader.testing import NodeProcess
from benchmarks.kit.harness import conclude, load, machine, run_rounds
from benchmarks.kit.plots import draw_shares

RATE, SECONDS, BATCH = 16_000, 3, 32
STEP_TO_LOAD = 3
LOOP_AT_LEAST, CUT_BATCHES_AT_MOST = 20.0, 5.0
LOOP, CUT_BATCHES = "loop of AISBatchLoader and decoding", "CutBatches"
TABLE = Path(__file__).with_suffix(".md")
PLOT = Path(__file__).with_suffix(".png")


def flac(seed: int) -> bytes:
    file = io.BytesIO()
    noise = np.random.default_rng(seed).normal(0, 0.1, SECONDS * RATE).clip(-1, 1)
    soundfile.write(file, noise, RATE, format="FLAC", subtype="PCM_16")
    return file.getvalue()


def make_cut(number: int) -> MonoCut:
    name = f"{number}"
    whole = Recording(name, [AudioSource("url", [0], f"ais://b/{name}.flac")], RATE, SECONDS * RATE, float(SECONDS))
    return whole.to_cut()


class Decoded:
    """A dataset: all samples of a batch, shape (BATCH, SECONDS * RATE)."""

    def __getitem__(self, cuts: CutSet) -> torch.Tensor:
        return torch.from_numpy(np.concatenate([cut.load_audio() for cut in cuts]))


def waiting(batches: Callable[[], Iterator[Any]], step_s: float) -> Callable[[], float]:
    """Percent of the time of a run in which the trainer waits for a batch."""

    def run() -> float:
        coming = batches()
        next(coming)
        time.sleep(step_s)
        begun, waited_s = time.perf_counter(), 0.0
        while True:
            wanted = time.perf_counter()
            batch = next(coming, None)
            if batch is None:
                break
            waited_s += time.perf_counter() - wanted
            time.sleep(step_s)
        return 100 * waited_s / (time.perf_counter() - begun)

    return run


def loop(sampler: DynamicCutSampler, store: str) -> Iterator[Any]:
    loader, decoded = AISBatchLoader(store=store), Decoded()
    drawn = iter(sampler)
    while (cuts := next(drawn, None)) is not None:
        yield decoded[loader(cuts)]


@click.command(help=__doc__)
@click.option("--recordings", default=1024, show_default=True)
@click.option("--rounds", default=5, show_default=True)
@click.option("--threads", default=2, show_default=True)
@click.option("--folder", type=click.Path(file_okay=False, path_type=Path), default=None)
@click.option("--write/--no-write", default=True, show_default=True, help="Keep the table beside this file.")
def main(recordings: int, rounds: int, threads: int, folder: Path | None, write: bool) -> None:
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory(dir=folder) as here, NodeProcess([Path(here) / "drive"]) as node:
        with ais_loader.connect(node.url) as client:
            client.create_bucket("b").put_many((f"{at}.flac", flac(at)) for at in range(recordings))
        manifest = Path(here) / "cuts.jsonl"
        CutSet.from_cuts(map(make_cut, range(recordings))).to_file(manifest)

        def sampler() -> DynamicCutSampler:
            return DynamicCutSampler(CutSet.from_jsonl_lazy(manifest), max_cuts=BATCH, shuffle=True)

        took = []
        for coming in (loop(sampler(), node.url), loop(sampler(), node.url)):  # the first warms up
            start = time.perf_counter()
            count = sum(1 for _ in coming)
            took.append((time.perf_counter() - start) / count)
        step_s = STEP_TO_LOAD * took[-1]
        contestants = {
            LOOP: waiting(lambda: loop(sampler(), node.url), step_s),
            CUT_BATCHES: waiting(
                lambda: iter(CutBatches(sampler(), Decoded(), store=node.url, threads=threads)), step_s
            ),
        }
        shares = run_rounds(contestants, rounds)
    text, reached = report(shares, took[-1], recordings, rounds, threads)
    print(text)
    if write:
        draw_shares(shares, {LOOP: LOOP_AT_LEAST, CUT_BATCHES: CUT_BATCHES_AT_MOST}, PLOT)
    conclude(text, TABLE if write else None, reached=reached)


def report(
    shares: dict[str, list[float]], load_s: float, recordings: int, rounds: int, threads: int
) -> tuple[str, bool]:
    lines = []
    all_reached = True
    for name, wanted, good in (
        (LOOP, f"≥ {LOOP_AT_LEAST:g} %", lambda share: share >= LOOP_AT_LEAST),
        (CUT_BATCHES, f"< {CUT_BATCHES_AT_MOST:g} %", lambda share: share < CUT_BATCHES_AT_MOST),
    ):
        share = statistics.median(shares[name])
        all_reached &= good(share)
        verdict = "reached" if good(share) else "MISSED"
        lines.append(
            f"| {name} | {wanted} | **{share:.1f} %** | {min(shares[name]):.1f} – {max(shares[name]):.1f} | {verdict} |"
        )
    __, _, explained = (__doc__ or "").partition("\n\n")
    text = f"""# CutBatches

How long a trainer waits for its batches with CutBatches, compared with a loop of AISBatchLoader and decoding.

{explained.rstrip()}

Machine: {machine()}, lhotse {lhotse.__version__}; {load()}. {recordings} recordings, {rounds} rounds of
{recordings // BATCH} batches; fetching and decoding a batch takes {1000 * load_s:.0f} ms. CutBatches has {threads}
decoding threads. Each round runs both, and the median over the rounds counts.

| share of time waiting for data | wanted | median | range | |
|---|---:|---:|---:|---|
"""
    return text + "\n".join(lines) + f"\n\n![Share of time waiting]({PLOT.name})\n", all_reached


if __name__ == "__main__":
    main()
