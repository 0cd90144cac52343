"""FolderDriver: a folder of files as remote storage, such as a mounted NFS.

obstore's store of files lists in no order and follows links out of the folder, so this uses the operating system. All
paths are resolved inside the folder (see storage_node.promote.confined_path). A file keeps neither metadata nor a
content type. Listings follow links to files, and not to folders.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import io
import itertools
import os
import secrets
import stat
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar
from urllib.parse import unquote

from ais_loader.errors import (
    LoaderError,
    ObjectNotFound,
    RemoteDenied,
    RemoteUnavailable,
    SourceRefused,
    SourceUnreadable,
)
from ais_loader.wire.closing import closing_fd
from ais_loader.wire.remote import Remote
from storage_node.limits.tasks import settled
from storage_node.promote.confined_path import FILE, FOLDER, open_beneath
from storage_node.remote.drivers.driver import (
    CHUNK_BYTES,
    Buffer,
    KeyPage,
    ListedKey,
    NotModified,
    PreconditionFailed,
    PutConditions,
    ReadAnswer,
    RemoteChanged,
    RemoteObject,
    RequestFailure,
)
from storage_node.remote.drivers.failures import message

T = TypeVar("T")

_PAGE = 1000
_UNFINISHED = ".ais-loader-put-"
"""Prefix of the files that are being put. Listings leave them out."""


class FolderDriver:
    """Requests to one folder. See `Driver`.

    Args:
        roots: folders that may contain it; None for all.

    Raises RemoteDenied if the folder is not below one of them.
    """

    host = "file"
    secrets: Sequence[str] = ()

    def __init__(self, remote: Remote, roots: Sequence[Path] | None) -> None:
        self._remote = remote
        self._root = Path(unquote(remote.url.removeprefix("file://"))).resolve()
        if roots is not None and not any(self._root.is_relative_to(root.resolve()) for root in roots):
            raise RemoteDenied(f"{remote.url}: is in none of the folders that this node allows (remote_file_roots)")

    async def head(self, name: str) -> RemoteObject:
        def stat_file() -> RemoteObject:
            with closing_fd(self._open(name)) as fd:
                return _described(name, os.fstat(fd))

        return await self._in_thread(name, stat_file)

    async def open(
        self, name: str, start: int = 0, end: int | None = None, *, if_match: str = "", if_none_match: str = ""
    ) -> ReadAnswer:
        file = await self._in_thread(name, lambda: io.FileIO(self._open(name)))
        try:
            info = _described(name, os.fstat(file.fileno()))
            if if_match and info.etag != if_match:
                raise PreconditionFailed
            if if_none_match == info.etag:
                raise NotModified
        except BaseException:
            file.close()
            raise
        end = info.size_bytes if end is None else min(end, info.size_bytes)
        return ReadAnswer(info, start, self._chunks(file, info, start, end), release=file.close)

    async def pages(self, prefix: str, after: str) -> AsyncIterator[KeyPage]:
        keys = self._walk(prefix, os.fsencode(after))
        while True:
            page = await self._in_thread(prefix, lambda: list(itertools.islice(keys, _PAGE)))
            is_last = len(page) < _PAGE
            yield KeyPage(page, "" if is_last else page[-1].key)
            if is_last:
                return

    async def put(self, name: str, data: bytes, metadata: Mapping[str, str], conditions: PutConditions) -> RemoteObject:
        async def chunks() -> AsyncIterator[Buffer]:
            yield data

        return await self._put(name, chunks(), conditions)

    async def put_stream(
        self, name: str, chunks: AsyncIterator[Buffer], metadata: Mapping[str, str], part_bytes: int
    ) -> RemoteObject:
        return await self._put(name, chunks, PutConditions())

    async def delete(self, name: str) -> None:
        def delete() -> None:
            folder, _, last = name.rpartition("/")
            with self._folder(folder) as folder_fd:
                os.unlink(last, dir_fd=folder_fd)

        await self._in_thread(name, delete)

    async def _put(self, name: str, chunks: AsyncIterator[Buffer], conditions: PutConditions) -> RemoteObject:
        folder, _, last = name.rpartition("/")
        unfinished = _UNFINISHED + secrets.token_hex(8)

        def create() -> tuple[int, int]:
            with self._folder(folder, create=True) as above:
                folder_fd = os.dup(above)
            opened.callback(os.close, folder_fd)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            fd = os.open(unfinished, flags, 0o666, dir_fd=folder_fd)
            opened.callback(remove, folder_fd)
            opened.callback(os.close, fd)
            return folder_fd, fd

        def remove(folder_fd: int) -> None:
            with contextlib.suppress(OSError):
                os.unlink(unfinished, dir_fd=folder_fd)

        def commit() -> RemoteObject:
            os.fsync(fd)
            if conditions.if_etag and self._etag(name) != conditions.if_etag:
                raise PreconditionFailed
            if conditions.if_absent:
                try:
                    os.link(unfinished, last, src_dir_fd=folder_fd, dst_dir_fd=folder_fd)
                except FileExistsError:
                    raise PreconditionFailed from None
                os.unlink(unfinished, dir_fd=folder_fd)
            else:
                os.rename(unfinished, last, src_dir_fd=folder_fd, dst_dir_fd=folder_fd)
            os.fsync(folder_fd)
            return _described(name, os.fstat(fd))

        async def run(step: Callable[[], T]) -> T:
            """Run a step to its end: a descriptor that is closed before may become that of another file."""
            return await settled(asyncio.ensure_future(self._in_thread(name, step)))

        opened = contextlib.ExitStack()
        try:
            folder_fd, fd = await run(create)
            async for chunk in chunks:
                await run(functools.partial(_write, fd, chunk))
            return await run(commit)
        finally:
            await asyncio.shield(asyncio.to_thread(opened.close))

    def _etag(self, name: str) -> str:
        """Return the tag of a file; "" if there is none."""
        try:
            with closing_fd(self._open(name)) as fd:
                return _described(name, os.fstat(fd)).etag
        except SourceUnreadable as error:
            if _number(error) in (errno.ENOENT, errno.ENOTDIR):
                return ""
            raise

    async def _chunks(self, file: io.FileIO, info: RemoteObject, start: int, end: int) -> AsyncGenerator[Buffer, None]:
        def read(position: int) -> bytes:
            chunk = os.pread(file.fileno(), min(CHUNK_BYTES, end - position), position)
            if _described(info.name, os.fstat(file.fileno())).etag != info.etag:
                raise RequestFailure(RemoteChanged(f"{self._place(info.name)}: was written to while it was read"))
            return chunk

        try:
            while start < end:
                chunk = await self._in_thread(info.name, functools.partial(read, start))
                if not chunk:
                    return
                start += len(chunk)
                yield chunk
        finally:
            file.close()

    def _walk(self, prefix: str, after: bytes) -> Iterator[ListedKey]:
        """Yield the files whose names begin with `prefix` and follow `after`, in the order of their bytes."""
        wanted = os.fsencode(prefix)
        above = prefix.rpartition("/")[0]
        try:
            with self._folder(above):
                pass
        except SourceUnreadable as error:
            if above and _number(error) in (errno.ENOENT, errno.ENOTDIR):
                return
            raise
        root = os.path.realpath(self._root)
        folders: list[Iterator[tuple[bytes, os.DirEntry[bytes]]]] = [self._entries(os.fsencode(above))]
        while folders:
            path, entry = next(folders[-1], (b"", None))
            if entry is None:
                folders.pop()
                continue
            if path.endswith(b"/"):
                # A folder that ends before `after` has nothing to list; one that contains it has.
                if (path.startswith(wanted) or wanted.startswith(path)) and (path > after or after.startswith(path)):
                    folders.append(self._entries(path[:-1]))
                continue
            if path <= after or not path.startswith(wanted):
                continue
            try:
                if entry.is_symlink() and not Path(os.path.realpath(os.fsdecode(entry.path))).is_relative_to(root):
                    continue
                found = entry.stat()
            except OSError as error:
                if error.errno in (errno.ENOENT, errno.ELOOP):
                    continue
                raise
            if stat.S_ISREG(found.st_mode):
                described = _described("", found)
                yield ListedKey(os.fsdecode(path), described.size_bytes, described.etag, described.modified_ns)

    def _entries(self, folder: bytes) -> Iterator[tuple[bytes, os.DirEntry[bytes]]]:
        """Yield the paths in a folder, relative to the root, in the order that they have in a sorted list of all files.
        Those of folders end in a slash."""
        found = []
        above = folder + b"/" if folder else b""
        try:
            with os.scandir(os.path.join(os.fsencode(self._root), folder)) as entries:
                for entry in entries:
                    if not entry.name.startswith(_UNFINISHED.encode()):
                        is_folder = entry.is_dir(follow_symlinks=False)
                        found.append((above + entry.name + (b"/" if is_folder else b""), entry))
        except FileNotFoundError:
            if not folder:
                raise
        found.sort(key=lambda one: one[0])
        return iter(found)

    def _open(self, name: str) -> int:
        """Open a regular file for reading. Raises OSError, and LoaderError for other files."""
        with closing_fd(os.open(self._root, FOLDER)) as root_fd:
            fd = open_beneath(root_fd, os.fsencode(name), FILE)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise ObjectNotFound(f"{self._place(name)}: is not a regular file")
        return fd

    @contextlib.contextmanager
    def _folder(self, folder: str, *, create: bool = False) -> Iterator[int]:
        """Open a folder below the root, and create it if necessary."""
        with closing_fd(os.open(self._root, FOLDER)) as root_fd:
            if not folder:
                yield root_fd
                return
            if create:
                parts = folder.split("/")
                for depth in range(len(parts)):
                    with self._folder("/".join(parts[:depth])) as above, contextlib.suppress(FileExistsError):
                        os.mkdir(parts[depth], dir_fd=above)
            with closing_fd(open_beneath(root_fd, os.fsencode(folder), FOLDER)) as fd:
                yield fd

    def _place(self, name: str) -> str:
        return f"{self._remote.url}/{name}"

    async def _in_thread(self, name: str, step: Callable[[], T]) -> T:
        """Run one step in a thread, and translate its errors."""
        try:
            return await asyncio.to_thread(step)
        except SourceRefused as error:
            raise RequestFailure(RemoteDenied(message(self._place(name), str(error), ()))) from None
        except SourceUnreadable as error:
            raise self._failure(name, error) from None
        except LoaderError as error:  # before OSError, which some of them are
            raise RequestFailure(error) from None
        except OSError as error:
            raise self._failure(name, error) from None

    def _failure(self, name: str, error: Exception) -> RequestFailure:
        number = _number(error)
        reason = os.strerror(number) if number else str(error)
        kind: type[LoaderError] = RemoteUnavailable
        if number in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.ENAMETOOLONG):
            kind = RemoteDenied
        elif number in (errno.ENOENT, errno.ENOTDIR, errno.EISDIR):
            kind = ObjectNotFound if self._root.is_dir() else RemoteDenied
        return RequestFailure(kind(message(self._place(name), reason, ())), retry=kind is RemoteUnavailable)


def _number(error: BaseException) -> int:
    """Return the number of a system error, or of the one that caused the error; 0 if there is none."""
    for one in (error, error.__cause__):
        if isinstance(one, OSError) and one.errno:
            return one.errno
    return 0


def _described(name: str, found: os.stat_result) -> RemoteObject:
    etag = f'"{found.st_ino:x}-{found.st_mtime_ns:x}-{found.st_size:x}"'
    return RemoteObject(name, found.st_size, etag, "", found.st_mtime_ns)


def _write(fd: int, chunk: Buffer) -> None:
    view = memoryview(chunk)
    while view:
        view = view[os.write(fd, view) :]
