"""Threads and processes of BatchLoader where decoding is most of the work: images, audio and text.

    python -m benchmarks.training.decoding            # writes the table beside this file

Images are JPEG photographs of 640 x 427 pixels, which Pillow decodes and resizes to 224 x 224. Audio is FLAC of some
seconds, which soundfile decodes. Text is 4 KiB of words, which a function of pure Python splits and numbers, as simple
tokenizers do. Each batch becomes an array. The store is embedded, so that reading takes almost no time, and all
contestants read the same batches, one after another in each round; workers are started anew in each. Pillow and
soundfile let go of Python's lock while they decode; pure Python holds it.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeAlias

import click
import numpy as np
import torch

import ais_loader
from ais_loader import BatchLoader, Item, MapDataset, ShufflePlan, decoders
from benchmarks.kit.harness import conclude, page, rates_table, run_rounds

DATA = Path(__file__).parents[2] / "tests" / "data"
BATCH, BATCHES = 16, 24
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
    while len(text) < 4096:
        text += "".join(draw.choices("abcdefghij", k=draw.randrange(2, 9))) + " "
    return text.encode()


def contents() -> dict[str, tuple[Decode, list[bytes]]]:
    """Return the decoder and the objects of each kind."""
    return {
        "images": (image, [path.read_bytes() for path in sorted((DATA / "images").glob("*.jpg"))]),
        "audio": (audio, [path.read_bytes() for path in sorted((DATA / "speech").glob("*/*.flac"))]),
        "text": (tokens, [words(seed) for seed in range(64)]),
    }


def rate_of(loader: Iterable[Any]) -> Callable[[], float]:
    def run() -> float:
        began_s = time.perf_counter()
        batches = sum(1 for _ in loader)
        return batches * BATCH / (time.perf_counter() - began_s)

    return run


@click.command(help=__doc__)
@click.option("--rounds", default=7, show_default=True)
@click.option("--write/--no-write", default=True, help=f"Write the table to {TABLE.name}.")
def main(rounds: int, write: bool) -> None:
    torch.set_num_threads(1)
    parts, lines = (
        [],
        ["| samples/s, ratios | threads=2 ÷ threads=1 | workers=2 ÷ threads=2 | use |", "|---|---:|---:|---|"],
    )
    with tempfile.TemporaryDirectory() as folder:
        for kind, (decode, objects) in contents().items():
            count = BATCH * BATCHES
            with ais_loader.connect(f"{folder}/{kind}") as client:
                client.create_bucket("b").put_many((f"{at:04}", objects[at % len(objects)]) for at in range(count))
            dataset = MapDataset(f"{folder}/{kind}", "ais://b/", decode)
            loaders = {
                way: BatchLoader(dataset, ShufflePlan(count, BATCH), collate=joined, rank=0, world_size=1, **options)
                for way, options in WAYS.items()
            }
            turns = {way: rate_of(loader) for way, loader in loaders.items()}
            turns["threads=2"]()  # caches
            rates = run_rounds(turns, rounds)
            parts.append(f"## {kind.capitalize()}\n\n" + rates_table(rates, "samples/s"))
            lines.append(f"| {kind} | {_advice(rates)} |")
    setting = f"{rounds} rounds of {BATCHES} batches of {BATCH} samples."
    text = page("Decoding by threads and by processes", __doc__, setting, "\n".join(lines), *parts)
    click.echo(text)
    conclude(text + "\n", TABLE if write else None, reached=True)


def _advice(rates: dict[str, list[float]]) -> str:
    more = np.median([a / b for a, b in zip(rates["threads=2"], rates["threads=1"], strict=True)])
    processes = np.median([a / b for a, b in zip(rates["workers=2"], rates["threads=2"], strict=True)])
    return f"**{more:.2f}** | **{processes:.2f}** | {'`workers`' if processes > 1.1 else '`threads`'}"


if __name__ == "__main__":
    main()
