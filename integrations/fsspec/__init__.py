"""fsspec integration: `ais://` for pandas, pyarrow, datasets and anything else that opens URLs through fsspec."""

from __future__ import annotations

from .filesystem import AISFileSystem

__all__ = ["AISFileSystem"]
