"""Objects that are closed at the end of their `with` block."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Self


class Closing:
    """Base of what a `with` block closes."""

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextlib.contextmanager
def closing_fd(fd: int) -> Iterator[int]:
    """Close a file descriptor at the end of the `with` block."""
    try:
        yield fd
    finally:
        os.close(fd)
