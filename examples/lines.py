"""Lines of a text file in any order, each a byte range of one object: `python -m examples.lines FILE [--store URL]`.

The file is put once; where its lines begin is found by reading it once. A minibatch is then one request for as many
ranges, of the version that was read, so that nobody who replaces the file changes what is trained on. Without a store
it is a folder that is removed at the end.
"""

import argparse
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from torch.utils.data import DataLoader

import ais_loader
from ais_loader import Bucket, Entry, Item, MapDataset


def lines_of(bucket: Bucket, name: str) -> Iterator[Entry]:
    """Iterate over the entries of all lines, without their line ends."""
    with bucket.open(name) as file:
        start = 0
        for line in file:
            length = len(line.rstrip(b"\r\n"))
            yield Entry(bucket.name, name, start=start, length=length, version=file.info.version)
            start += len(line)


def decode(item: Item) -> str:
    return str(item.data, "utf-8")


def as_list(lines: list[str]) -> list[str]:
    return lines


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--store")
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--workers", type=int, default=0)
    chosen = parser.parse_args(arguments)
    with ExitStack() as held:
        url = chosen.store or held.enter_context(tempfile.TemporaryDirectory())
        with ais_loader.connect(url) as client:
            bucket = client.create_bucket("text", exist_ok=True)
            bucket.put(chosen.file.name, chosen.file)
            dataset = MapDataset(client, list(lines_of(bucket, chosen.file.name)), decode)
            loader = DataLoader(
                dataset, chosen.batch_size, shuffle=True, num_workers=chosen.workers, collate_fn=as_list
            )
            for step, batch in enumerate(loader):  # each is one request
                print(f"step {step}:", *batch, sep="\n  ")


if __name__ == "__main__":
    main()
