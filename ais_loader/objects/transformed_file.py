"""Transformed file: what a transform makes of an object, as a seekable file that is read and nothing else."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Iterable
from typing import IO

from ais_loader.values.entry import Item

IN_MEMORY_BYTES = 16 << 20


def spooled(items: Iterable[Item]) -> IO[bytes]:
    """All of one item, in memory or in a temporary file. Raises what the items do."""
    file: IO[bytes] = tempfile.SpooledTemporaryFile(IN_MEMORY_BYTES)  # noqa: SIM115 - whoever asked closes it
    try:
        for item in items:
            file.write(item.data)
        file.seek(0, io.SEEK_SET)
    except BaseException:
        file.close()
        raise
    return file
