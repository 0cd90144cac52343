"""One script on WebDataset, with and without a store: `python -m examples.webdataset_user [--store URL] SHARDS`.

    python -m examples.webdataset_user 'shards/train-{000..003}.tar'                       # files, as ever
    python -m examples.webdataset_user 'ais://b/train-{000..003}.tar' --store /data/store  # one line more
    python -m examples.webdataset_user 'ais://b/train-{000..003}.tar' --store /data/store --by-number

The training loop is the same in all three. By number each minibatch is drawn from all shards, by one request, where a
shuffle buffer only mixes neighbours; `spread` says from how far apart a minibatch's samples come.
"""

import argparse
from collections.abc import Iterator
from typing import Any

import webdataset as wds
from torch.utils.data import DataLoader

BATCH = 8


def sequential(shards: str) -> Any:
    dataset = wds.WebDataset(shards, shardshuffle=100).shuffle(4 * BATCH).decode().to_tuple("__key__", "txt")
    return wds.WebLoader(dataset.batched(BATCH), batch_size=None, num_workers=2)


def by_number(shards: str, store: str | None) -> Any:
    from ais_loader.integrations.webdataset import ShardSamples

    samples = ShardSamples(shards, store=store).decode().to_tuple("__key__", "txt")
    return DataLoader(samples, batch_size=BATCH, shuffle=True, num_workers=2)  # type: ignore[arg-type]


def train(batches: Iterator[tuple[list[str], list[str]]]) -> None:
    seen, keys = 0, set()
    for step, (names, texts) in enumerate(batches):
        spread = len({name[:3] for name in names})
        print(f"step {step}: {len(texts)} samples, spread {spread}, first {names[0]}: {texts[0]}")
        seen += len(texts)
        keys.update(names)
    print(f"{seen} samples, {len(keys)} different")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shards")
    parser.add_argument("--store")
    parser.add_argument("--by-number", action="store_true")
    chosen = parser.parse_args(arguments)
    if chosen.store:
        from ais_loader.integrations.webdataset import install

        install(chosen.store)  # the line
    train(by_number(chosen.shards, chosen.store) if chosen.by_number else sequential(chosen.shards))


if __name__ == "__main__":
    main()
