"""Threads and processes of BatchLoader where decoding is most of the work: images, audio and text.

    python -m benchmarks.training.decoding            # writes the table beside this file

Images are JPEG photographs of 640 x 427 pixels, which Pillow decodes and resizes to 224 x 224. Audio is FLAC of some
seconds, which soundfile decodes. Text is 16 KiB of words, which a function of pure Python splits and numbers, as simple
tokenizers do. Each batch becomes an array. The store is embedded, so that reading takes almost no time. All contestants
read equally many batches, one after another in each round. The first four batches of an iteration do not count in
rates: workers start with them.

On a machine whose cores others use, rates hardly show what a second core is good for. Two other figures do not depend
on them. One is the processor time of a sample in all processes, with the start of workers. The other is the part of its
time in which a decoder holds Python's lock, as py-spy sees it (`py-spy record --gil` against one without, by hand):
threads cannot use more cores than one divided by that. Pillow and soundfile let go of the lock while they decode; pure
Python holds it.
"""

from __future__ import annotations

import random
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeAlias

import click
import torch

import ais_loader
from ais_loader import BatchLoader, Item, MapDataset, ShufflePlan, decoders
from benchmarks.kit.harness import conclude, page, rates_table, run_rounds

DATA = Path(__file__).parents[2] / "tests" / "data"
BATCH = {"images": 8, "audio": 32, "text": 32}
BATCHES = {"images": 24, "audio": 40, "text": 32}
NOT_COUNTED = 4
LOCK_HELD = {"images": 0.16, "audio": 0.26, "text": 1.0}
TABLE = Path(__file__).with_suffix(".md")
Decode: TypeAlias = Callable[[Item], Any]
WAYS: dict[str, dict[str, Any]] = {
    "threads=1": {"threads": 1},
    "threads=2": {"threads": 2},
    "workers=2": {"workers": 2, "in_flight": 4},
}


def image(item: Item) -> Any:
    return decoders.image_tensor(item, size=(224, 224))


def audio(item: Item) -> Any:
    decoded = decoders.audio(item)
    assert decoded is not None
    return torch.from_numpy(decoded[0][0])


def tokens(item: Item) -> Any:
    numbers: dict[str, int] = {}
    found = []
    word = ""
    for letter in item.tobytes().decode():
        if letter == " ":
            found.append(numbers.setdefault(word, len(numbers)))
            word = ""
        else:
            word += letter
    return torch.tensor(found)


def joined(samples: list[Any]) -> Any:
    return torch.cat([sample.reshape(-1) for sample in samples])


def words(seed: int) -> bytes:
    draw, text = random.Random(seed), ""
    while len(text) < 16384:
        text += "".join(draw.choices("abcdefghij", k=draw.randrange(2, 9))) + " "
    return text.encode()


def contents() -> dict[str, tuple[Decode, list[bytes]]]:
    """Return the decoder and the objects of each kind."""
    return {
        "images": (image, [path.read_bytes() for path in sorted((DATA / "images").glob("*.jpg"))]),
        "audio": (audio, [path.read_bytes() for path in sorted((DATA / "speech").glob("*/*.flac"))]),
        "text": (tokens, [words(seed) for seed in range(64)]),
    }


def processor_s() -> float:
    """Return the processor time of this process and of those that have ended, in seconds."""
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def turn_of(loader: Iterable[Any], count: int, batch: int, costs: list[float]) -> Callable[[], float]:
    """A contestant: samples per second. Each turn adds the processor time of a sample to `costs`."""

    def run() -> float:
        before_s = processor_s()
        batches = iter(loader)
        for _ in range(NOT_COUNTED):
            next(batches)
        began_s = time.perf_counter()
        rate = sum(1 for _ in batches) * batch / (time.perf_counter() - began_s)
        costs.append((processor_s() - before_s) / count)
        return rate

    return run


@click.command(help=__doc__)
@click.option("--rounds", default=7, show_default=True)
@click.option("--write/--no-write", default=True, help=f"Write the table to {TABLE.name}.")
def main(rounds: int, write: bool) -> None:
    torch.set_num_threads(1)
    parts = []
    lines = [
        "| | lock held | threads=2 ÷ threads=1 | workers=2 ÷ threads=2 | time of threads | of workers | use |",
        "|---|---:|---:|---:|---:|---:|---|",
    ]
    with tempfile.TemporaryDirectory() as folder:
        for kind, (decode, objects) in contents().items():
            count = BATCH[kind] * BATCHES[kind]
            with ais_loader.connect(f"{folder}/{kind}") as client:
                client.create_bucket("b").put_many((f"{at:04}", objects[at % len(objects)]) for at in range(count))
            dataset = MapDataset(f"{folder}/{kind}", "ais://b/", decode)
            loaders = {
                way: BatchLoader(
                    dataset, ShufflePlan(count, BATCH[kind]), collate=joined, rank=0, world_size=1, **options
                )
                for way, options in WAYS.items()
            }
            costs: dict[str, list[float]] = {way: [] for way in WAYS}
            turns = {way: turn_of(loader, count, BATCH[kind], costs[way]) for way, loader in loaders.items()}
            turns["threads=2"]()  # caches
            rates = run_rounds(turns, rounds)
            parts.append(f"## {kind.capitalize()}\n\n" + rates_table(rates, "samples/s"))
            lines.append(f"| {kind} | {_row(kind, rates, costs)} |")
    setting = (
        f"{rounds} rounds of {', '.join(f'{n} batches of {BATCH[kind]} ({kind})' for kind, n in BATCHES.items())}."
    )
    text = page("Decoding by threads and by processes", __doc__, setting, "\n".join(lines), *parts)
    click.echo(text)
    conclude(text + "\n", TABLE if write else None, reached=True)


def _row(kind: str, rates: dict[str, list[float]], costs: dict[str, list[float]]) -> str:
    more = statistics.median(a / b for a, b in zip(rates["threads=2"], rates["threads=1"], strict=True))
    processes = statistics.median(a / b for a, b in zip(rates["workers=2"], rates["threads=2"], strict=True))
    threads_s, workers_s = (statistics.median(costs[way]) for way in ("threads=2", "workers=2"))
    return (
        f"{LOCK_HELD[kind]:.0%} | {more:.2f} | {processes:.2f} | {1e3 * threads_s:.1f} ms | {1e3 * workers_s:.1f} ms | "
        f"{'`threads`' if LOCK_HELD[kind] < 0.5 else '`workers`'}"
    )


if __name__ == "__main__":
    main()
