"""Transformed file: the result of a transform, as a seekable read-only file."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Iterable
from typing import IO

from ais_loader.values.entry import Item

IN_MEMORY_BYTES = 16 << 20


def spooled(items: Iterable[Item]) -> IO[bytes]:
    """Collect all of one item, in memory or in a temporary file. Raises the errors of the items."""
    file: IO[bytes] = tempfile.SpooledTemporaryFile(IN_MEMORY_BYTES)  # noqa: SIM115 - the caller closes it
    try:
        for item in items:
            file.write(item.data)
        file.seek(0, io.SEEK_SET)
    except BaseException:
        file.close()
        raise
    return file
