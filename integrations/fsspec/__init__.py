"""`ais://` for fsspec, and so for pandas, pyarrow, datasets and whatever else opens URLs through it."""

from __future__ import annotations

from .filesystem import AISFileSystem

__all__ = ["AISFileSystem"]
