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
import re
from collections.abc import Callable
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ais_loader.extras import needs
from ais_loader.file_formats import UTF_16
from ais_loader.values.entry import Item

if TYPE_CHECKING:
    import PIL.Image
    import torch

__all__ = ["audio", "by_extension", "example", "image", "image_tensor", "json", "npy", "pixels", "text"]

_CUT = re.compile(r"^ *(?:data|SSND|BODY|Data Size|riff|Riff size) *: (\d+) \(should be (\d+)\)$", re.MULTILINE)
"""Line of libsndfile's log for samples, or a file, of another size than the header says."""
_PADDING_BYTES = 8
_UNKNOWN_BYTES = 0x7FFFF000
"""Sizes from here on say that whoever wrote a stream did not know its size."""
_SIXTEEN_BITS = ("PNG", "PPM")
"""Formats whose 16-bit images Pillow may open as 32-bit integers."""
_VIA = {"La": "LA", "RGBa": "RGBA", "P": "RGBA"}
"""Modes that are converted to others first: premultiplied ones, and palettes, which may have transparency."""


def image(item: Item) -> PIL.Image.Image | None:
    """Decode an image in any format that Pillow reads, to RGB, and turn it upright by its EXIF orientation.
    torchvision's transforms accept the result as it is.

    Grey levels of 16 bits are scaled to 8, palettes become colours, and transparency is dropped. Only the first of
    several frames is decoded. Images of 32-bit integers or floats have no known range: use `pixels`, which also keeps
    the class numbers of masks.

    Raises PIL.UnidentifiedImageError (an OSError) if it is not an image, ValueError for one of 32-bit integers or
    floats, MissingExtra without Pillow.
    """
    with needs("PIL", "pictures"):
        import PIL.Image
    picture = _opened(item)
    if picture is None:
        return None
    mode = picture.mode
    if mode == "F" or (mode == "I" and picture.format not in _SIXTEEN_BITS):
        raise ValueError(f"an image of mode {mode!r} has no known range of values: decode it with decoders.pixels")
    if mode.startswith("I"):
        levels = np.asarray(picture, np.uint16)
        return PIL.Image.fromarray((levels // 257).astype(np.uint8)).convert("RGB")
    if mode in _VIA:
        picture = picture.convert(_VIA[mode])
    return picture.convert("RGB")


def pixels(item: Item) -> npt.NDArray[Any] | None:
    """Decode an image to its values as they are stored: masks, depth, 16-bit and float images.

    Returns an array of shape (height, width), or (height, width, bands) if there are several bands, upright by its EXIF
    orientation. It is bool for one bit, uint16 for 16 bits, int32 or float32 for 32, and otherwise uint8. The values of
    a palette image are the numbers of its colours. Only the first of several frames is decoded.

    Raises PIL.UnidentifiedImageError (an OSError) if it is not an image, MissingExtra without Pillow.
    """
    picture = _opened(item)
    if picture is None:
        return None
    values = np.array(picture)
    return values.astype(values.dtype.newbyteorder("="), copy=False)


def _opened(item: Item) -> PIL.Image.Image | None:
    """Return an image, upright, with its format. None for an item that is not `ok`."""
    with needs("PIL", "pictures"):
        import PIL.Image
        import PIL.ImageOps
    if not item.ok:
        return None
    picture = PIL.Image.open(item.open())
    picture.load()
    PIL.ImageOps.exif_transpose(picture, in_place=True)
    return picture


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

    Raises soundfile.LibsndfileError (a RuntimeError) if it is not audio, ValueError if it is truncated (an MP3 need
    not say how long it is), MissingExtra without soundfile.
    """
    with needs("soundfile", "sounds"):
        import soundfile
    if not item.ok:
        return None
    with soundfile.SoundFile(item.open()) as file:
        samples = file.read(dtype="float32", always_2d=True)
        is_short = len(samples) < file.frames and file.format != "MP3"  # whose length may be an estimate
        log = file.extra_info
        cut = _CUT.search(log)
        is_cut = cut is not None and int(cut[2]) + _PADDING_BYTES < int(cut[1]) < _UNKNOWN_BYTES
        is_unfinished = "File ended unexpectedly" in log or ("RIFF : 0\n" in log and not len(samples))
        if is_short or is_cut or is_unfinished:
            raise ValueError(f"truncated audio: {len(samples):,} frames came out, fewer than its header says")
        return np.ascontiguousarray(samples.T), file.samplerate


def npy(item: Item) -> npt.NDArray[Any] | None:
    """Decode an array that numpy.save has written, with its shape and type.

    Raises ValueError if it is not such an array alone, or contains pickles.
    """
    if not item.ok:
        return None
    file = item.open()
    array: npt.NDArray[Any] = np.lib.format.read_array(file, allow_pickle=False)
    if rest := len(file.read()):
        raise ValueError(f"{rest:,} bytes follow the array: is it several that were saved to one file?")
    return array


def json(item: Item) -> Any:
    """Decode JSON in UTF-8, -16 or -32. Raises ValueError if it is not JSON."""
    return _json.loads(item.tobytes()) if item.ok else None


def example(item: Item) -> dict[str, npt.NDArray[Any]] | None:
    """Decode a tf.train.Example, as records of TFRecord files often are.

    Returns an array of shape (n,) for each feature: float32, int64, or objects of type bytes. A feature without values
    has n = 0.

    Raises ValueError if it is no such message.
    """
    from google.protobuf.message import DecodeError

    from ais_loader.wire.generated.ais_formats_pb2 import Example

    if not item.ok:
        return None
    try:
        message = Example.FromString(item.tobytes())
    except DecodeError as error:
        raise ValueError(f"not a tf.train.Example: {error}") from None
    if item.data and not message.HasField("features"):  # almost any bytes are a message of other fields
        raise ValueError("not a tf.train.Example: it has no features")
    found: dict[str, npt.NDArray[Any]] = {}
    for name, feature in message.features.feature.items():
        if feature.HasField("float_list"):
            found[name] = np.array(feature.float_list.value, np.float32)
        elif feature.HasField("int64_list"):
            found[name] = np.array(feature.int64_list.value, np.int64)
        else:
            found[name] = np.array(list(feature.bytes_list.value), object)
    return found


def text(item: Item) -> str | None:
    """Decode UTF-8, or UTF-16 with a byte order mark, to a str without the mark. Line endings are kept as they are.

    Raises UnicodeDecodeError, also for a NUL character, which UTF-16 without a mark has, and files that are not text.
    """
    if not item.ok:
        return None
    decoded = str(item.data, "utf-16" if bytes(item.data[:2]) in UTF_16 else "utf-8-sig")
    if (at := decoded.find("\0")) >= 0:
        raise UnicodeDecodeError(
            "utf-8", item.tobytes(), at, at + 1, "a NUL character: not text, or UTF-16 without a mark"
        )
    return decoded


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
