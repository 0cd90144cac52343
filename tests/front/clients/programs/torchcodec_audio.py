"""TorchCodec: audio decoded from an open object, whole, and its beginning."""

import os
from pathlib import Path

import torch
from torchcodec.decoders import AudioDecoder

import ais_loader

PACKAGES = ("torchcodec",)


def work(source: object) -> list[torch.Tensor]:
    decoder = AudioDecoder(source)
    part = decoder.get_samples_played_in_range(0.0, 0.5)
    return [decoder.get_all_samples().data, part.data]


with ais_loader.connect(mode="r") as client:
    for path in sorted(Path(os.environ["SPEECH"]).rglob("*.flac"))[:10]:
        with client.open(f"ais://speech/{path.relative_to(os.environ['SPEECH'])}") as file:  # change
            assert all(map(torch.equal, work(file), work(str(path))))
