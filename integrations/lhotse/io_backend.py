"""IO backend of Lhotse for `ais://`. Wherever Lhotse opens a path, manifests, shards, features and audio are read from
objects and archive members, and written as whole objects.

`ais://bucket/name` is an object, and `ais://bucket/shard.tar/member` a member of one. Names that end in `.gz` are
decompressed and compressed on the fly. Files of both kinds are seekable. An object is stored when its file is closed,
as a whole or not at all: nothing is stored if an exception leaves the file's `with` block, or if the file is dropped
without being closed.

Once installed, this backend precedes Lhotse's own, one of which treats every path that contains `.tar/` as a local one.

Interface: `IOBackend` in lhotse/serialization.py (1.33 and 2.0).
"""

from __future__ import annotations

import gzip
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO, Any, NoReturn, cast

from lhotse import serialization
from lhotse.audio import AudioLoadingError

from ais_loader import Client, Entry, errors
from ais_loader.values.urls import SCHEME, split_member, split_url

from ..file_errors import as_files
from ..object_writer import LayeredWriter, ObjectWriter, TextWriter
from ..shared_store import StoreReference
from .gzip_reader import GzipReader

_COLLAPSED = "ais:/"
"""Form of the scheme after pathlib has collapsed its slashes."""


class ObjectMissing(FileNotFoundError, AudioLoadingError):  # type: ignore[misc]  # Lhotse is not type-checked here
    """There is no such object, member or bucket. Lhotse tolerates this wherever it tolerates failed audio loading."""


class AISIOBackend(serialization.IOBackend):  # type: ignore[misc]  # Lhotse is not type-checked here
    """Opens files behind `ais://` URLs. Other paths are left to Lhotse's defaults. It can be pickled."""

    def __init__(self, store: str | os.PathLike[str] | None = None) -> None:
        """`store`: The store's URL, as for `ais_loader.connect`. None means AIS_LOADER_URL when a file is opened."""
        self.store = StoreReference(store)

    def handles_special_case(self, identifier: Any) -> bool:
        return ais_url(identifier) is not None

    def is_applicable(self, identifier: Any) -> bool:
        return self.handles_special_case(identifier)

    def open(self, identifier: Any, mode: str = "r") -> IO[Any]:
        """Open a file. Text is UTF-8. Modes: `r` to read, `w` to write, `x` to write a new file; `b`, `t`.

        If a file cannot be opened for reading, its first use raises the error, because Lhotse would replace an error
        raised here with advice to install other packages. Reading raises ObjectMissing, and the errors of reading an
        object. For writing, PermissionError, FileExistsError, io.UnsupportedOperation and ValueError are raised here,
        and other errors when the file is closed.
        """
        url = ais_url(identifier)
        if url is None:
            return cast(IO[Any], serialization.get_default_io_backend().open(identifier, mode))
        kind, text = _parse_mode(url, mode)
        packed = url.endswith(".gz")
        if kind == "r":
            raw = self._open_bytes(url)
            unpacked: Any = GzipReader(raw, url) if packed else raw
            return io.TextIOWrapper(unpacked, encoding="utf-8") if text else cast(IO[bytes], unpacked)
        writer = _writer(url, self.store, if_absent=kind == "x")
        packing: Any = writer
        if packed:  # without a time, so that equal contents are equal bytes
            packing = LayeredWriter(gzip.GzipFile("", "wb", fileobj=writer, mtime=0), writer)
        return TextWriter(packing, encoding="utf-8") if text else cast(IO[bytes], packing)

    def _open_bytes(self, url: str) -> io.BufferedIOBase:
        try:
            return open_bytes(url, self.store.reader())
        except (errors.LoaderError, OSError) as error:
            return _Unreadable(error)


def ais_url(identifier: Any) -> str | None:
    """Return the `ais://` URL that a str or a Path stands for, or None."""
    text = str(identifier)
    return f"{SCHEME}{text.removeprefix(_COLLAPSED).removeprefix('/')}" if text.startswith(_COLLAPSED) else None


def open_bytes(url: str, client: Client) -> io.BufferedIOBase:
    """Open an object or an archive member as a seekable binary file. Raises ObjectMissing, LoaderError."""
    bucket, name = split_url(url)
    name, member = split_member(name)
    try:
        if member is None:
            return client.bucket(bucket).open(name)
        try:
            [item] = client.get_batch([Entry(bucket, name, member)])
        except errors.ItemTooLarge:
            return client.bucket(bucket).open(name, member=member)
        return io.BytesIO(item.data)  # most members are small
    except errors.NotFound as error:
        raise ObjectMissing(f"{url}: {error}") from error


class _Unreadable(io.BufferedIOBase):
    """A file that could not be opened. Reading it raises the reason."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def _tell(self, *_: object) -> NoReturn:
        raise self._error

    read = read1 = readinto = readinto1 = readline = peek = seek = tell = _tell


def _parse_mode(url: str, mode: str) -> tuple[str, bool]:
    """Return `r`, `w` or `x`, and whether the mode is text."""
    kind = mode.replace("b", "").replace("t", "")
    if len(set(mode)) < len(mode) or {"b", "t"} <= set(mode) or len(kind) != 1:
        raise ValueError(f"{url}: mode {mode!r}: need 'r', 'w' or 'x', and 'b' for bytes")
    if kind not in "rwx":
        raise io.UnsupportedOperation(f"{url}: mode {mode!r}: objects are read, or written whole: 'r', 'w' or 'x'")
    return kind, "b" not in mode


def _writer(url: str, store: StoreReference, *, if_absent: bool) -> ObjectWriter:
    bucket, name = split_url(url)
    shard, member = split_member(name)
    if member is not None:
        raise io.UnsupportedOperation(f"{url}: a member of {shard!r} cannot be written by itself: write the archive")

    @contextmanager
    def writing() -> Iterator[Client]:
        with as_files(url), store.writer() as client:
            yield client

    if if_absent:
        with suppress(errors.NotFound, errors.StoreNotFound):
            store.reader().bucket(bucket).head(name)
            raise FileExistsError(url)
    return ObjectWriter(writing, bucket, name, if_absent=if_absent, progressed=store.progressed)


def install_io_backend(store: str | os.PathLike[str] | None = None) -> None:
    """Let Lhotse open `ais://` through this backend in this process, before all others. May be called again.

    From then on, Lhotse's "default" backend includes it, and so does the current backend, if that is a different one.
    """
    default = serialization.get_default_io_backend()
    _prepend(default, store)
    current = serialization.get_current_io_backend()
    if isinstance(current, AISIOBackend):
        current.store = StoreReference(store)
    elif isinstance(current, serialization.CompositeIOBackend):
        _prepend(current, store)
    else:
        serialization.set_current_io_backend(serialization.CompositeIOBackend([AISIOBackend(store), current]))


def _prepend(composite: Any, store: str | os.PathLike[str] | None) -> None:
    others = [backend for backend in composite.backends if not isinstance(backend, AISIOBackend)]
    composite.backends = [AISIOBackend(store), *others]
