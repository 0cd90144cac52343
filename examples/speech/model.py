"""A character model of about 0.36 million parameters: convolutions with residual connections, trained with CTC.

Without recurrence, so that a step takes some 60 ms on two CPU cores and a few hundred steps suffice.
Shapes: B utterances, T frames of 10 ms, F mel bands, S = ceil(T / 2) steps of 20 ms, W channels, C characters with
the blank. CTC as in Graves et al., "Connectionist Temporal Classification", ICML 2006.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from examples.speech.features import MEL_BANDS, Batch

BLANK = 0
STRIDE, KERNEL = 2, 5
DILATIONS = (1, 2, 4, 8)  # with the first layer, an output step sees 1.2 s of audio


class SpeechModel(nn.Module):
    """(B, T, F) features to (S, B, C) log probabilities. The padding of a batch does not change the result."""

    def __init__(self, characters: int, width: int = 128) -> None:
        super().__init__()
        half = KERNEL // 2
        self.convolve = nn.ModuleList(
            [
                nn.Conv1d(MEL_BANDS, width, KERNEL, stride=STRIDE, padding=half),
                *(nn.Conv1d(width, width, KERNEL, padding=half * d, dilation=d) for d in DILATIONS),
            ]
        )
        self.normalise = nn.ModuleList([nn.LayerNorm(width) for _ in self.convolve])
        self.classify = nn.Linear(width, characters)

    @staticmethod
    def step_counts(frame_counts: Tensor) -> Tensor:
        """How many steps of the output belong to each utterance: (B,) frames to (B,) steps."""
        return (frame_counts + STRIDE - 1) // STRIDE

    def forward(self, frames: Tensor, frame_counts: Tensor) -> Tensor:
        hidden = frames
        inside: Tensor | None = None  # (B, S, 1): 0 in the padding, kept at zero as the convolutions' own padding is
        for convolve, normalise in zip(self.convolve, self.normalise, strict=True):
            new = torch.relu(normalise(convolve(hidden.transpose(1, 2)).transpose(1, 2)))
            if inside is None:
                inside = (torch.arange(new.shape[1]) < self.step_counts(frame_counts)[:, None]).unsqueeze(-1)
                hidden = new * inside
            else:
                hidden = (hidden + new) * inside
        log_probabilities: Tensor = self.classify(hidden).log_softmax(-1).transpose(0, 1)
        return log_probabilities

    def loss(self, batch: Batch) -> Tensor:
        """CTC loss of the batch in nats per character, a scalar: the mean of each utterance's own mean."""
        loss: Tensor = nn.functional.ctc_loss(
            self(batch.frames, batch.frame_counts),
            batch.targets,
            self.step_counts(batch.frame_counts),
            batch.target_counts,
            blank=BLANK,
        )
        return loss

    @torch.inference_mode()
    def transcribe(self, batch: Batch) -> list[list[int]]:
        """Greedy decoding: the likeliest class of each step, repetitions merged, blanks dropped; one list each."""
        best = self(batch.frames, batch.frame_counts).argmax(-1).T
        counts = self.step_counts(batch.frame_counts)
        merged = [torch.unique_consecutive(row[:count]).tolist() for row, count in zip(best, counts, strict=True)]
        return [[number for number in row if number != BLANK] for row in merged]
