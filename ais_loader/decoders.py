"""Decoders, each for `decode` of a dataset: what came of an item as a picture, a sound, an array, JSON or text.

Pictures are decoded by Pillow and sounds by libsndfile, on every machine alike; what comes of them is what the
transforms of torchvision (v2, and the older ones) and of torchaudio take. Their own decoders read an item, too:
`torchvision.io.decode_image(torch.frombuffer(bytearray(item.data), dtype=torch.uint8))` and
`torchaudio.load(item.open())`.

They are plain functions: they pickle for workers that are spawned, and may be called in one of your own, which adds the
label. Of an item that is not `ok`, which only on_error="placeholder" lets through, they make None.
"""

from __future__ import annotations

import json as _json
from collections.abc import Callable
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ais_loader.entry import Item
from ais_loader.extras import needs

if TYPE_CHECKING:
    import PIL.Image
    import torch

__all__ = ["audio", "by_extension", "image", "image_tensor", "json", "npy", "text"]


def image(item: Item) -> PIL.Image.Image | None:
    """A picture in any format that Pillow reads, as RGB, decoded; torchvision's transforms take it as it is.

    Raises PIL.UnidentifiedImageError (an OSError) for what is none, MissingExtra without Pillow.
    """
    with needs("PIL", "pictures"):
        import PIL.Image
    if not item.ok:
        return None
    with PIL.Image.open(item.open()) as picture:
        return picture.convert("RGB")


def image_tensor(item: Item, size: tuple[int, int] | None = None) -> torch.Tensor | None:
    """A picture as float32 of shape (3, height, width), 0 to 1; `size`: (height, width) to scale it to.

    Raises as `image`, and MissingExtra without torch.
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
    """A sound in any format that libsndfile reads: float32 of shape (channels, frames), -1 to 1, and its rate in Hz.

    Raises soundfile.LibsndfileError (a RuntimeError) for what is none, MissingExtra without soundfile.
    """
    with needs("soundfile", "sounds"):
        import soundfile
    if not item.ok:
        return None
    samples, rate_hz = soundfile.read(item.open(), dtype="float32", always_2d=True)
    return np.ascontiguousarray(samples.T), rate_hz


def npy(item: Item) -> npt.NDArray[Any] | None:
    """What numpy.save has written, with its shape and type. Raises ValueError for what is none, or holds pickles."""
    if not item.ok:
        return None
    array: npt.NDArray[Any] = np.lib.format.read_array(item.open(), allow_pickle=False)
    return array


def json(item: Item) -> Any:
    """JSON in UTF-8, -16 or -32. Raises ValueError for what is none."""
    return _json.loads(item.tobytes()) if item.ok else None


def text(item: Item) -> str | None:
    """UTF-8 as a str, line ends as they are. Raises UnicodeDecodeError."""
    return str(item.data, "utf-8") if item.ok else None


BY_EXTENSION: MappingProxyType[str, Callable[[Item], Any]] = MappingProxyType(
    dict.fromkeys((".jpg", ".jpeg", ".png", ".gif", ".bmp", ".webp", ".tif", ".tiff"), image)
    | dict.fromkeys((".wav", ".flac", ".ogg", ".mp3", ".aiff"), audio)
    | {".npy": npy, ".json": json, ".txt": text}
)
"""Which decoder `by_extension` takes, by the extension in lower case."""


def by_extension(item: Item) -> Any:
    """What the decoder of the extension makes of it, of the member's name where it is one; bytes for any other.

    `image` for .jpg .jpeg .png .gif .bmp .webp .tif .tiff, `audio` for .wav .flac .ogg .mp3 .aiff, `npy`, `json`, and
    `text` for .txt, in any case of letters. Raises what they raise.
    """
    name = (item.entry.member or item.entry.name).rpartition("/")[2]
    decoder = BY_EXTENSION.get("." + name.rpartition(".")[2].lower()) if "." in name else None
    if decoder is not None:
        return decoder(item)
    return item.tobytes() if item.ok else None
