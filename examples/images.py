"""Images, cut and shuffled in minibatches of one request each: `python -m examples.images [FOLDER] [--store URL]`.

Without a folder the pictures are those of `tests/data/images`; without a store it is a folder, removed at the end.
"""

import argparse
import io
import tempfile
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import PIL.Image
import torch
from torch.utils.data import DataLoader

import ais_loader
from ais_loader import Entry, Item, MapDataset

PICTURES = Path(__file__).resolve().parents[1] / "tests" / "data" / "images"
SIDE = 96


def decode(item: Item) -> tuple[torch.Tensor, str]:
    """A picture as (3, SIDE, SIDE) floats of 0 to 1, and the name of its object."""
    with PIL.Image.open(io.BytesIO(item.data)) as picture:
        pixels = np.asarray(picture.convert("RGB").resize((SIDE, SIDE)))
    return torch.from_numpy(pixels.copy()).permute(2, 0, 1) / 255, item.entry.name


def tiles(path: Path, count: int) -> list[tuple[str, bytes]]:
    """A picture cut into count × count PNG files, by name."""
    found = []
    with PIL.Image.open(path) as picture:
        width, height = picture.width // count, picture.height // count
        for row in range(count):
            for column in range(count):
                target = io.BytesIO()
                corner = (column * width, row * height)
                picture.crop((*corner, corner[0] + width, corner[1] + height)).save(target, "PNG")
                found.append((f"{path.stem}/{row}-{column}.png", target.getvalue()))
    return found


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=PICTURES)
    parser.add_argument("--store")
    parser.add_argument("--workers", type=int, default=0)
    chosen = parser.parse_args(arguments)
    pictures = sorted(path for path in chosen.folder.iterdir() if path.suffix.lower() in (".jpg", ".jpeg", ".png"))
    if not pictures:
        parser.error(f"{chosen.folder} has no .jpg, .jpeg or .png")
    with ExitStack() as held:
        url = chosen.store or held.enter_context(tempfile.TemporaryDirectory())
        with ais_loader.connect(url) as client:
            bucket = client.create_bucket("pictures", exist_ok=True)
            put = bucket.put_many([tile for path in pictures for tile in tiles(path, 4)])
            dataset = MapDataset(client, [Entry("pictures", info.name) for info in put.infos], decode)
            loader = DataLoader(dataset, batch_size=8, shuffle=True, num_workers=chosen.workers)
            for step, (pixels, names) in enumerate(loader):  # each is one request
                red, green, blue = pixels.mean(dim=(0, 2, 3)).tolist()
                print(f"step {step}: {tuple(pixels.shape)}, mean {red:.2f} {green:.2f} {blue:.2f}, first {names[0]}")


if __name__ == "__main__":
    main()
