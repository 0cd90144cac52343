"""Decoders, to pass as a dataset's `decode`. Each turns an item into an image, audio, an array, JSON or text.

Images are decoded by Pillow, and audio by libsndfile, in the same way on every machine. The transforms of torchvision
(v2, and the older ones) and of torchaudio accept the results. You can also decode an item with torchvision's or
torchaudio's own decoders: `torchvision.io.decode_image(torch.frombuffer(bytearray(item.data), dtype=torch.uint8))` and
`torchaudio.load(item.open())`.

Decoders are plain functions: they can be pickled for spawned workers, and you can call them in a function of your own,
for example to add a label. For an item that is not `ok`, which only on_error="placeholder" delivers, they return None.
"""

from __future__ import annotations

import json as _json
from collections.abc import Callable
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ais_loader.extras import needs
from ais_loader.values.entry import Item

if TYPE_CHECKING:
    import PIL.Image
    import torch

__all__ = ["audio", "by_extension", "image", "image_tensor", "json", "npy", "text"]


def image(item: Item) -> PIL.Image.Image | None:
    """Decode an image in any format that Pillow reads, to RGB. torchvision's transforms accept the result as it is.

    Raises PIL.UnidentifiedImageError (an OSError) if it is not an image, MissingExtra without Pillow.
    """
    with needs("PIL", "pictures"):
        import PIL.Image
    if not item.ok:
        return None
    with PIL.Image.open(item.open()) as picture:
        return picture.convert("RGB")


def image_tensor(item: Item, size: tuple[int, int] | None = None) -> torch.Tensor | None:
    """Decode an image to a float32 tensor of shape (3, height, width) with values from 0 to 1.

    With `size`, a pair (height, width), the image is scaled to that size. Raises the errors of `image`, and
    MissingExtra without torch.
    """
    with needs("torch", "tensors"):
        import torch
    picture = image(item)
    if picture is None:
        return None
    if size is not None:
        picture = picture.resize((size[1], size[0]))
    pixels = np.asarray(picture, np.float32) / 255
    return torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))


def audio(item: Item) -> tuple[npt.NDArray[np.float32], int] | None:
    """Decode audio in any format that libsndfile reads.

    Returns float32 samples of shape (channels, frames), from -1 to 1, and the sample rate in Hz.

    Raises soundfile.LibsndfileError (a RuntimeError) if it is not audio, MissingExtra without soundfile.
    """
    with needs("soundfile", "sounds"):
        import soundfile
    if not item.ok:
        return None
    samples, rate_hz = soundfile.read(item.open(), dtype="float32", always_2d=True)
    return np.ascontiguousarray(samples.T), rate_hz


def npy(item: Item) -> npt.NDArray[Any] | None:
    """Decode an array that numpy.save has written, with its shape and type.

    Raises ValueError if it is not such an array, or contains pickles.
    """
    if not item.ok:
        return None
    array: npt.NDArray[Any] = np.lib.format.read_array(item.open(), allow_pickle=False)
    return array


def json(item: Item) -> Any:
    """Decode JSON in UTF-8, -16 or -32. Raises ValueError if it is not JSON."""
    return _json.loads(item.tobytes()) if item.ok else None


def text(item: Item) -> str | None:
    """Decode UTF-8 to a str, keeping line endings as they are. Raises UnicodeDecodeError."""
    return str(item.data, "utf-8") if item.ok else None


BY_EXTENSION: MappingProxyType[str, Callable[[Item], Any]] = MappingProxyType(
    dict.fromkeys((".jpg", ".jpeg", ".png", ".gif", ".bmp", ".webp", ".tif", ".tiff"), image)
    | dict.fromkeys((".wav", ".flac", ".ogg", ".mp3", ".aiff"), audio)
    | {".npy": npy, ".json": json, ".txt": text}
)
"""Decoders of `by_extension`, by the extension in lower case."""


def by_extension(item: Item) -> Any:
    """Decode an item according to the extension of its name, or of the member's name for a member.

    Uses `image` for .jpg .jpeg .png .gif .bmp .webp .tif .tiff, `audio` for .wav .flac .ogg .mp3 .aiff, `npy`, `json`,
    and `text` for .txt, in upper or lower case. Any other item is returned as bytes. Raises the errors of these
    decoders.
    """
    name = (item.entry.member or item.entry.name).rpartition("/")[2]
    decoder = BY_EXTENSION.get("." + name.rpartition(".")[2].lower()) if "." in name else None
    if decoder is not None:
        return decoder(item)
    return item.tobytes() if item.ok else None
