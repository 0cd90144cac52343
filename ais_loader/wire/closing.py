"""Objects that are closed at the end of their `with` block."""

from __future__ import annotations

from typing import Self


class Closing:
    """Base of what a `with` block closes."""

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
