"""Ready decoders: what they make of stored bytes, by name and by extension, also in spawned workers."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import PIL.Image
import pytest
import soundfile
import torch
from torch.utils.data import DataLoader

from ais_loader import Client, Item, MapDataset, decoders
from ais_loader.testing import throwaway_store
from tests.table import table
from tests.tar_kit import packed_tar

PIXELS = np.arange(5 * 7 * 3, dtype=np.uint8).reshape(5, 7, 3)
RATE_HZ = 8000
SAMPLES = np.array([[0.0, 0.5], [-0.5, 0.25], [0.125, -1.0]], np.float32)  # 3 frames of 2 channels
ARRAY = np.arange(6, dtype=np.int16).reshape(2, 3)


def stored() -> dict[str, bytes]:
    png, wav, npy, pickled = io.BytesIO(), io.BytesIO(), io.BytesIO(), io.BytesIO()
    PIL.Image.fromarray(PIXELS).save(png, "PNG")
    soundfile.write(wav, SAMPLES, RATE_HZ, format="WAV", subtype="FLOAT")
    np.save(npy, ARRAY)
    np.save(pickled, np.array([{}], dtype=object))
    found = {"p.png": png, "s.wav": wav, "a.npy": npy, "pickled.npy": pickled}
    return {name: file.getvalue() for name, file in found.items()} | {
        "j.JSON": json.dumps({"größe": [1, 2]}).encode(),
        "t.txt": "größer\r\n".encode(),
        "raw.bin": b"\xff\x00",
        "none": b"none",
        "d.json/x": b"in a folder",
        "shard.tar": packed_tar({"m.json": b"[3]", "m": b"bytes"}),
    }


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with throwaway_store(stored(), bucket="b") as opened:
        yield opened


def decoded(client: Client, name: str, decode: Any) -> Any:
    return MapDataset(client, [f"ais://b/{name}"], decode)[0]


def test_a_picture_is_rgb_and_a_tensor_of_0_to_1(client: Client) -> None:
    picture = decoded(client, "p.png", decoders.image)
    assert (picture.mode, picture.size) == ("RGB", (7, 5))
    assert np.array_equal(np.asarray(picture), PIXELS)
    tensor = decoded(client, "p.png", decoders.image_tensor)
    assert (tensor.dtype, tuple(tensor.shape)) == (torch.float32, (3, 5, 7))
    assert torch.equal((tensor * 255).round().to(torch.uint8), torch.from_numpy(PIXELS.transpose(2, 0, 1).copy()))
    [item] = client.get_batch(["ais://b/p.png"])
    scaled = decoders.image_tensor(item, size=(2, 4))
    assert scaled is not None and tuple(scaled.shape) == (3, 2, 4)


def test_a_sound_has_its_channels_first_and_its_rate(client: Client) -> None:
    samples, rate_hz = decoded(client, "s.wav", decoders.audio)
    assert (samples.dtype, samples.shape, rate_hz) == (np.float32, (2, 3), RATE_HZ)
    assert np.array_equal(samples, SAMPLES.T)


def test_torchvision_takes_what_comes_of_a_picture(client: Client) -> None:
    torchvision = pytest.importorskip("torchvision")
    from torchvision.transforms import v2

    as_tensor = v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])
    picture, tensor = decoded(client, "p.png", decoders.image), decoded(client, "p.png", decoders.image_tensor)
    assert torch.allclose(as_tensor(picture), tensor)  # it multiplies by the reciprocal
    assert torch.equal(torchvision.transforms.ToTensor()(picture), tensor)
    assert tuple(v2.CenterCrop(3)(tensor).shape) == (3, 3, 3)
    [item] = client.get_batch(["ais://b/p.png"])
    bytes_of = torch.frombuffer(bytearray(item.data), dtype=torch.uint8)
    assert torch.equal(torchvision.io.decode_image(bytes_of), (tensor * 255).round().to(torch.uint8))


def test_torchaudio_takes_what_comes_of_a_sound(client: Client) -> None:
    try:
        import torchaudio
    except (ImportError, RuntimeError, OSError) as error:  # RuntimeError: it was built for another torch
        pytest.skip(f"no torchaudio: {error}")
    samples, rate_hz = decoded(client, "s.wav", decoders.audio)
    half = torchaudio.functional.resample(torch.from_numpy(samples), rate_hz, rate_hz // 2)
    assert (half.dtype, half.shape[0]) == (torch.float32, 2)
    pytest.importorskip("torchcodec", reason="torchaudio decodes by it")
    [item] = client.get_batch(["ais://b/s.wav"])
    loaded, loaded_hz = torchaudio.load(item.open())
    assert loaded_hz == rate_hz and np.allclose(loaded.numpy(), samples, atol=1e-4)


def test_arrays_json_and_text_are_as_they_were_written(client: Client) -> None:
    array = decoded(client, "a.npy", decoders.npy)
    assert array.dtype == ARRAY.dtype and np.array_equal(array, ARRAY)
    assert decoded(client, "j.JSON", decoders.json) == {"größe": [1, 2]}
    assert decoded(client, "t.txt", decoders.text) == "größer\r\n"


@table(
    ("name", "decode", "error"),
    [
        ("t.txt", decoders.image, OSError),
        ("t.txt", decoders.audio, RuntimeError),
        ("t.txt", decoders.npy, ValueError),
        ("pickled.npy", decoders.npy, ValueError),
        ("t.txt", decoders.json, ValueError),
        ("raw.bin", decoders.text, UnicodeDecodeError),
    ],
)
def test_what_is_something_else_is_an_error_with_the_object_s_name(
    client: Client, name: str, decode: Any, error: type[Exception]
) -> None:
    with pytest.raises(error) as caught:
        decoded(client, name, decode)
    assert f"ais://b/{name}" in caught.value.__notes__[0]


def test_the_extension_decides_and_what_has_none_is_bytes(client: Client) -> None:
    names = ["p.png", "a.npy", "j.JSON", "t.txt", "raw.bin", "none", "d.json/x", "shard.tar/m.json", "shard.tar/m"]
    found = MapDataset(client, [f"ais://b/{name}" for name in names], decoders.by_extension)[:]
    assert found[0].size == (7, 5)
    assert np.array_equal(found[1], ARRAY)
    assert found[2:] == [{"größe": [1, 2]}, "größer\r\n", b"\xff\x00", b"none", b"in a folder", [3], b"bytes"]


def test_of_what_failed_every_decoder_makes_none(client: Client) -> None:
    [item] = client.get_batch(["ais://b/gone.png"], on_error="placeholder")
    for name in decoders.__all__:
        decode = getattr(decoders, name)
        assert not callable(decode) or decode(item) is None, name


def label_and_text(item: Item) -> tuple[str, Any]:
    return item.entry.name.partition(".")[0], decoders.by_extension(item)


@pytest.mark.slow
def test_decoders_go_to_spawned_workers(client: Client) -> None:
    dataset = MapDataset(client.url, ["ais://b/t.txt", "ais://b/j.JSON"], label_and_text)
    loader = DataLoader(dataset, num_workers=1, batch_size=2, multiprocessing_context="spawn", collate_fn=list)
    assert list(loader) == [[("t", "größer\r\n"), ("j", {"größe": [1, 2]})]]
