"""PyAV: audio decoded from an open object."""

import os
from pathlib import Path
from typing import Any

import av
import numpy as np

import ais_loader

PACKAGES = ("av",)


def work(source: Any) -> np.ndarray:
    with av.open(source) as container:
        return np.concatenate([frame.to_ndarray() for frame in container.decode(audio=0)], axis=1)


with ais_loader.connect(mode="r") as client:
    for path in sorted(Path(os.environ["SPEECH"]).rglob("*.flac"))[:10]:
        with client.open(f"ais://speech/{path.relative_to(os.environ['SPEECH'])}") as file:  # change
            assert np.array_equal(work(file), work(str(path)))
