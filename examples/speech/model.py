"""A character model of about 0.28 million parameters: convolutions with residual connections, trained with CTC.

Without recurrence, and without padding: the utterances of a batch are one sequence, with zeros between them, so that a
step of four utterances takes some 10 ms on one CPU core, and a few hundred steps suffice.
Shapes: B utterances, T frames of 10 ms, F mel bands, S = ceil(T / 3) steps of 30 ms, W channels, C characters with
the blank. CTC as in Graves et al., "Connectionist Temporal Classification", ICML 2006.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from examples.speech.features import MEL_BANDS, Batch

BLANK = 0
STRIDE, KERNEL = 3, 5
DILATIONS = (2, 4, 8)  # an output step sees 1.7 s of audio
GAP = KERNEL // 2 * max(DILATIONS)
"""Steps between two utterances: no convolution reaches from one into the other."""
ROUND = 64
"""Each batch has a multiple of so many steps: oneDNN generates code for each new length, as long as a step takes."""


class SpeechModel(nn.Module):
    """(sum of T, F) features to (S, B, C) log probabilities. No utterance changes another's result."""

    def __init__(self, characters: int, width: int = 128) -> None:
        super().__init__()
        half = KERNEL // 2
        self.convolve = nn.ModuleList(
            [
                nn.Conv2d(MEL_BANDS, width, (1, KERNEL), stride=(1, STRIDE), padding=(0, half)),
                *(nn.Conv2d(width, width, (1, KERNEL), padding=(0, half * d), dilation=(1, d)) for d in DILATIONS),
            ]
        ).to(memory_format=torch.channels_last)
        self.normalise = nn.ModuleList([nn.LayerNorm(width) for _ in self.convolve])
        self.classify = nn.Linear(width, characters)

    @staticmethod
    def step_counts(frame_counts: Tensor) -> Tensor:
        """How many steps of the output belong to each utterance: (B,) frames to (B,) steps."""
        return (frame_counts + STRIDE - 1) // STRIDE

    def forward(self, frames: Tensor, frame_counts: Tensor) -> Tensor:
        steps = self.step_counts(frame_counts).tolist()
        places = [step + GAP for step in steps]
        places[-1] += -sum(places) % ROUND
        parts = zip(frames.split(frame_counts.tolist()), places, strict=True)
        hidden = torch.cat([pad(part, (0, 0, 0, place * STRIDE - len(part))) for part, place in parts])
        # (sum of places, 1): 0 between utterances, which is kept at zero as the convolutions' own padding is
        inside = torch.cat(
            [pad(torch.ones(step, 1), (0, 0, 0, place - step)) for step, place in zip(steps, places, strict=True)]
        )
        for number, (convolve, normalise) in enumerate(zip(self.convolve, self.normalise, strict=True)):
            # A view of a picture of one line in the format channels_last, and back: nothing is copied.
            new = torch.relu(normalise(convolve(hidden.T[None, :, None])[0, :, 0].T))
            hidden = (hidden + new if number else new) * inside
        log_probabilities = self.classify(hidden).log_softmax(-1).split(places)
        return nn.utils.rnn.pad_sequence([part[:step] for part, step in zip(log_probabilities, steps, strict=True)])

    def loss(self, batch: Batch) -> Tensor:
        """CTC loss of the batch in nats per character, a scalar: the mean of each utterance's own mean."""
        loss: Tensor = nn.functional.ctc_loss(
            self(batch.frames, batch.frame_counts),
            batch.targets,
            self.step_counts(batch.frame_counts),
            batch.target_counts,
            blank=BLANK,
            zero_infinity=True,  # an utterance with more characters than steps teaches nothing
        )
        return loss

    @torch.inference_mode()
    def transcribe(self, batch: Batch) -> list[list[int]]:
        """Greedy decoding: the likeliest class of each step, repetitions merged, blanks dropped; one list each."""
        best = self(batch.frames, batch.frame_counts).argmax(-1).T
        counts = self.step_counts(batch.frame_counts)
        merged = [torch.unique_consecutive(row[:count]).tolist() for row, count in zip(best, counts, strict=True)]
        return [[number for number in row if number != BLANK] for row in merged]
