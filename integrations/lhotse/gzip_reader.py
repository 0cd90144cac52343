"""Gzip over object files: if an object cannot be decompressed, the error names it."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

from lhotse.workarounds import AltGzipFile


class GzipReader(AltGzipFile):  # type: ignore[misc]  # Lhotse is not type-checked here
    """A seekable reader that decompresses as Lhotse does: trailing garbage is not an error.

    Closing it closes the file below. Truncated or damaged data raises EOFError, gzip.BadGzipFile or zlib.error, which
    name the object.
    """

    def __init__(self, below: io.BufferedIOBase, url: str) -> None:
        super().__init__(filename="", mode="rb", fileobj=below)
        self._below = below
        self._url = url

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise type(error)(f"{error} ({self._url})") from error

    def read1(self, size: int = -1) -> bytes:  # `read` calls it
        with self._named():
            return super().read1(size)  # type: ignore[no-any-return]

    def peek(self, size: int) -> bytes:
        with self._named():
            return super().peek(size)  # type: ignore[no-any-return]

    def readline(self, size: int | None = -1) -> bytes:
        with self._named():
            return super().readline(size)  # type: ignore[no-any-return]

    def close(self) -> None:
        try:
            super().close()
        finally:
            self._below.close()
