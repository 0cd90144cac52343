"""Real recordings and photographs for tests, and where to find them.

100 transcribed utterances in five languages (8 kHz FLAC), two JPEG photographs, and one WAV file that holds no sample
at all. Where they come from and under which licences: README.md here. Nothing in this module needs a decoder.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

DATA_DIR = Path(__file__).resolve().parent
SPEECH_DIR = DATA_DIR / "speech"
IMAGES = (DATA_DIR / "images" / "china.jpg", DATA_DIR / "images" / "flower.jpg")
EMPTY_WAV = SPEECH_DIR / "empty.wav"
"""A valid 44-byte WAV header with no samples after it, as its publisher ships it."""


@dataclass(frozen=True, slots=True)
class Utterance:
    """One row of speech/manifest.jsonl. `key` names the prompt: the same key in two languages is a translation."""

    name: str
    lang: str
    key: str
    text: str
    duration_s: float
    sampling_rate_hz: int
    sha256: str

    @property
    def path(self) -> Path:
        return SPEECH_DIR / self.name


def utterances() -> list[Utterance]:
    """All utterances in the manifest's order: by language, then by key."""
    lines = (SPEECH_DIR / "manifest.jsonl").read_text(encoding="utf-8").splitlines()
    return [Utterance(**json.loads(line)) for line in lines]
