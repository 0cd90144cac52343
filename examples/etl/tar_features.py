"""A tar of recordings to one tar of their features: `client.etl.init("features", features_of, streaming=True)`.

Chunks come and go: of a shard of any size there is one recording in memory. What is no recording, a text or a label, is
passed on as it is; `a.flac` becomes `a.npy`, float32 of shape (frames, bands): the logarithm of energies in windows of
25 ms every 10 ms, in bands of equal width.
"""

import io
import tarfile
from collections.abc import Iterable, Iterator

import numpy as np
import soundfile

WINDOW_S, HOP_S = 0.025, 0.010


class Chunks(io.RawIOBase):
    """Chunks as a file to read from."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self.chunks, self.left = iter(chunks), b""

    def read(self, size: int = -1) -> bytes:
        while len(self.left) < size and (chunk := next(self.chunks, None)) is not None:
            self.left += bytes(chunk)
        made, self.left = self.left[:size], self.left[size:]
        return made


def features_of(chunks: Iterable[bytes], bands: int = 40) -> Iterator[bytes]:
    target = io.BytesIO()
    with tarfile.open(fileobj=Chunks(chunks), mode="r|") as samples, tarfile.open(fileobj=target, mode="w|") as made:
        for member in samples:
            file = samples.extractfile(member)
            if file is None:
                continue
            name, _, extension = member.name.rpartition(".")
            data = file.read()
            if extension in ("flac", "wav"):
                member.name, data = f"{name}.npy", features(data, bands)
            member.size = len(data)
            made.addfile(member, io.BytesIO(data))
            yield target.getvalue()  # as far as it has been written
            target.seek(0)
            target.truncate()
    yield target.getvalue()


def features(recording: bytes, bands: int) -> bytes:
    samples, rate = soundfile.read(io.BytesIO(recording), dtype="float32", always_2d=True)
    window, hop = int(WINDOW_S * rate), int(HOP_S * rate)
    padded = np.pad(samples.mean(axis=1), (0, max(0, window - len(samples))))
    frames = np.lib.stride_tricks.sliding_window_view(padded, window)[::hop] * np.hanning(window)
    energies = np.abs(np.fft.rfft(frames)) ** 2
    banded = [part.sum(axis=1) for part in np.array_split(energies, bands, axis=1)]
    made = io.BytesIO()
    np.save(made, np.log(np.stack(banded, axis=1) + 1e-10).astype(np.float32))
    return made.getvalue()
