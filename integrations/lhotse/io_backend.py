"""IO backend of Lhotse for `ais://`: manifests, shards, features and audio are read from objects and members of
archives, and written as whole objects, wherever Lhotse opens a path.

`ais://bucket/name` is an object, `ais://bucket/shard.tar/member` a member of one; what ends in `.gz` is unpacked and
packed on the way. Both kinds of files seek. An object is stored when its file is closed, whole or not at all: nothing
is stored when the `with` block of the file is left by an exception, or the file is dropped without being closed.

Installed, it stands before Lhotse's own backends, one of which takes every path with `.tar/` in it for a local one.

Interface: `IOBackend` in lhotse/serialization.py (1.33 and 2.0).
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO, Any, NoReturn, cast

from lhotse import serialization
from lhotse.audio import AudioLoadingError

from ais_loader import Client, Entry, errors
from ais_loader.urls import SCHEME, split_member, split_url

from ..file_errors import as_files
from ..object_writer import ObjectWriter
from ..shared_store import StoreReference
from .text_and_gzip import GzipReader, GzipWriter, TextWriter

_COLLAPSED = "ais:/"
"""What pathlib makes of the scheme."""


class ObjectMissing(FileNotFoundError, AudioLoadingError):  # type: ignore[misc]  # Lhotse is not type-checked here
    """No such object, member or bucket; where Lhotse tolerates audio that cannot be loaded, it tolerates this too."""


class AISIOBackend(serialization.IOBackend):  # type: ignore[misc]  # Lhotse is not type-checked here
    """Files behind `ais://` URLs; other paths are left to Lhotse's defaults. Pickles."""

    def __init__(self, store: str | os.PathLike[str] | None = None) -> None:
        """`store`: its URL, as `ais_loader.connect` takes it; None: AIS_LOADER_URL, as it is when a file is opened."""
        self.store = StoreReference(store)

    def handles_special_case(self, identifier: Any) -> bool:
        return ais_url(identifier) is not None

    def is_applicable(self, identifier: Any) -> bool:
        return self.handles_special_case(identifier)

    def open(self, identifier: Any, mode: str = "r") -> IO[Any]:
        """A file; text is UTF-8. Modes: `r`, to read, `w`, to write, `x`, to write where nothing is; `b`, `t`.

        What cannot be opened to be read is told by the first use of the file: for what is raised here Lhotse puts the
        advice to install other packages. Reading raises ObjectMissing, and what reading an object raises; for writing
        PermissionError, FileExistsError, io.UnsupportedOperation and ValueError come here, others when it is closed.
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
        packing = GzipWriter(writer) if packed else writer
        return TextWriter(packing) if text else cast(IO[bytes], packing)

    def _open_bytes(self, url: str) -> io.BufferedIOBase:
        try:
            return open_bytes(url, self.store.reader())
        except (errors.LoaderError, OSError) as error:
            return _Unreadable(error)


def ais_url(identifier: Any) -> str | None:
    """The `ais://` URL that a str or a Path means, or None."""
    text = str(identifier)
    return f"{SCHEME}{text.removeprefix(_COLLAPSED).removeprefix('/')}" if text.startswith(_COLLAPSED) else None


def open_bytes(url: str, client: Client) -> io.BufferedIOBase:
    """An object, or a member of an archive, as a seekable binary file. Raises ObjectMissing, LoaderError."""
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
    """What could not be opened: whoever reads it is told why."""

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
    """`r`, `w` or `x`, and whether it is text."""
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
    return ObjectWriter(writing, bucket, name, if_absent=if_absent)


def install_io_backend(store: str | os.PathLike[str] | None = None) -> None:
    """Have Lhotse open `ais://` through us in this process, before all its other backends. May be called again.

    What Lhotse calls "default" includes it from now on, and so does the backend in use, if that is another.
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
