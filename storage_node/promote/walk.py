"""Directory walk of a promotion: yields files while they are promoted, so that a million files need no list.

Folders are opened relative to their parent's descriptor and never through a symbolic link. Entries that cannot be
promoted are yielded too, each with its error.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from ais_loader.errors import LoaderError, SourceRefused, SourceUnreadable
from ais_loader.name_matching import matcher, printable_path
from ais_loader.wire.closing import closing_fd
from storage_node.promote.confined_path import FOLDER, open_beneath
from storage_node.promote.store_folders import StoreFolders
from storage_node.store.names import check_object_name

GROUP_FILES, GROUP_BYTES, GROUP_FOLDERS = 128, 8 << 20, 32
"""Limits of a group that is promoted together: files, bytes and open folders, or a single file."""


class OpenFolder:
    """An open folder; closed with its last reference."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __del__(self) -> None:
        os.close(self.fd)


class FoundFile(NamedTuple):
    """A file, or a symbolic link that may lead to one, as it was when found."""

    path: str
    """Relative to the path that is promoted."""
    name: str
    """Name of its object."""
    folder: OpenFolder
    file_name: str
    root: OpenFolder
    from_root: bytes
    size_bytes: int
    mtime_ns: int
    is_link: bool = False


class NotFit(NamedTuple):
    """Something that cannot be promoted."""

    path: str
    name: str
    error: LoaderError


Found: TypeAlias = FoundFile | NotFit


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which files below a path are promoted, and under which names."""

    prefix: str = ""
    recursive: bool = True
    include: Sequence[str] = ()
    """Shell patterns. One with a slash is matched against the path from the top, others against the file's name."""
    exclude: Sequence[str] = ()

    def chooser(self) -> Callable[[str], bool]:
        """Return a function that tells whether a path from the top is wanted."""
        include, exclude = matcher(self.include), matcher(self.exclude)
        return lambda path: (not self.include or include(path)) and not exclude(path)


class Walk:
    """The walk of one path within a root.

    Args:
        root: an open folder that nothing may lead out of.
        path: relative to the root; b"." is the root itself.
        own: folders of the store, which are not walked.
        mine: whether a name is wanted; others are only counted. If a folder cannot be listed, all its names count as
            wanted.

    Raises SourceRefused or SourceUnreadable if the path does not exist, is neither a file nor a folder, or is a folder
    without `recursive`.
    """

    def __init__(
        self,
        root: OpenFolder,
        path: bytes,
        wanted: Wanted,
        own: StoreFolders | None = None,
        mine: Callable[[str], bool] = lambda name: True,
    ) -> None:
        self.files_seen = 0
        self._root, self._path, self._wanted = root, os.fsdecode(path), wanted
        self._own = own or StoreFolders()
        self._mine = mine
        self._chosen = wanted.chooser()
        with closing_fd(open_beneath(root.fd, path, os.O_PATH | os.O_CLOEXEC)) as fd:  # no device is opened
            found = os.fstat(fd)
        self.device, self.inode, self.is_folder = found.st_dev, found.st_ino, stat.S_ISDIR(found.st_mode)
        self._top: OpenFolder | FoundFile
        if self.is_folder:
            if not wanted.recursive:
                raise SourceRefused("is a folder; `recursive` promotes what is in it")
            self._top = OpenFolder(open_beneath(root.fd, path, FOLDER))
            self._own.require_outside(self._top.fd)
            return
        if not stat.S_ISREG(found.st_mode):
            raise SourceRefused(f"is {_kind(found.st_mode)}, neither a file nor a folder")
        before, _, last = self._path.rpartition("/")
        folder = OpenFolder(open_beneath(root.fd, os.fsencode(before) or b".", FOLDER))
        self._own.require_outside(folder.fd)
        is_link = stat.S_ISLNK(os.stat(last, dir_fd=folder.fd, follow_symlinks=False).st_mode)
        self._top = FoundFile(
            last, wanted.prefix + last, folder, last, root, path, found.st_size, found.st_mtime_ns, is_link
        )

    def __iter__(self) -> Generator[Found, None, None]:
        if isinstance(self._top, FoundFile):
            self.files_seen += 1
            if self._mine(self._top.name):
                yield _checked(self._top)
        else:
            yield from self._below(self._top)

    def _below(self, top: OpenFolder) -> Generator[Found, None, None]:
        """Yield files depth first, while each folder is listed: one open listing per level."""
        listings: list[tuple[OpenFolder, Any, str]] = []
        """Folders, each with what `os.scandir` returned, which closes itself at its end."""

        def enter(folder: OpenFolder, way: str) -> NotFit | None:
            try:
                if way and self._own.is_one(folder.fd, way[:-1].rpartition("/")[2]):
                    return _unfit(way, self._wanted, SourceRefused("is the store itself"))
                listings.append((folder, os.scandir(folder.fd), way))
            except OSError as error:
                return _unfit(way, self._wanted, _unreadable(error))
            return None

        try:
            if fault := enter(top, ""):
                yield fault
            while listings:
                folder, entries, way = listings[-1]
                try:
                    entry = next(entries, None)
                except OSError as error:
                    yield _unfit(way, self._wanted, _unreadable(error))
                    entry = None
                if entry is None:
                    listings.pop()
                    continue
                path = way + entry.name
                try:
                    if not entry.is_dir(follow_symlinks=False):
                        if (one := self._file(folder, entry.name, path)) is not None:
                            yield one
                        continue
                    below = OpenFolder(os.open(entry.name, FOLDER | os.O_NOFOLLOW, dir_fd=folder.fd))
                except FileNotFoundError:
                    continue  # deleted since it was listed
                except OSError as error:
                    yield _unfit(path, self._wanted, _unreadable(error))
                    continue
                if fault := enter(below, path + "/"):
                    yield fault
        finally:
            for _, entries, _ in listings:
                entries.close()

    def _file(self, folder: OpenFolder, file_name: str, path: str) -> Found | None:
        """Return the file, or None if it is not wanted. Raises OSError."""
        if not self._chosen(path):
            return None
        self.files_seen += 1
        name = self._wanted.prefix + path
        if not self._mine(printable_path(name)):
            return None
        found = os.stat(file_name, dir_fd=folder.fd, follow_symlinks=False)
        is_link = stat.S_ISLNK(found.st_mode)
        if not is_link and not stat.S_ISREG(found.st_mode):
            return _unfit(path, self._wanted, SourceRefused(f"is {_kind(found.st_mode)}, no regular file"))
        from_root = path if self._path == "." else f"{self._path}/{path}"
        return _checked(
            FoundFile(
                path,
                name,
                folder,
                file_name,
                self._root,
                os.fsencode(from_root),
                found.st_size,
                found.st_mtime_ns,
                is_link,
            )
        )


def _checked(found: FoundFile) -> Found:
    try:
        check_object_name(found.name)
    except LoaderError as error:
        shown = printable_path(found.path)
        if shown != found.path:
            return NotFit(
                shown, printable_path(found.name), SourceRefused("its name is not UTF-8, so no object can have it")
            )
        return NotFit(shown, found.name, error)
    return found


def _unfit(path: str, wanted: Wanted, error: LoaderError) -> NotFit:
    shown = printable_path(path)
    return NotFit(shown, wanted.prefix + shown, error)


def _unreadable(error: OSError) -> SourceUnreadable:
    return SourceUnreadable(f"cannot be read: {error.strerror or error}")


def _kind(mode: int) -> str:
    kinds = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFBLK: "a device", stat.S_IFCHR: "a device"}
    return kinds.get(stat.S_IFMT(mode), "something else")


def groups(found: Iterator[Found]) -> Generator[list[Found], None, None]:
    """Group files that are promoted together, as they are found."""
    group: list[Found] = []
    size_bytes, folders = 0, set[int]()
    for one in found:
        if group and isinstance(one, FoundFile):
            full = len(group) >= GROUP_FILES or size_bytes + one.size_bytes > GROUP_BYTES
            if full or len(folders | {one.folder.fd}) > GROUP_FOLDERS:
                yield group
                group, size_bytes, folders = [], 0, set()
        group.append(one)
        if isinstance(one, FoundFile):
            size_bytes += one.size_bytes
            folders.add(one.folder.fd)
        elif len(group) >= GROUP_FILES:
            yield group
            group, size_bytes, folders = [], 0, set()
    if group:
        yield group
