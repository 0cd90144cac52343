"""Audio headers: reads the sampling rate and length of recordings from the first bytes of each, many per GetBatch.

A container whose first bytes do not state its length (Ogg, MP3) is fetched whole, together with others like it.
"""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ais_loader import Client, Entry, LoaderError
from ais_loader.extras import needs
from ais_loader.wire.sparse_file import SparseFile

HEADER_BYTES = 16 << 10
"""libsndfile reads 8 KiB of FLAC at once."""
_WHOLE_BATCH_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class AudioHeader:
    rate_hz: int
    samples: int
    """The number of samples in each channel."""

    @property
    def duration_s(self) -> float:
        return self.samples / self.rate_hz


class NoAudio(Exception):
    """Bytes that libsndfile cannot read. The text is its reason."""


@dataclass(frozen=True, slots=True)
class Sized:
    """An entry to fetch, and its size."""

    entry: Entry
    size_bytes: int


HeaderAnswer = AudioHeader | NoAudio | LoaderError


def audio_headers(client: Client, wanted: Sequence[Sized]) -> list[HeaderAnswer]:
    """Return the header of each, in order, or why there is none. Raises the errors of an entire `Client.get_batch`."""
    heads = [replace(one.entry, length=min(one.size_bytes, HEADER_BYTES)) for one in wanted]
    answers: list[HeaderAnswer | None] = []
    for one, item in zip(wanted, client.get_batch(heads, on_error="placeholder"), strict=True):
        answers.append(item.error or _header(item.tobytes(), one.size_bytes))
    rest = [n for n, answer in enumerate(answers) if answer is None]
    for part in _bounded(rest, [wanted[n].size_bytes for n in rest]):
        whole = client.get_batch([wanted[n].entry for n in part], on_error="placeholder")
        for n, item in zip(part, whole, strict=True):
            answers[n] = item.error or _header(item.tobytes(), wanted[n].size_bytes)
    return [answer if answer is not None else NoAudio("its length cannot be told") for answer in answers]


def _bounded(numbers: list[int], sizes: list[int]) -> list[list[int]]:
    """Divide into groups of at most _WHOLE_BATCH_BYTES, or of a single one."""
    groups: list[list[int]] = []
    held = math.inf
    for number, size in zip(numbers, sizes, strict=True):
        if held + size > _WHOLE_BATCH_BYTES:
            groups.append([])
            held = 0
        groups[-1].append(number)
        held += size
    return groups


def _header(data: bytes, size_bytes: int) -> HeaderAnswer | None:
    """Return the header, or None if more than `data`, the first bytes, is needed."""
    with needs("soundfile", "reading audio headers"):
        import soundfile
    head = _FileHead(size_bytes, [(0, data)])
    try:
        info = soundfile.info(head)
    except soundfile.LibsndfileError as error:
        return None if head.missed else NoAudio(str(error.error_string))
    return None if head.missed else AudioHeader(info.samplerate, info.frames)


class _FileHead(SparseFile):
    """A file of which only the beginning is available. It ends there, and records whether more was requested."""

    missed = False

    def readinto(self, target: Any) -> int:
        before = self.tell()
        with contextlib.suppress(io.UnsupportedOperation):
            return super().readinto(target)
        self.missed = True
        return self.tell() - before
