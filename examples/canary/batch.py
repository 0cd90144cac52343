"""Batch: cuts whose audio has come, to the tensors of a step.

Shapes: B utterances, T frames of 10 ms, F mel bands, L tokens, P tokens of a prompt. Features are Lhotse's, and so is
the reading of audio: a cut whose recording cannot be decoded raises here, in the words of Lhotse.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache

import torch
from lhotse import CutSet, Fbank, FbankConfig, MonoCut, Recording, SupervisionSegment
from lhotse.audio import AudioSource
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from examples.canary.corpus import BUCKET, Task
from examples.canary.prompts import Tokenizer

MEL_BANDS = 40


@dataclass(frozen=True, slots=True)
class CanaryBatch:
    """`frames` (B, T, F) float32 and `frame_counts` (B,); `tokens` and `targets` (B, L), the same but for the prompt,
    which is padding in `targets`; `prompts` (B, P). `ids` are those of the cuts, in order."""

    frames: Tensor
    frame_counts: Tensor
    tokens: Tensor
    targets: Tensor
    prompts: Tensor
    ids: tuple[str, ...]
    decode_s: float


def cut_of(task: Task) -> MonoCut:
    """The whole recording as a cut that names its audio by URL; nothing is read."""
    samples = round(task.duration * task.sampling_rate)
    recording = Recording(
        id=task.audio_filepath,
        sources=[AudioSource("url", [0], f"ais://{BUCKET}/{task.audio_filepath}")],
        sampling_rate=task.sampling_rate,
        num_samples=samples,
        duration=samples / task.sampling_rate,
    )
    said = SupervisionSegment(task.name, recording.id, 0.0, recording.duration, text=task.text)
    return MonoCut(
        task.name, 0.0, recording.duration, 0, supervisions=[said], recording=recording, custom={"task": asdict(task)}
    )


def cuts_of(tasks: Iterable[Task]) -> CutSet:
    """One cut a task, by name: `cut.id` is `task.name`."""
    return CutSet.from_cuts(map(cut_of, tasks))


@lru_cache(maxsize=4)
def filterbank(sampling_rate: int) -> Fbank:
    return Fbank(FbankConfig(sampling_rate=sampling_rate, num_mel_bins=MEL_BANDS, dither=0.0))


class Collate:
    """Cuts to a CanaryBatch, as a dataset in Lhotse's sense: `collate[cuts]`. Pickles; safe in several threads."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def __getitem__(self, cuts: CutSet) -> CanaryBatch:
        """Copies: nothing of the payloads is kept. Raises Lhotse's AudioLoadingError, which names the URL."""
        started = time.perf_counter()
        frames = [self.features(cut) for cut in cuts]
        tasks = [Task(**cut.custom["task"]) for cut in cuts]
        prompts = [self._tokenizer.prompt(task) for task in tasks]
        texts = [self._tokenizer.text(task.text) for task in tasks]
        return CanaryBatch(
            frames=pad_sequence(frames, batch_first=True),
            frame_counts=torch.tensor([len(of_one) for of_one in frames]),
            tokens=_padded([prompt + text for prompt, text in zip(prompts, texts, strict=True)]),
            targets=_padded([[0] * len(prompt) + text for prompt, text in zip(prompts, texts, strict=True)]),
            prompts=torch.tensor(prompts),
            ids=tuple(cut.id for cut in cuts),
            decode_s=time.perf_counter() - started,
        )

    @staticmethod
    def features(cut: MonoCut) -> Tensor:
        """(T, F) log mel energies, each band with mean 0 and variance 1 over the utterance."""
        audio = torch.from_numpy(cut.load_audio())
        energies: Tensor = filterbank(cut.sampling_rate).extract(audio, cut.sampling_rate)
        energies = torch.as_tensor(energies)
        return (energies - energies.mean(0)) / (energies.std(0) + 1e-3)


def _padded(rows: Sequence[Sequence[int]]) -> Tensor:
    return pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
