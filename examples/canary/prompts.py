"""Prompted tokens: what the decoder is given and what it has to write.

The prompt is that of the first Canary models: start of transcript, source language, task, target language,
punctuation (Puvvada et al., "Less is More: Accurate Speech Recognition & Translation without Web-Scale Data", 2024).
Text is written in characters: a corpus of a hundred sentences is too small for words' pieces to be learned.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from examples.canary.corpus import Task

PAD, START, END = "<|pad|>", "<|startoftranscript|>", "<|endoftext|>"
_TASKS = {"asr": "<|transcribe|>", "ast": "<|translate|>"}
_PNC = {"yes": "<|pnc|>", "no": "<|nopnc|>"}


class Tokenizer:
    """Characters and special tokens to numbers and back. Number 0 is padding."""

    def __init__(self, tasks: Iterable[Task]) -> None:
        tasks = list(tasks)
        languages = {task.source_lang for task in tasks} | {task.target_lang for task in tasks}
        self.symbols = [
            *(PAD, START, END, *_TASKS.values(), *_PNC.values()),
            *(f"<|{language}|>" for language in sorted(languages)),
            *sorted(set("".join(task.text for task in tasks))),
        ]
        self._number_of = {symbol: number for number, symbol in enumerate(self.symbols)}
        self.end = self._number_of[END]

    def __len__(self) -> int:
        return len(self.symbols)

    def prompt(self, task: Task) -> list[int]:
        """Five numbers. Raises KeyError for a language or task that the corpus does not have."""
        symbols = (START, f"<|{task.source_lang}|>", _TASKS[task.taskname], f"<|{task.target_lang}|>", _PNC[task.pnc])
        return [self._number_of[symbol] for symbol in symbols]

    def text(self, text: str) -> list[int]:
        """The text's characters, and the end."""
        return [*(self._number_of[character] for character in text), self.end]

    def decode(self, numbers: Sequence[int]) -> str:
        """The text up to the end; special tokens are left out."""
        written = list(numbers)
        if self.end in written:
            written = written[: written.index(self.end)]
        return "".join(symbol for symbol in map(self.symbols.__getitem__, written) if len(symbol) == 1)
