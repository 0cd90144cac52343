"""An encoder-decoder of about a million parameters: convolutions that halve time twice, and two transformers.

Shapes: B utterances, T frames of 10 ms, F mel bands, S = ceil(T / 4) steps of the encoder, L tokens, V symbols, W the
width.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from examples.canary.batch import MEL_BANDS, CanaryBatch

PAD = 0


def positions(length: int, width: int) -> Tensor:
    """(length, width) sines and cosines, as in Vaswani et al., "Attention Is All You Need", 2017."""
    place = torch.arange(length)[:, None]
    frequency = torch.exp(torch.arange(0, width, 2) * (-math.log(10_000.0) / width))
    return torch.stack([torch.sin(place * frequency), torch.cos(place * frequency)], dim=-1).flatten(1)


class CanaryModel(nn.Module):
    """Features and prompted tokens to scores of the next token. Padding changes nothing."""

    def __init__(self, symbols: int, width: int = 144, layers: int = 2) -> None:
        super().__init__()
        self.width = width
        self.halve = nn.ModuleList(
            [nn.Conv1d(MEL_BANDS, width, 5, stride=2, padding=2), nn.Conv1d(width, width, 5, stride=2, padding=2)]
        )
        shape = {"d_model": width, "nhead": 4, "dim_feedforward": 3 * width, "dropout": 0.1, "batch_first": True}
        self.encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(**shape, norm_first=True), layers, enable_nested_tensor=False
        )
        self.decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(**shape, norm_first=True), layers)
        self.embed = nn.Embedding(symbols, width, padding_idx=PAD)
        self.norm = nn.LayerNorm(width)
        self.score = nn.Linear(width, symbols)

    def encode(self, frames: Tensor, frame_counts: Tensor) -> tuple[Tensor, Tensor]:
        """(B, T, F) to (B, S, W), and (B, S) which is True in the padding."""
        hidden, counts = frames, frame_counts
        padding = torch.zeros(0)
        for convolve in self.halve:
            hidden = torch.relu(convolve(hidden.transpose(1, 2)).transpose(1, 2))
            counts = (counts + 1) // 2
            padding = torch.arange(hidden.shape[1]) >= counts[:, None]
            hidden = hidden.masked_fill(padding[..., None], 0.0)
        hidden = hidden + positions(hidden.shape[1], self.width)
        return self.encoder(hidden, src_key_padding_mask=padding), padding

    def decode(self, tokens: Tensor, memory: Tensor, memory_padding: Tensor) -> Tensor:
        """(B, L) tokens so far to (B, L, V) scores of the next one."""
        length = tokens.shape[1]
        hidden = self.embed(tokens) * math.sqrt(self.width) + positions(length, self.width)
        hidden = self.decoder(
            hidden,
            memory,
            tgt_mask=torch.ones(length, length, dtype=torch.bool).triu(1),
            tgt_key_padding_mask=tokens == PAD,
            memory_key_padding_mask=memory_padding,
        )
        scores: Tensor = self.score(self.norm(hidden))
        return scores

    def forward(self, batch: CanaryBatch) -> Tensor:
        """Cross-entropy in nats per token to be written, a scalar; tokens of the prompt are given, not learned."""
        memory, padding = self.encode(batch.frames, batch.frame_counts)
        scores = self.decode(batch.tokens[:, :-1], memory, padding)
        loss: Tensor = nn.functional.cross_entropy(scores.transpose(1, 2), batch.targets[:, 1:], ignore_index=PAD)
        return loss

    @torch.inference_mode()
    def write(self, batch: CanaryBatch, *, end: int, max_tokens: int = 160) -> list[list[int]]:
        """Greedy decoding after each utterance's prompt; B lists of numbers, each up to the end or to max_tokens."""
        memory, padding = self.encode(batch.frames, batch.frame_counts)
        tokens = batch.prompts
        ended = torch.zeros(len(tokens), dtype=torch.bool)
        for _ in range(max_tokens):
            best = self.decode(tokens, memory, padding)[:, -1].argmax(-1)
            tokens = torch.cat([tokens, best[:, None]], dim=1)
            ended |= best == end
            if bool(ended.all()):
                break
        return [row.tolist() for row in tokens[:, batch.prompts.shape[1] :]]
