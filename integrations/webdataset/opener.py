"""WebDataset's opener for `ais://`: reads shards from the store and writes them to it, without a process per shard.

WebDataset has one table of openers per process, by URL scheme, in which `ais` belongs to AIStore's command line tool.
`install` replaces that entry, and lets the stages that open shards read the next ones ahead. A spawned worker does not
receive the table. A pickled pipeline therefore carries the settings of `install`, so that you need not call it there.

Source: webdataset 1.0.2, gopen.py, cache.py, tariterators.py, pipeline.py.
"""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

from ais_loader import Entry, errors
from ais_loader.extras import needs

from ..object_writer import ObjectWriter
from ..shared_store import StoreReference
from .shard_stream import ShardStream
from .shards_ahead import ahead, take_ahead

with needs("webdataset", "shards as WebDataset reads them"):
    from webdataset import cache, pipeline, tariterators
    from webdataset.gopen import gopen_schemes

_SCHEME = "ais"
WINDOW_BYTES = 16 << 20
"""The window of one shard."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The arguments of `install`, in a form that crosses into other processes."""

    store: StoreReference = field(default_factory=StoreReference)
    read_ahead_bytes: int = 4 * WINDOW_BYTES
    timeout_s: float = 30.0
    require_end: bool = True

    def __post_init__(self) -> None:
        if self.read_ahead_bytes < 1:
            raise errors.InvalidRequest(f"read_ahead_bytes={self.read_ahead_bytes}: need at least 1")
        if not self.timeout_s > 0:
            raise errors.InvalidRequest(f"timeout_s={self.timeout_s}: need more than 0")

    @property
    def shards(self) -> int:
        """The number of shards that are read at a time."""
        return max(1, self.read_ahead_bytes // WINDOW_BYTES)

    @property
    def window_bytes(self) -> int:
        return self.read_ahead_bytes // self.shards


_settings: Settings | None = None
_before: dict[str, Any] = {}
"""Originals that `install` has replaced."""
_lock = threading.Lock()


def install(
    store: str | os.PathLike[str] | None = None,
    *,
    read_ahead_bytes: int = 4 * WINDOW_BYTES,
    timeout_s: float = 30.0,
    require_end: bool = True,
) -> None:
    """Let WebDataset read `ais://bucket/shard.tar` as a shard of the store.

    This applies to all of WebDataset in this process, and to forked or spawned workers that receive one of its
    pipelines. Calling it again changes the settings.

    Args:
        store: The store's URL, as for `ais_loader.connect`. None means the value of AIS_LOADER_URL when a shard is
            opened.
        read_ahead_bytes: The most data that a pipeline holds ahead of its consumer, in each process, in windows of 16
            MiB: one for the shard in use, the others for the next ones. With fewer than two windows, no shard is read
            ahead.
        timeout_s: The longest time to wait for the store's next data.
        require_end: Whether a plain tar must have an end of archive. One without it was truncated, or comes from a
            writer that leaves it out.

    Raises InvalidRequest.
    """
    _install(Settings(StoreReference(store), read_ahead_bytes, timeout_s, require_end))


def _install(settings: Settings) -> None:
    global _settings
    with _lock:
        _settings = settings
        if not _before:
            _before.update(
                opener=gopen_schemes.get(_SCHEME),
                streaming_open=cache.StreamingOpen.__call__,
                url_opener=tariterators.url_opener,
                reduce_ex=pipeline.DataPipeline.__reduce_ex__,
            )
            gopen_schemes[_SCHEME] = open_shard
            _replace(cache.StreamingOpen, "__call__", _opening_ahead(_before["streaming_open"], at=1))
            _replace(tariterators, "url_opener", _opening_ahead(_before["url_opener"], at=0))
            _replace(pipeline.DataPipeline, "__reduce_ex__", _reduce_installed)


def installed_url() -> str | None:
    """Return the URL that `install` was given, or None if it was given none or was not called."""
    return _settings.store.url if _settings is not None else None


def uninstall() -> None:
    """Undo `install`. Open shards stay open."""
    global _settings
    with _lock:
        _settings = None
        if _before:
            if _before["opener"] is None:
                gopen_schemes.pop(_SCHEME, None)
            else:
                gopen_schemes[_SCHEME] = _before["opener"]
            _replace(cache.StreamingOpen, "__call__", _before["streaming_open"])
            _replace(tariterators, "url_opener", _before["url_opener"])
            _replace(pipeline.DataPipeline, "__reduce_ex__", _before["reduce_ex"])
            _before.clear()


def _replace(owner: object, name: str, value: object) -> None:
    setattr(owner, name, value)


def open_shard(url: str, mode: str = "rb", bufsize: int = 8192) -> io.BufferedIOBase:
    """Open a shard, as WebDataset's `gopen` does for `ais://`. Names are literal, including `#`, `?`, `%` and blanks.

    For reading, this waits until the shard is open and, if it is an archive, has an index. What you write becomes an
    object, as a whole, when the file is closed. If the file is dropped, nothing is stored.

    Raises ObjectNotFound, BucketNotFound, ArchiveDamaged, InvalidRequest, NodeUnavailable, SilenceTimeout; StoreLocked.
    """
    settings = _settings or Settings()
    entry = Entry.from_url(url)
    if mode == "wb":
        if entry.member is not None:
            raise errors.InvalidRequest(f"{url}: a member of an archive cannot be written; write the archive")
        return ObjectWriter(settings.store.writer, entry.bucket, entry.name, progressed=settings.store.progressed)
    if mode != "rb":
        raise errors.InvalidRequest(f"{url}: mode {mode!r}: shards are read, 'rb', or written whole, 'wb'")
    if entry.member is not None:
        data = settings.store.reader().bucket(entry.bucket).get(entry.name, member=entry.member)
        return io.BytesIO(data)
    stream = take_ahead(url) or _begin(url, settings)
    assert stream is not None
    try:
        stream.wait_open()
    except BaseException:
        stream.close()
        raise
    return stream


def _begin(url: str, settings: Settings) -> ShardStream | None:
    entry = Entry.from_url(url)
    if entry.member is not None:
        return None
    return ShardStream(
        settings.store.reader(),
        entry.bucket,
        entry.name,
        window_bytes=settings.window_bytes,
        timeout_s=settings.timeout_s,
        require_end=settings.require_end,
    )


def _begin_ahead(url: str, settings: Settings) -> ShardStream | None:
    """Begin a shard, or return None if that fails. The opener then meets the error in its place."""
    try:
        return _begin(url, settings)
    except errors.LoaderError:
        return None


def _opening_ahead(stage: Callable[..., Any], at: int) -> Callable[..., Any]:
    """Wrap a stage that opens shards, whose source is its argument number `at`."""

    @wraps(stage)
    def with_ahead(*arguments: Any, **options: Any) -> Any:
        settings = _settings
        if settings is None or len(arguments) <= at:
            return stage(*arguments, **options)
        source: Iterable[Any] = arguments[at]
        items = ahead(source, settings.shards, lambda url: _begin_ahead(url, settings))
        return _closing(stage, (*arguments[:at], items, *arguments[at + 1 :]), options, items)

    return with_ahead


def _closing(
    stage: Callable[..., Any], arguments: tuple[Any, ...], options: dict[str, Any], items: Generator[Any, None, None]
) -> Iterator[Any]:
    try:
        yield from stage(*arguments, **options)
    finally:
        items.close()


def _reduce_installed(self: Any, protocol: Any) -> Any:
    """Let a pickled pipeline install the opener where it is unpickled."""
    reduced = _before.get("reduce_ex", object.__reduce_ex__)(self, protocol)
    if _settings is None or not isinstance(reduced, tuple):
        return reduced
    make, arguments, *rest = reduced
    return _make_installed, (_settings, make, arguments), *rest


def _make_installed(settings: Settings, make: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    if _settings is None:  # a process with settings of its own keeps them
        _install(settings)
    return make(*arguments)
