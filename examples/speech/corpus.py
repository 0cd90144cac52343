"""Training corpus: the utterances, and the characters that the model writes.

The corpus is a folder with `manifest.jsonl` and the audio files it names (see tests/data/README.md). The transcripts
are those of the recordings' publisher; `spoken_text` reduces them to what can be heard.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


class CorpusError(Exception):
    """The corpus is missing or incomplete; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Utterance:
    """One recording. `name` is its object name in the store, `text` what is said, normalised."""

    name: str
    lang: str
    text: str
    duration_s: float
    path: Path


def spoken_text(text: str) -> str:
    """Lower case; letters, digits and apostrophes of any script; single spaces; asides in brackets left out."""
    text = re.sub(r"\[[^]]*\]|\([^)]*\)", " ", text.lower()).replace("’", "'")
    return " ".join(re.sub(r"[^\w']|_", " ", text).split())


def read_corpus(folder: Path) -> list[Utterance]:
    """The utterances of `folder`, in the manifest's order.

    Raises:
        CorpusError: there is no manifest, a row lacks a field, or a recording that it names is not there.
    """
    manifest = folder / "manifest.jsonl"
    try:
        rows = [json.loads(line) for line in manifest.read_text(encoding="utf-8").splitlines()]
        corpus = [
            Utterance(row["name"], row["lang"], spoken_text(row["text"]), row["duration_s"], folder / row["name"])
            for row in rows
        ]
    except OSError as error:
        raise CorpusError(f"cannot read {manifest}: {error.strerror}; give the corpus' folder with --data") from error
    except (ValueError, KeyError, TypeError) as error:
        raise CorpusError(f"{manifest} is not a manifest of utterances: {error!r}") from error
    missing = [utterance.name for utterance in corpus if not utterance.path.is_file()]
    if missing or not corpus:
        raise CorpusError(f"{folder}: {len(missing)} of {len(corpus)} recordings are missing: {', '.join(missing[:3])}")
    return corpus


class Alphabet:
    """Characters to class numbers and back. Class 0 is the blank of CTC; characters follow in sorted order."""

    def __init__(self, texts: Iterable[str]) -> None:
        self.symbols = ["", *sorted(set("".join(texts)))]
        self._class_of = {symbol: number for number, symbol in enumerate(self.symbols)}

    def __len__(self) -> int:
        return len(self.symbols)

    def encode(self, text: str) -> list[int]:
        return [self._class_of[symbol] for symbol in text]

    def decode(self, classes: Iterable[int]) -> str:
        return "".join(self.symbols[number] for number in classes)
