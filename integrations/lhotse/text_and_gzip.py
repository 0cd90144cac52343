"""Text and gzip over object files.

They keep the guarantee of `ObjectWriter` that a failed write stores nothing. If an object cannot be decompressed, their
errors name it.
"""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from lhotse.workarounds import AltGzipFile

if TYPE_CHECKING:
    from ..object_writer import ObjectWriter


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


class GzipWriter(gzip.GzipFile):
    """A writer that compresses equal contents to equal bytes: it does not store a time."""

    def __init__(self, below: ObjectWriter) -> None:
        self._below = below
        super().__init__(filename="", mode="wb", fileobj=below, mtime=0)

    def give_up(self) -> None:
        self._below.give_up()

    def close(self) -> None:
        try:
            super().close()  # writes the rest, and the trailer
        except BaseException:
            self.give_up()
            raise
        finally:
            self._below.close()

    def __exit__(self, kind: object, *_: object) -> None:
        _leave(self, kind)

    def __del__(self) -> None:
        _drop(self)


class TextWriter(io.TextIOWrapper):
    """A writer of UTF-8 text."""

    def __init__(self, below: ObjectWriter | GzipWriter) -> None:
        self._below = below
        super().__init__(below, encoding="utf-8")

    def give_up(self) -> None:
        self._below.give_up()

    def close(self) -> None:
        try:
            if not self.closed:
                self.flush()
        except BaseException:
            self.give_up()
            raise
        finally:
            super().close()

    def __exit__(self, kind: object, *_: object) -> None:
        _leave(self, kind)

    def __del__(self) -> None:
        _drop(self)


def _leave(file: GzipWriter | TextWriter, kind: object) -> None:
    if kind is not None:
        file.give_up()
    file.close()


def _drop(file: GzipWriter | TextWriter) -> None:
    # A file that was dropped without being closed was abandoned, but the interpreter would close it.
    if not file.closed:
        file.give_up()
        file.close()
