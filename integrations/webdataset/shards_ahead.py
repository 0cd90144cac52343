"""Shards ahead: reads the next shards of an iteration while the previous one is in use.

WebDataset opens a shard when the previous one has ended, and so waits at the beginning of each. Here, the stages that
open shards receive their URLs through `ahead`, which draws a few URLs before they are needed, starts to read those of
the store, and leaves the streams where the opener finds them.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable
from typing import Any

from ais_loader.values.urls import SCHEME

from .shard_stream import ShardStream

_waiting: dict[ShardStream, str] = {}
"""URLs of streams that were begun and not taken. Without a lock: the garbage collector closes iterators at any time."""
os.register_at_fork(after_in_child=_waiting.clear)  # the parent reads them


def take_ahead(url: str) -> ShardStream | None:
    """Return an unread stream of this shard, if `ahead` started one."""
    for stream in list(_waiting):
        if _waiting.get(stream) == url and _waiting.pop(stream, None) is not None:
            return stream
    return None


def ahead(source: Iterable[Any], shards: int, begin: Callable[[str], ShardStream | None]) -> Generator[Any, None, None]:
    """Yield the items of `source`, URLs or `{"url": …}`, with up to `shards` of the store started, the next ones first.

    Nothing is drawn past a URL that is not one of the store, because a source of files may move a file when asked for
    the next one. `begin` returns None for a shard that it does not read ahead. When the iterator is closed, streams
    that were started but not taken are closed.
    """
    rest = iter(source)
    drawn: deque[tuple[Any, ShardStream | None]] = deque()
    try:
        while True:
            while len(drawn) < shards and (not drawn or drawn[-1][1] is not None):
                item = next(rest, _END)
                if item is _END:
                    break
                drawn.append(_opened(item, begin))
            if not drawn:
                return
            yield drawn[0][0]  # the opener takes the stream here
            drawn.popleft()
    finally:
        for _, stream in drawn:
            if stream is not None and _waiting.pop(stream, None) is not None:  # the opener has not taken it
                stream.close()


def _opened(item: Any, begin: Callable[[str], ShardStream | None]) -> tuple[Any, ShardStream | None]:
    url = item.get("url") if isinstance(item, dict) else item
    if not isinstance(url, str) or not url.startswith(SCHEME):
        return item, None
    stream = begin(url)
    if stream is not None:
        _waiting[stream] = url
    return item, stream


_END = object()
