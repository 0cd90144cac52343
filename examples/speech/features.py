"""Feature extraction: from the bytes of a recording to a batch for the model.

Shapes: N samples of audio, T frames of 10 ms, F mel bands, B utterances, L characters. The time spent here travels
with the batch, because with DataLoader workers it is spent in another process, while the trainer computes.
"""

from __future__ import annotations

import io
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import soundfile
import torch
from torch import Tensor

SAMPLING_RATE_HZ = 8_000
WINDOW, HOP, FFT, MEL_BANDS = 200, 80, 256, 40  # 25 ms windows every 10 ms


@dataclass(frozen=True, slots=True)
class Sample:
    """One utterance: `frames` (T, F) float32, `target` (L,) int64, and the seconds that decoding took."""

    frames: Tensor
    target: Tensor
    decode_s: float


@dataclass(frozen=True, slots=True)
class Batch:
    """`frames` (sum of T, F) and `targets` (sum of L,): those of all utterances, end to end. Counts: (B,) int64."""

    frames: Tensor
    frame_counts: Tensor
    targets: Tensor
    target_counts: Tensor
    decode_s: float


@lru_cache(maxsize=1)
def mel_filters() -> Tensor:
    """(FFT // 2 + 1, F): triangles spaced evenly on the mel scale (2595 log10(1 + f / 700)) from 60 Hz to Nyquist."""

    def mel(hz: float) -> float:
        return 2595.0 * math.log10(1.0 + hz / 700.0)

    edges_mel = torch.linspace(mel(60.0), mel(SAMPLING_RATE_HZ / 2), MEL_BANDS + 2)
    edges_hz = 700.0 * (10.0 ** (edges_mel / 2595.0) - 1.0)
    bins_hz = torch.linspace(0.0, SAMPLING_RATE_HZ / 2, FFT // 2 + 1)[:, None]
    rising = (bins_hz - edges_hz[:-2]) / (edges_hz[1:-1] - edges_hz[:-2])
    falling = (edges_hz[2:] - bins_hz) / (edges_hz[2:] - edges_hz[1:-1])
    return torch.minimum(rising, falling).clamp(min=0.0)


@lru_cache(maxsize=1)
def window() -> Tensor:
    return torch.hann_window(WINDOW)


def log_mel(audio: Tensor) -> Tensor:
    """(N,) audio in [-1, 1] to (T, F) log mel energies, each band with mean 0 and variance 1 over the utterance."""
    spectrum = torch.stft(audio, FFT, HOP, WINDOW, window(), center=True, return_complex=True)
    energies = torch.log(torch.view_as_real(spectrum).square().sum(-1).T @ mel_filters() + 1e-6)
    return (energies - energies.mean(0)) / (energies.std(0) + 1e-3)


def decode_audio(data: bytes | memoryview) -> Tensor:
    """The bytes of an audio file of 8 kHz and one channel to (N,) float32.

    Raises:
        ValueError: another rate, several channels, or less audio than one window.
        soundfile.LibsndfileError: not an audio file.
    """
    audio, rate_hz = soundfile.read(io.BytesIO(data), dtype="float32")
    if rate_hz != SAMPLING_RATE_HZ or audio.ndim != 1:
        raise ValueError(f"need {SAMPLING_RATE_HZ} Hz mono, got {rate_hz} Hz with shape {audio.shape}")
    if len(audio) < WINDOW:
        raise ValueError(f"no audio to learn from: {len(audio)} samples, a window has {WINDOW}")
    return torch.from_numpy(audio)


def make_sample(data: bytes | memoryview, target: Sequence[int]) -> Sample:
    """Decode one recording and compute its features. Copies: nothing of `data` is kept."""
    started = time.perf_counter()
    frames = log_mel(decode_audio(data))
    return Sample(frames, torch.tensor(target, dtype=torch.int64), time.perf_counter() - started)


def collate(samples: Sequence[Sample]) -> Batch:
    """Join the utterances of a batch."""
    started = time.perf_counter()
    frames = torch.cat([sample.frames for sample in samples])
    frame_counts = torch.tensor([len(sample.frames) for sample in samples])
    targets = torch.cat([sample.target for sample in samples])
    target_counts = torch.tensor([len(sample.target) for sample in samples])
    decode_s = sum(sample.decode_s for sample in samples) + time.perf_counter() - started
    return Batch(frames, frame_counts, targets, target_counts, decode_s)
