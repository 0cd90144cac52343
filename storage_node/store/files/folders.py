"""Folder tree of a drive's objects, two levels deep: made when needed, and made to survive a power cut."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from functools import partial

from storage_node.store.files.group_sync import Syncs

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class ObjectFolders:
    """Below the folder `objects_fd`. Thread-safe."""

    def __init__(self, objects_fd: int, syncs: Syncs) -> None:
        self._objects_fd = objects_fd
        self._syncs = syncs
        self._lasting: set[bytes] = set()  # known to survive a power cut; only ever grows

    def make(self, path: bytes) -> None:
        """Those that a file is to be in. Raises OSError."""
        inner = os.path.dirname(path)
        outer = os.path.dirname(inner)
        if inner in self._lasting:  # somebody has removed them since
            self._lasting.difference_update((inner, outer))
            self.make_lasting([path])
        else:
            self._make([outer, inner])

    def make_lasting(self, paths: Iterable[bytes]) -> None:
        """Those that these files are to be in; they survive a power cut on return. Raises OSError.

        Each parent is synced once for all of them, and all parents side by side: most objects of a young store come
        into a folder of their own.
        """
        # Synced even where they exist: whoever made them may not have synced them.
        inner = {os.path.dirname(path) for path in paths} - self._lasting
        outer = {os.path.dirname(folder) for folder in inner}
        self._make([*outer, *inner])
        self._sync([*outer, b"."] if outer - self._lasting else [*outer])
        self._lasting.update(inner, outer)

    def sync_names(self, paths: Iterable[bytes]) -> None:
        """These files survive a power cut on return as far as their names go. Raises OSError."""
        self._sync({os.path.dirname(path) for path in paths})

    def _make(self, folders: Iterable[bytes]) -> None:
        for folder in folders:
            with contextlib.suppress(FileExistsError):
                os.mkdir(folder, dir_fd=self._objects_fd)

    def _sync(self, folders: Iterable[bytes]) -> None:
        self._syncs.run([partial(self._sync_one, folder) for folder in folders])

    def _sync_one(self, folder: bytes) -> None:
        fd = os.open(folder, _DIRECTORY, dir_fd=self._objects_fd)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
