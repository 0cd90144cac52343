"""Object counts and sizes below a prefix, in total and by the folders in the names."""

from __future__ import annotations

from collections.abc import Iterable

from ais_loader.errors import InvalidRequest

MAX_FOLDERS = 100_000
MAX_FOLDER_BYTES = 8 << 20
"""Limit on the names of a summary's folders, so that its memory stays small."""


class NameSummary:
    """Counter of objects by the first `depth` levels of their names below the prefix's last "/". Belongs to one thread.

    An object is counted in the deepest distinguished folder that contains it: with a depth of 1 below "en/", en/a/b.wav
    is counted in "en/a/" and en/c.wav in "en/". The folders thus add up to the total.
    """

    def __init__(self, prefix: str, depth: int) -> None:
        self.objects = 0
        self.size_bytes = 0
        self.folders: dict[str, list[int]] = {}
        """Objects and bytes of each folder; empty with a depth of 0."""
        self._folder_bytes = 0
        self._base = prefix.rfind("/") + 1
        self._depth = depth

    def add(self, objects: Iterable[tuple[str, int]]) -> None:
        """Add names that begin with the prefix, each once, with their sizes. Raises InvalidRequest for too many
        folders."""
        for name, size_bytes in objects:
            self.objects += 1
            self.size_bytes += size_bytes
            if self._depth:
                folder = self.folders.get(of := self.folder_of(name))
                if folder is None:
                    folder = self.folders[of] = [0, 0]
                    self._folder_bytes += len(of.encode())
                folder[0] += 1
                folder[1] += size_bytes
        if len(self.folders) > MAX_FOLDERS or self._folder_bytes > MAX_FOLDER_BYTES:
            raise InvalidRequest(
                f"more than {MAX_FOLDERS:,} folders, or {MAX_FOLDER_BYTES:,} bytes of their names, with "
                f"depth={self._depth}: need a smaller depth or a longer prefix"
            )

    def folder_of(self, name: str) -> str:
        end = self._base
        for _ in range(self._depth):
            slash = name.find("/", end)
            if slash < 0:
                break
            end = slash + 1
        return name[:end]
