"""Text to tokens: `client.etl.init("tokens", Tokens)`; each object becomes an array of uint32, as NumPy saves it.

A tokenizer is heavy to make: it is made once in each worker, in `__init__`. This one hashes words and signs into a
vocabulary, and needs nothing but NumPy; replace `encoded` by that of a tokenizer of your own.
"""

import io
import re
import zlib
from collections.abc import Iterator

import numpy as np

WORDS = re.compile(r"\w+|[^\w\s]")


class Tokens:
    def __init__(self) -> None:
        self.known: dict[str, int] = {}

    def __call__(self, data: bytes, vocabulary: int = 32_000, encoding: str = "utf-8", lower: bool = True) -> bytes:
        text = bytes(data).decode(encoding)
        made = io.BytesIO()
        np.save(made, np.fromiter(self.encoded(text.lower() if lower else text, vocabulary), np.uint32))
        return made.getvalue()

    def encoded(self, text: str, vocabulary: int) -> Iterator[int]:
        """0 is kept for padding."""
        for word in WORDS.findall(text):
            if word not in self.known:
                self.known[word] = zlib.crc32(word.encode())
            yield 1 + self.known[word] % (vocabulary - 1)
