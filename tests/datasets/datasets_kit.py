"""Helpers of the dataset tests: a corpus, decoders that pickle, and a transport that keeps a list of its requests."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ais_loader import ShufflePlan
from ais_loader.training.plan import entries_digest
from ais_loader.transport.embedded import EmbeddedTransport
from ais_loader.values.entry import Item
from ais_loader.wire.frame import FrameStream
from ais_loader.wire.generated import ais_batch_pb2 as pb

BUCKET = "speech"
DEADLINE_S = 180
_random = random.Random(20)
# Empty, small, and one that is larger than a frame, so that it arrives in pieces.
CORPUS = {f"en/{i:03d}.wav": _random.randbytes(_random.randrange(3000) if i else 0) for i in range(46)}
CORPUS["en/large.wav"] = _random.randbytes(2_500_000)
URLS = [f"ais://{BUCKET}/{name}" for name in CORPUS]


def contents(entries: Sequence[object]) -> list[bytes]:
    """The bytes that belong to these URLs."""
    return [CORPUS[str(entry).removeprefix(f"ais://{BUCKET}/")] for entry in entries]


@dataclass
class Recording:
    """A decoded sample that says where it was decoded."""

    name: str
    data: bytes
    pid: int


def decode_recording(item: Item) -> Recording:
    return Recording(item.entry.name, item.tobytes(), os.getpid())


def decode_badly(item: Item) -> bytes:
    raise ArithmeticError(f"no samples in {len(item.data)} bytes")


def collate_badly(samples: list[bytes]) -> bytes:
    raise BufferError(f"{len(samples)} samples do not fit")


def collate_joined(samples: list[bytes]) -> bytes:
    return b"".join(samples)


class DieOnce:
    """A decoder that kills its process, the first time only."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __call__(self, item: Item) -> bytes:
        if not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return item.tobytes()


class RecordingTransport(EmbeddedTransport):
    """An embedded transport that keeps the number of entries of every batch request, in order."""

    def __init__(self, path: str) -> None:
        super().__init__([path], mode="r")
        self.requests: list[int] = []

    def open_batch(self, request: pb.BatchRequest, *, timeout_s: float, **options: str) -> FrameStream:
        self.requests.append(len(request.name))
        return super().open_batch(request, timeout_s=timeout_s, **options)


class EntryPlan:
    """A plan that returns entries, as users write one of their own: without a group, and with a fingerprint."""

    def __init__(self, entries: Sequence[str], batch_size: int, *, seed: int = 0, shuffle: bool = True) -> None:
        self._entries = entries
        self._numbers = ShufflePlan(len(entries), batch_size, seed=seed, shuffle=shuffle)
        self.fingerprint = f"{self._numbers.fingerprint} {entries_digest(entries, None)}"

    def steps(self, epoch: int) -> int:
        steps = self._numbers.steps(epoch)
        assert steps is not None
        return steps

    def batch(self, epoch: int, step: int) -> list[str]:
        return [self._entries[at] for at in self._numbers.batch(epoch, step)]


class CountUp:
    """A plan without an end: batch s of epoch e holds the e-th, then s-th and following recordings."""

    def steps(self, epoch: int) -> int | None:
        return None

    def batch(self, epoch: int, step: int) -> list[str]:
        return [URLS[(epoch + step + at) % len(URLS)] for at in range(3)]
