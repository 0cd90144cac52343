"""WebDataset's opener for `ais://`: shards read from and written to the store, in place of a process for each.

WebDataset has one table of openers for a process, by the URL's scheme, in which `ais` belongs to AIStore's command
line tool. `install` puts ours there, and gives the stages that open shards the next ones ahead. The table is not part
of what crosses into a worker that is spawned; so that it need not be filled there by hand, a pipeline that is pickled
takes the settings of `install` with it.

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
"""Of one shard."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What `install` was told, as it crosses into other processes."""

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
        """How many are read at a time."""
        return max(1, self.read_ahead_bytes // WINDOW_BYTES)

    @property
    def window_bytes(self) -> int:
        return self.read_ahead_bytes // self.shards


_settings: Settings | None = None
_before: dict[str, Any] = {}
"""What was where `install` has put something else."""
_lock = threading.Lock()


def install(
    store: str | os.PathLike[str] | None = None,
    *,
    read_ahead_bytes: int = 4 * WINDOW_BYTES,
    timeout_s: float = 30.0,
    require_end: bool = True,
) -> None:
    """From now on `ais://bucket/shard.tar` is a shard of the store for all of WebDataset in this process, and in
    workers to which one of its pipelines goes, whether they are forked or spawned. Called again, it changes the
    settings.

    Args:
        store: its URL, as `ais_loader.connect` takes it; None: what AIS_LOADER_URL says when a shard is opened.
        read_ahead_bytes: most that a pipeline holds ahead of its consumer, in each process, in windows of 16 MiB: one
            is of the shard that is being used, the others of those that come next. Less than two: no shard ahead.
        timeout_s: longest silence of the store.
        require_end: of a plain tar, that it has its end of archive: one that has not was cut off, or comes from a
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


def uninstall() -> None:
    """As it was before `install`; shards that are open stay so."""
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
    """What WebDataset's `gopen` calls for `ais://`. Names are literal: `#`, `?`, `%` and blanks are characters of them.

    Reading waits until the shard is open, and has an index if it is an archive. What is written becomes an object when
    it is closed, whole, and is nothing when it is dropped.

    Raises ObjectNotFound, BucketNotFound, ArchiveDamaged, InvalidRequest, NodeUnavailable, SilenceTimeout; StoreLocked.
    """
    settings = _settings or Settings()
    entry = Entry.from_url(url)
    if mode == "wb":
        if entry.member is not None:
            raise errors.InvalidRequest(f"{url}: a member of an archive cannot be written; write the archive")
        return ObjectWriter(settings.store.writer, entry.bucket, entry.name)
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
    """None where something is wrong: the opener meets it again, in its place."""
    try:
        return _begin(url, settings)
    except errors.LoaderError:
        return None


def _opening_ahead(stage: Callable[..., Any], at: int) -> Callable[..., Any]:
    """A stage that opens shards, whose source is its argument number `at`."""

    @wraps(stage)
    def with_ahead(*arguments: Any, **options: Any) -> Any:
        settings = _settings
        if settings is None or len(arguments) <= at:
            return stage(*arguments, **options)
        source: Iterable[Any] = arguments[at]
        begun = ahead(source, settings.shards, lambda url: _begin_ahead(url, settings))
        return _closing(stage, (*arguments[:at], begun, *arguments[at + 1 :]), options, begun)

    return with_ahead


def _closing(
    stage: Callable[..., Any], arguments: tuple[Any, ...], options: dict[str, Any], begun: Generator[Any, None, None]
) -> Iterator[Any]:
    try:
        yield from stage(*arguments, **options)
    finally:
        begun.close()


def _reduce_installed(self: Any, protocol: Any) -> Any:
    """A pipeline that is pickled installs the opener where it arrives."""
    reduced = _before.get("reduce_ex", object.__reduce_ex__)(self, protocol)
    if _settings is None or not isinstance(reduced, tuple):
        return reduced
    make, arguments, *rest = reduced
    return _make_installed, (_settings, make, arguments), *rest


def _make_installed(settings: Settings, make: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    if _settings is None:  # in a process that has settings of its own they stay
        _install(settings)
    return make(*arguments)
