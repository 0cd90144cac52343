"""fsspec file system over buckets and objects: `ais://bucket/name`.

fsspec finds it through its entry point, so `fsspec.open("ais://bucket/name")` and `pandas.read_parquet("ais://…")` need
only the installed package and a store: `storage_options={"store": …}` or AIS_LOADER_URL. Many files or ranges are
fetched with one GetBatch. Folders are common prefixes of names: they come and go with their objects. Reading takes no
lock. integrations/shared_store.py describes how writing locks an embedded store.

Interface: https://filesystem-spec.readthedocs.io/en/latest/api.html#fsspec.spec.AbstractFileSystem
"""

from __future__ import annotations

import datetime
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

from ais_loader import Bucket, Client, Entry, ObjectInfo, errors
from ais_loader.extras import needs
from ais_loader.name_matching import is_pattern
from ais_loader.objects.bucket import one_level
from ais_loader.objects.object_file import READ_AHEAD_BYTES, ObjectFile
from ais_loader.values.urls import is_remote

from ..file_errors import as_files
from ..object_writer import LayeredWriter, ObjectWriter, TextWriter
from ..shared_store import named_url, shared_store
from .buffered_file import BufferedFile
from .files_ahead import FilesAhead
from .path_expansion import Row, file_row, folder_row, level_row, no_writing, split

with needs("fsspec", "ais:// in other libraries"):
    from fsspec.callbacks import DEFAULT_CALLBACK
    from fsspec.compression import compr
    from fsspec.core import OpenFile, get_compression
    from fsspec.implementations.local import LocalFileSystem, make_path_posix
    from fsspec.spec import AbstractFileSystem
    from fsspec.utils import read_block

    from .path_expansion import copy_pairs, expanded, is_list


class _ByStore(type(AbstractFileSystem)):  # type: ignore[misc]  # fsspec has no annotations
    """fsspec caches file systems by their arguments. One without a store means the current AIS_LOADER_URL."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if not args and not kwargs.get("store"):
            kwargs["store"] = named_url()
        return super().__call__(*args, **kwargs)


class _BlockWriter(ObjectWriter):
    """A writer that stores nothing if an exception leaves the block of an `OpenFile` either, which does not tell the
    files that it closes."""

    def close(self) -> None:
        caller = sys._getframe().f_back  # None on a thread of another language
        left = None if caller is None else caller.f_back
        if left is not None and left.f_code is OpenFile.__exit__.__code__ and left.f_locals.get("args", (None,))[0]:
            self.give_up()
        super().close()


class AISFileSystem(AbstractFileSystem, metaclass=_ByStore):  # type: ignore[misc]  # fsspec has no annotations
    """The buckets and objects of a store as an fsspec file system.

    Args:
        store: The store's URL, as for `ais_loader.connect`. None means the value of AIS_LOADER_URL when the file system
            is requested.
        connect_options: Further arguments of `connect`: mode, options. With mode="a", an embedded store is held open
            for writing as long as the process lives. With mode="r", it is never written to.
        lock_wait_s: How long a write waits, in seconds, while another process has an embedded store open for writing
            and makes no progress. It waits longer as long as the other writes. 0 refuses the write immediately.

    Without a mode, an embedded store is read alongside any writer. It is locked for writing from the first write until
    a second after the last one. A file that is open for writing counts as a write until it is closed. `release_lock`
    releases the lock immediately. A write that has waited for `lock_wait_s` raises PermissionError, which names this
    option and the process that has the lock. The next write tries again. If there is no store, the first write creates
    it.

    This process reads what it writes through `ais://` immediately. It sees what others have replaced or deleted within
    one second, or immediately after `invalidate_cache`. If a thread opens small files of a node one after another in
    the order of their names, the next ones are fetched together, and are kept for that second.

    Errors are those of files if there is an equivalent: FileNotFoundError, FileExistsError, IsADirectoryError,
    PermissionError. Otherwise, they are from `ais_loader.errors`.
    """

    protocol = "ais"
    root_marker = ""

    def __init__(
        self,
        store: str | os.PathLike[str] | None = None,
        *,
        connect_options: dict[str, Any] | None = None,
        lock_wait_s: float = 10.0,
        **storage_options: Any,
    ) -> None:
        if not 0 <= lock_wait_s < float("inf"):
            raise ValueError(f"lock_wait_s={lock_wait_s!r}: need a number of seconds, 0 or more")
        super().__init__(**storage_options)
        self._lock_wait_s = lock_wait_s
        self._url = named_url(store)
        self._store = shared_store(self._url, connect_options)
        self._ahead = FilesAhead(self._store) if is_remote(self._url or "") else None

    @property
    def _client(self) -> Client:
        """The client for reading."""
        return self._store.reader()

    @contextmanager
    def _writing(self, path: str) -> Iterator[Client]:
        """Yield a client for writing. In this block, errors are those of files."""
        with as_files(path), ExitStack() as held:
            try:
                client = held.enter_context(self._store.writer(self._lock_wait_s))
            except errors.StoreLocked as error:
                told = "waits while the other makes no progress; a larger one waits longer"
                raise errors.StoreLocked(f"{error} (lock_wait_s={self._lock_wait_s:g}: a write {told})") from error
            yield client

    def release_lock(self) -> None:
        """Let others write to an embedded store now, unless this process is writing through `ais://`."""
        self._store.release()

    def invalidate_cache(self, path: str | None = None) -> None:
        """Make other processes' writes to an embedded store visible now. Otherwise, this takes a second."""
        super().invalidate_cache(path)
        self._store.forget()
        with suppress(errors.StoreNotFound):
            self._client.refresh()

    @property
    def fsid(self) -> str:
        return f"ais:{self._url}"

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        """Strip the protocol, and slashes at the ends. Names are literal: nothing in them is decoded."""
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        path = os.fspath(path)
        return path.removeprefix("ais://").strip("/")

    def _object(self, path: str) -> tuple[str, str]:
        """Return the names of the bucket and the object."""
        bucket, name = split(self._strip_protocol(path))
        if not bucket:
            raise IsADirectoryError("this is the store itself: need a path that begins with a bucket")
        if not name:
            raise IsADirectoryError(f"{path} is a bucket")
        return bucket, name

    def _bucket(self, name: str) -> Bucket:
        """Return a bucket for reading. Use it where errors become those of files."""
        return self._client.bucket(name)

    # -- what is there

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:
        path = self._strip_protocol(path)
        rows = self._rows(path)
        return rows if detail else [row["name"] for row in rows]

    def _rows(self, path: str) -> list[Row]:
        bucket_name, name = split(path)
        if not bucket_name:
            with as_files(path):
                return [folder_row(bucket.name) for bucket in self._client.buckets()]
        with as_files(path):
            bucket = self._bucket(bucket_name)
            rows = [level_row(bucket_name, one) for one in one_level(bucket, f"{name}/" if name else "")]
            if rows or not name:
                return rows
            return [file_row(bucket.head(name))]

    def find(
        self, path: str, maxdepth: int | None = None, withdirs: bool = False, detail: bool = False, **kwargs: Any
    ) -> Any:
        """Find all files below, with one listing. Folders and depths use the general implementation."""
        path = self._strip_protocol(path)
        bucket_name, name = split(path)
        if maxdepth is not None or withdirs or not bucket_name:
            return super().find(path, maxdepth=maxdepth, withdirs=withdirs, detail=detail, **kwargs)
        prefix = kwargs.get("prefix", "")
        try:
            bucket = self._bucket(bucket_name)
            infos: list[ObjectInfo] = list(bucket.objects(f"{name}/{prefix}" if name else prefix))
            if name and not prefix and not infos:
                infos = [bucket.head(name)]
        except (errors.NotFound, errors.StoreNotFound):
            infos = []
        found = {row["name"]: row for row in map(file_row, infos)}
        return found if detail else list(found)

    def info(self, path: str, **kwargs: Any) -> Row:
        path = self._strip_protocol(path)
        bucket_name, name = split(path)
        if not bucket_name:
            return folder_row("")
        if self._ahead is not None and (known := self._ahead.known(bucket_name, name)) is not None:
            return file_row(known.info)
        with as_files(path):
            bucket = self._bucket(bucket_name)
            if not name:
                bucket.info()
                return folder_row(path)
            try:
                return file_row(bucket.head(name))
            except errors.ObjectNotFound:
                if next(bucket.objects(f"{name}/", page_size=1), None) is None:
                    raise
                return folder_row(path)

    def _kind(self, path: str) -> str:
        """Return "file", "directory", or "" if there is neither. Raises the errors of a store that does not answer."""
        with suppress(FileNotFoundError, errors.InvalidName):
            return str(self.info(path)["type"])
        return ""

    def exists(self, path: str, **kwargs: Any) -> bool:
        return self._kind(path) != ""

    def isfile(self, path: str) -> bool:
        return self._kind(path) == "file"

    def isdir(self, path: str) -> bool:
        return self._kind(path) == "directory"

    def glob(self, path: str, maxdepth: int | None = None, **kwargs: Any) -> Any:
        """List what matches a pattern; only what has that very name, if there is something."""
        name = self._strip_protocol(path)
        if is_pattern(name) and self.exists(name):
            return {name: self.info(name)} if kwargs.get("detail") else [name]
        return super().glob(path, maxdepth=maxdepth, **kwargs)

    def expand_path(self, path: Any, recursive: bool = False, maxdepth: int | None = None, **kwargs: Any) -> list[str]:
        is_literal = kwargs.get("assume_literal", False) and not is_list(path)
        return sorted(expanded(self, [path] if is_literal else path, recursive, maxdepth))

    def modified(self, path: str) -> datetime.datetime:
        moment: datetime.datetime = self.info(path)["mtime"]
        return moment

    created = modified

    def ukey(self, path: str) -> str:
        """Return a key that differs if the contents differ."""
        return f"{self.fsid}/{self._strip_protocol(path)}@{self.info(path)['version']}"

    checksum = ukey

    # -- reading

    def _open(self, path: str, mode: str = "rb", block_size: int | None = None, **kwargs: Any) -> Any:
        bucket, name = self._object(path)
        if mode == "rb":
            read_ahead_bytes = READ_AHEAD_BYTES if block_size is None else 4 * block_size
            with as_files(path):
                if (cache_type := kwargs.get("cache_type")) is None:
                    client = self._client
                    if self._ahead is not None and (found := self._ahead.opened(client, bucket, name)) is not None:
                        return ObjectFile(
                            client._transport, found.info, read_ahead_bytes=read_ahead_bytes, content=found.content
                        )
                    return client.bucket(bucket).open(name, read_ahead_bytes=read_ahead_bytes)
                return BufferedFile(
                    self,
                    self._strip_protocol(path),
                    self._bucket(bucket),
                    name,
                    block_size=block_size,
                    cache_type=cache_type,
                    cache_options=kwargs.get("cache_options"),
                )
        if mode in ("wb", "xb"):
            if mode == "xb" and self.exists(path):
                raise FileExistsError(path)
            return _BlockWriter(
                partial(self._writing, path),
                bucket,
                name,
                autocommit=kwargs.get("autocommit", True),
                if_absent=mode == "xb",
                progressed=self._store.progressed,
            )
        raise no_writing(path, mode)

    def open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        cache_options: dict[str, Any] | None = None,
        compression: str | None = None,
        **kwargs: Any,
    ) -> Any:
        """Open a file. fsspec would not close what a compressor writes to, and close what text has failed to write."""
        if "r" in mode:
            return super().open(path, mode, block_size, cache_options, compression, **kwargs)
        text = {key: kwargs.pop(key) for key in ("encoding", "errors", "newline") if key in kwargs}
        kind = mode.replace("b", "").replace("t", "")
        file = super().open(path, f"{kind}b", block_size, cache_options, **kwargs)
        if (codec := get_compression(path, compression)) is not None:
            file = LayeredWriter(compr[codec](file, mode=kind), file)
        return file if "b" in mode else TextWriter(file, **text)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
        (found,) = self.cat_ranges([path], [start], [end], on_error="raise")
        assert isinstance(found, bytes)
        return found

    def cat(self, path: Any, recursive: bool = False, on_error: str = "raise", **kwargs: Any) -> Any:
        """Read all files with one GetBatch. See fsspec for what it returns."""
        paths = self.expand_path(path, recursive=recursive)
        if len(paths) == 1 and paths[0] == self._strip_protocol(path):
            return self.cat_file(paths[0])
        if recursive:
            paths = [one for one in paths if self.isfile(one)]
        found = self.cat_ranges(paths, [None] * len(paths), [None] * len(paths), on_error="return")
        contents: dict[str, Any] = {}
        for one, data in zip(paths, found, strict=True):
            if isinstance(data, Exception) and on_error == "raise":
                raise data
            if not isinstance(data, Exception) or on_error == "return":
                contents[one] = data
        return contents

    def cat_ranges(
        self,
        paths: list[str],
        starts: Any,
        ends: Any,
        max_gap: int | None = None,
        on_error: str = "return",
        **kwargs: Any,
    ) -> list[bytes | Exception]:
        """Read all ranges with one GetBatch. Like slices of bytes, ranges end where their file ends."""
        starts = [starts] * len(paths) if not isinstance(starts, list) else starts
        ends = [ends] * len(paths) if not isinstance(ends, list) else ends
        if len(starts) != len(paths) or len(ends) != len(paths):
            raise ValueError(f"{len(paths)} paths, {len(starts)} starts, {len(ends)} ends")
        entries = [self._entry(path, start, end) for path, start, end in zip(paths, starts, ends, strict=True)]
        found: list[bytes | Exception] = []
        with as_files(self.fsid):
            items = self._client.get_batch(entries, on_error="placeholder")
        for item in items:
            result: bytes | Exception = item.tobytes()
            if isinstance(item.error, errors.RangeError):  # a range passes the end
                result = self._clamped(item.entry)
            elif isinstance(item.error, errors.NotFound):
                result = FileNotFoundError(paths[item.index])
            elif item.error is not None:
                result = item.error
            if isinstance(result, Exception) and on_error == "raise":
                raise result
            found.append(result)
        return found

    def _entry(self, path: str, start: int | None, end: int | None) -> Entry:
        bucket, name = self._object(path)
        first, stop = start or 0, end
        if first < 0 or (stop is not None and stop < 0):
            size = 0
            with suppress(FileNotFoundError):  # the batch reports it, in its place
                size = int(self.info(path)["size"])
            first = max(0, size + first) if first < 0 else first
            stop = size + stop if stop is not None and stop < 0 else stop
        return Entry(bucket, name, start=first, length=None if stop is None else max(0, stop - first))

    def _clamped(self, entry: Entry) -> bytes | Exception:
        try:
            bucket = self._bucket(entry.bucket)
            size = bucket.head(entry.name).size_bytes
            start = min(entry.start, size)
            length = size - start if entry.length is None else min(entry.length, size - start)
            return bucket.get(entry.name, start=start, length=length)
        except errors.LoaderError as error:
            return error

    # fsspec would use the attribute `size` of its files, which is a method of ours.

    def tail(self, path: str, size: int = 1024) -> bytes:
        return self.cat_file(path, start=-size) if size else b""

    def read_block(self, fn: str, offset: int, length: int | None, delimiter: bytes | None = None) -> bytes:
        with self.open(fn) as file:
            return bytes(read_block(file, offset, length, delimiter))

    def get_file(self, rpath: str, lpath: Any, callback: Any = None, outfile: Any = None, **kwargs: Any) -> None:
        if outfile is None and self.isdir(rpath):
            os.makedirs(lpath, exist_ok=True)
            return
        bucket, name = self._object(rpath)
        with as_files(rpath), self._bucket(bucket).reader(name) as reader:
            if callback is not None:
                callback.set_size(reader.info.size_bytes)
            if outfile is None:
                os.makedirs(os.path.dirname(lpath) or ".", exist_ok=True)
            with open(lpath, "wb") if outfile is None else nullcontext(outfile) as target:
                for chunk in reader.chunks():
                    target.write(chunk)
                    if callback is not None:
                        callback.relative_update(len(chunk))

    def get(
        self,
        rpath: Any,
        lpath: Any,
        recursive: bool = False,
        callback: Any = DEFAULT_CALLBACK,
        maxdepth: int | None = None,
        **kwargs: Any,
    ) -> None:
        lpath = lpath if is_list(lpath) else make_path_posix(os.fspath(lpath))
        pairs = copy_pairs(self, rpath, LocalFileSystem(), lpath, recursive, maxdepth)
        super().get(*pairs, callback=callback, **kwargs)

    # -- writing

    def put(
        self,
        lpath: Any,
        rpath: Any,
        recursive: bool = False,
        callback: Any = DEFAULT_CALLBACK,
        maxdepth: int | None = None,
        **kwargs: Any,
    ) -> None:
        pairs = copy_pairs(LocalFileSystem(), lpath, self, rpath, recursive, maxdepth)
        super().put(*pairs, callback=callback, **kwargs)

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        bucket, name = self._object(path)
        with self._writing(path) as client:
            client.bucket(bucket).put(name, value, if_absent=mode == "create")

    def pipe(self, path: Any, value: bytes | None = None, **kwargs: Any) -> None:
        """Write many objects of a bucket with one request."""
        if isinstance(path, str):
            return self.pipe_file(path, value or b"", **kwargs)
        by_bucket: dict[str, list[tuple[str, bytes]]] = {}
        for one, data in path.items():
            bucket, name = self._object(one)
            by_bucket.setdefault(bucket, []).append((name, data))
        for bucket_name, pairs in by_bucket.items():
            with self._writing(bucket_name) as client:
                client.bucket(bucket_name).put_many(pairs, if_absent=kwargs.get("mode") == "create")
        return None

    def put_file(self, lpath: Any, rpath: str, callback: Any = None, mode: str = "overwrite", **kwargs: Any) -> None:
        if os.path.isdir(lpath):
            return
        bucket, name = self._object(rpath)
        with self._writing(rpath) as client:
            stored = client.bucket(bucket).put(name, Path(lpath), if_absent=mode == "create")
        if callback is not None:
            callback.set_size(stored.size_bytes)
            callback.relative_update(stored.size_bytes)

    def copy(self, path1: Any, path2: Any, recursive: bool = False, maxdepth: int | None = None, **kwargs: Any) -> None:
        super().copy(*copy_pairs(self, path1, self, path2, recursive, maxdepth), recursive=recursive, **kwargs)

    def mv(self, path1: Any, path2: Any, recursive: bool = False, maxdepth: int | None = None, **kwargs: Any) -> None:
        """Move files, each of which is removed after it was copied."""
        sources, targets = copy_pairs(self, path1, self, path2, recursive, maxdepth)
        if not sources:
            raise IsADirectoryError(f"{path1} is a folder: recursive=True moves what is in it")
        for source, target in zip(sources, targets, strict=True):
            if self._object(source) != self._object(target):
                self.cp_file(source, target)
                self.rm_file(source)

    def cp_file(self, path1: str, path2: str, **kwargs: Any) -> None:
        """Copy an object with its metadata, within the store. Raises FileNotFoundError."""
        source, name = self._object(path1)
        target, new_name = self._object(path2)
        if (source, name) != (target, new_name):
            with self._writing(path1) as client:
                client.bucket(source).copy(name, new_name, to_bucket=target)

    def rm_file(self, path: str) -> None:
        bucket, name = self._object(path)
        with self._writing(path) as client:
            client.bucket(bucket).delete(name)

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        """Remove paths. With `recursive`, a bucket is removed with its objects."""
        for one in path if is_list(path) else [path]:
            one = self._strip_protocol(one)
            bucket_name, name = split(one)
            if not name:
                if not recursive:
                    raise IsADirectoryError(f"{one} is a bucket: recursive=True removes it with its objects")
                with self._writing(one) as client:
                    client.delete_bucket(bucket_name, force=True)
                continue
            for file in self.expand_path([one] if is_list(path) else one, recursive, maxdepth):
                if (kind := self._kind(file)) == "file":
                    self.rm_file(file)
                elif not kind and not recursive:
                    raise FileNotFoundError(file)
                elif not recursive:
                    raise IsADirectoryError(f"{file} is a folder: recursive=True removes what is in it")

    def mkdir(self, path: str, create_parents: bool = True, **kwargs: Any) -> None:
        """Create the bucket. Folders exist when there is something in them."""
        bucket_name, name = split(self._strip_protocol(path))
        if name and not create_parents:
            with as_files(bucket_name):
                self._bucket(bucket_name).info()
            return
        self.makedirs(path)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        bucket_name, name = split(self._strip_protocol(path))
        with self._writing(path) as client:
            client.create_bucket(bucket_name, exist_ok=exist_ok or bool(name))

    def rmdir(self, path: str) -> None:
        bucket_name, name = split(self._strip_protocol(path))
        if name:
            return  # a folder ends with its last object
        with self._writing(path) as client:
            client.delete_bucket(bucket_name)
