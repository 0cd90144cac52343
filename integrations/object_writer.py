"""Write stream: a file that becomes an object when it is closed, as a whole or not at all."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, suppress
from typing import TYPE_CHECKING, Any

from ais_loader import Client

if TYPE_CHECKING:
    from typing_extensions import Buffer

MEMORY_BYTES = 64 << 20
"""Larger data is spooled to a temporary file."""


class _Writer(io.IOBase):
    """Base of writers that store nothing if an exception leaves their `with` block, if a `write` failed, after
    `give_up`, or if they are dropped without being closed. Those that write to another one have it as `_below`."""

    _below: Any

    def give_up(self) -> None:
        """Make `close` store nothing."""
        self._below.give_up()

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self.give_up()
        self.close()

    def __del__(self) -> None:
        # A writer that was dropped without being closed was abandoned, but the interpreter would close it.
        with suppress(ValueError):  # of text whose options were refused
            if not self.closed:
                self.give_up()
                self.close()


class ObjectWriter(_Writer, io.BufferedIOBase):
    """A sequential writer of bytes."""

    def __init__(
        self,
        writing: Callable[[], AbstractContextManager[Client]],
        bucket: str,
        name: str,
        *,
        autocommit: bool = True,
        if_absent: bool = False,
        progressed: Callable[[], object] | None = None,
    ) -> None:
        """
        Args:
            writing: A context manager that provides a client for writing and keeps other writers out. It is entered
                here, so that a caller who may not write gets the error before there is anything to write.
            autocommit: False means that `commit` stores the object, after `close`, as in fsspec's transactions.
            if_absent: Whether to raise FileExistsError, and write nothing, if the object exists by then.
            progressed: Called with each `write`, so that writers in other processes continue to wait for this one.

        Raises the errors of `writing`.
        """
        self.name = f"ais://{bucket}/{name}"
        self._writing = writing
        self._bucket = bucket
        self._object_name = name
        self._autocommit = autocommit
        self._if_absent = if_absent
        self._progressed = progressed
        self._failed = True  # until all of it has been written
        self._spool = tempfile.SpooledTemporaryFile(MEMORY_BYTES)  # noqa: SIM115 - closed by commit and discard
        self._held = ExitStack()
        self._held.enter_context(writing())
        self._failed = False

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._spool.tell()

    def write(self, data: Buffer, /) -> int:
        if self.closed:
            raise ValueError("I/O operation on closed file")
        if self._progressed is not None:
            self._progressed()
        try:
            return self._spool.write(data)
        except (OSError, MemoryError):  # a part may have been written
            self.give_up()
            raise

    def give_up(self) -> None:
        self._failed = True

    def close(self) -> None:
        """Store the object, unless writing it failed. Raises the errors of `Bucket.put`, or file errors."""
        if self.closed:
            return
        super().close()
        if self._failed:
            self.discard()
        elif self._autocommit:
            self.commit()

    def commit(self) -> None:
        if self._failed:
            return
        try:
            self._spool.seek(0)
            with self._writing() as client:
                client.bucket(self._bucket).put(self._object_name, self._spool, if_absent=self._if_absent)
        finally:
            self.discard()

    def discard(self) -> None:
        self._spool.close()
        self._held.close()


class LayeredWriter(_Writer, io.BufferedIOBase):
    """A writer of what a `layer`, such as a compressor, makes of the bytes and writes to `below`."""

    def __init__(self, layer: Any, below: ObjectWriter) -> None:
        self._layer, self._below = layer, below

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return int(self._layer.tell())

    def write(self, data: Buffer, /) -> int:
        return int(self._layer.write(data))

    def close(self) -> None:
        """Write the rest, and store the object. Raises the errors of `layer`, and of `ObjectWriter.close`."""
        if self.closed:
            return
        try:
            super().close()
            self._layer.close()
        except BaseException:
            self.give_up()
            raise
        finally:
            self._below.close()


class TextWriter(_Writer, io.TextIOWrapper):
    """A writer of text. The options are those of TextIOWrapper."""

    def __init__(self, below: ObjectWriter | LayeredWriter, **options: Any) -> None:
        self._below = below
        super().__init__(below, **options)  # type: ignore[arg-type]  # a BufferedIOBase

    def close(self) -> None:
        try:
            if not self.closed:
                self.flush()
        except BaseException:
            self.give_up()
            raise
        finally:
            super().close()
