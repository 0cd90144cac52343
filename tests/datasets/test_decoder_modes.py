"""Every mode of Pillow and every decoder: what comes out. Containers whose promise is not kept are refused."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import PIL.Image
import pytest
import soundfile
import torch

from ais_loader import Entry, Item, Status, decoders
from tests.table import table

HALF = 0.5
"""The mean of every picture here, of full scale."""
GREYS = {"1": "bool", "L": "uint8", "I;16": "uint16", "I;16B": "uint16", "I;16L": "uint16", "I;16N": "uint16"}
BANDS = {
    "LA": 2,
    "La": 2,
    "PA": 2,
    "RGB": 3,
    "HSV": 3,
    "YCbCr": 3,
    "LAB": 3,
    "RGBA": 4,
    "RGBa": 4,
    "RGBX": 4,
    "CMYK": 4,
}
REFUSED = {"I": "int32", "F": "float32"}
"""Modes without a known range, and the type of their pixels."""
DECODERS: dict[str, Callable[[Item], Any]] = {name: getattr(decoders, name) for name in decoders.__all__}


def item_of(data: bytes, name: str = "x.png") -> Item:
    return Item(0, Entry("b", name), Status.OK, memoryview(data), None)


def gradient(mode: str) -> PIL.Image.Image:
    """A picture of 256 x 2 pixels, from the least value of a mode to its greatest."""
    ramp = np.tile(np.arange(256, dtype=np.uint8), (2, 1))
    if mode in GREYS and GREYS[mode] == "uint16":
        # `fromarray` knows the order of the bytes, and the machine's own has two names.
        order = ">u2" if mode == "I;16B" else "<u2"
        return PIL.Image.frombytes(mode, (256, 2), (ramp.astype(np.uint16) * 257).astype(order).tobytes())
    if mode in REFUSED:
        return PIL.Image.fromarray(ramp.astype(REFUSED[mode]))
    if mode == "1":
        return PIL.Image.fromarray(ramp >= 128)
    if mode == "P":
        picture = PIL.Image.fromarray(ramp, "L").convert("P")
        picture.putpalette([channel for level in range(256) for channel in (255 - level, level, 7)])
        return picture
    if mode in ("La", "RGBa"):
        return gradient(mode.upper()).convert(mode)
    return PIL.Image.fromarray(ramp, "L").convert("RGB" if mode != "PA" else "P").convert(mode)


@pytest.fixture
def any_mode() -> Iterator[None]:
    """A format of pictures that is the name of a mode: few formats can hold the rarer ones."""
    PIL.Image.init()
    PIL.Image.register_open("ANY", lambda file, _: gradient(file.read()[4:].decode()), lambda head: head[:4] == b"ANY!")  # type: ignore[arg-type,return-value]
    PIL.Image.ID.remove("ANY")
    PIL.Image.ID.insert(0, "ANY")
    yield
    PIL.Image.ID.remove("ANY")
    del PIL.Image.OPEN["ANY"]


def what_comes_out(decode: Callable[[Item], Any], item: Item) -> str:
    """Return the outcome in words: its type and shape, or the type of the error."""
    try:
        found = decode(item)
    except (ValueError, RuntimeError, OSError) as error:
        return type(error).__name__
    if isinstance(found, PIL.Image.Image):
        return f"{found.mode} {(found.height, found.width)}"
    if isinstance(found, (np.ndarray, torch.Tensor)):
        return f"{found.dtype} {tuple(found.shape)}"
    return type(found).__name__


@table("mode", PIL.Image.MODES)
def test_every_mode_of_pillow_comes_out_of_every_decoder_as_documented(any_mode: None, mode: str) -> None:
    item = item_of(b"ANY!" + mode.encode())
    is_refused = mode in REFUSED
    bands = f"uint8 (2, 256, {BANDS[mode]})" if mode in BANDS else f"{GREYS.get(mode, 'uint8')} (2, 256)"
    assert {name: what_comes_out(decode, item) for name, decode in DECODERS.items()} == {
        "audio": "LibsndfileError",
        "by_extension": "ValueError" if is_refused else "RGB (2, 256)",
        "example": "ValueError",
        "image": "ValueError" if is_refused else "RGB (2, 256)",
        "image_tensor": "ValueError" if is_refused else "torch.float32 (3, 2, 256)",
        "json": "JSONDecodeError",
        "npy": "ValueError",
        "pixels": f"{REFUSED[mode]} (2, 256)" if is_refused else bands,
        "text": "str",
    }
    if is_refused:
        with pytest.raises(ValueError, match=rf"mode '{mode}' has no known range.*decoders\.pixels"):
            decoders.image(item)
    else:
        picture = np.asarray(decoders.image(item), float)
        assert len(np.unique(picture)) > 100 or mode == "1", "levels are lost"
        assert picture[..., :2].mean() / 255 == pytest.approx(HALF, abs=0.02)


@table("kind", ["PNG", "TIFF", "PPM"])
def test_a_picture_of_16_bits_keeps_its_levels(kind: str) -> None:
    file = io.BytesIO()
    gradient("I;16").save(file, kind)
    item = item_of(file.getvalue())
    assert np.array_equal(np.asarray(decoders.image(item))[0, :, 0], np.arange(256))
    stored = decoders.pixels(item)
    assert stored is not None and np.array_equal(stored[0], np.arange(256) * 257)
    tensor = decoders.image_tensor(item)
    assert tensor is not None and float(tensor.mean()) == pytest.approx(HALF)


def test_a_mask_keeps_its_class_numbers_as_pixels_and_its_colours_as_an_image() -> None:
    mask = PIL.Image.fromarray(np.array([[0, 1], [2, 255]], np.uint8), "P")
    mask.putpalette([128, 0, 0] * 256)
    file = io.BytesIO()
    mask.save(file, "PNG", transparency=bytes([0, 255, 255]))
    item = item_of(file.getvalue())
    numbers = decoders.pixels(item)
    assert numbers is not None and numbers.tolist() == [[0, 1], [2, 255]]
    picture = decoders.image(item)
    assert picture is not None and picture.getpixel((0, 0)) == (128, 0, 0)


@table("orientation", range(1, 9))
def test_a_photo_is_upright(orientation: int) -> None:
    upright = PIL.Image.fromarray(np.arange(2 * 3, dtype=np.uint8).reshape(2, 3) * 40)
    turn = PIL.Image.Transpose
    stored_as = {
        2: turn.FLIP_LEFT_RIGHT,
        3: turn.ROTATE_180,
        4: turn.FLIP_TOP_BOTTOM,
        5: turn.TRANSPOSE,
        6: turn.ROTATE_90,
        7: turn.TRANSVERSE,
        8: turn.ROTATE_270,
    }
    stored = upright if orientation == 1 else upright.transpose(stored_as[orientation])
    exif = PIL.Image.Exif()
    exif[0x0112] = orientation
    file = io.BytesIO()
    stored.save(file, "PNG", exif=exif)
    item = item_of(file.getvalue())
    pixels, picture = decoders.pixels(item), decoders.image(item)
    assert pixels is not None and np.array_equal(pixels, np.asarray(upright))
    assert picture is not None and np.array_equal(np.asarray(picture)[..., 0], np.asarray(upright))


def sound(kind: str, frames: int = 16_000) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, np.random.default_rng(1).normal(size=frames) / 10, 16_000, format=kind)
    return file.getvalue()


@table("kind", ["WAV", "WAVEX", "RF64", "W64", "AIFF", "AU", "CAF", "FLAC", "OGG"])
def test_a_sound_with_fewer_frames_than_promised_is_refused(kind: str) -> None:
    data = sound(kind)
    whole = decoders.audio(item_of(data))
    assert whole is not None and whole[0].shape == (1, 16_000)
    with pytest.raises((ValueError, soundfile.LibsndfileError)):
        decoders.audio(item_of(data[: len(data) // 2]))


@table("kind", ["WAV", "AIFF", "OGG"])
def test_a_sound_without_frames_that_promises_none_is_empty(kind: str) -> None:
    found = decoders.audio(item_of(sound(kind, 0)))
    assert found is not None and found[0].shape == (1, 0)


def test_a_stream_whose_length_nobody_knew_is_read_to_its_end_and_one_never_finished_is_refused() -> None:
    data = sound("WAV")
    for unknown in (0xFFFFFFFF, 0x7FFFFFFF):
        size = struct.pack("<L", unknown)
        found = decoders.audio(item_of(data[:4] + size + data[8:40] + size + data[44:]))
        assert found is not None and found[0].shape == (1, 16_000)
    with pytest.raises(ValueError, match="truncated audio: 0 frames"):
        decoders.audio(item_of(data[:4] + bytes(4) + data[8:40] + bytes(4) + data[44:]))


def test_text_has_its_characters_without_a_byte_order_mark() -> None:
    line = "größer\r\n"
    for encoding in ("utf-8", "utf-8-sig", "utf-16"):
        assert decoders.text(item_of(line.encode(encoding))) == line, encoding
        assert decoders.json(item_of(json.dumps(line).encode(encoding))) == line, encoding
    for encoding in ("utf-16-le", "utf-16-be", "utf-32"):
        with pytest.raises(UnicodeDecodeError):
            decoders.text(item_of("plain\n".encode(encoding)))


def test_an_array_that_is_followed_by_another_is_refused() -> None:
    file = io.BytesIO()
    np.save(file, np.arange(3))
    np.save(file, np.arange(3))
    with pytest.raises(ValueError, match="152 bytes follow the array"):
        decoders.npy(item_of(file.getvalue()))
