"""Shards ahead: reads the next shards of an iteration while the previous one is in use.

WebDataset opens a shard when the previous one has ended, and so waits at the beginning of each. Here, the stages that
open shards receive their URLs through `ahead`, which draws a few URLs before they are needed, starts to read those of
the store, and leaves the streams where the opener finds them.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Generator, Iterable
from typing import Any

from ais_loader.values.urls import SCHEME

from .shard_stream import ShardStream

_waiting: defaultdict[str, deque[ShardStream]] = defaultdict(deque)  # guarded by _lock
_lock = threading.Lock()


def take_ahead(url: str) -> ShardStream | None:
    """Return an unread stream of this shard, if `ahead` started one."""
    with _lock:
        streams = _waiting.get(url)
        if not streams:
            return None
        stream = streams.popleft()
        if not streams:
            del _waiting[url]
        return stream


def ahead(source: Iterable[Any], shards: int, begin: Callable[[str], ShardStream | None]) -> Generator[Any, None, None]:
    """Yield the items of `source`, URLs or `{"url": …}`, with up to `shards` of the store started, the next ones first.

    Nothing is drawn past a URL that is not one of the store, because a source of files may move a file when asked for
    the next one. `begin` returns None for a shard that it does not read ahead. When the iterator is closed, streams
    that were started but not taken are closed.
    """
    rest = iter(source)
    drawn: deque[tuple[Any, str, ShardStream | None]] = deque()
    try:
        while True:
            while len(drawn) < shards and (not drawn or drawn[-1][2] is not None):
                item = next(rest, _END)
                if item is _END:
                    break
                drawn.append(_opened(item, begin))
            if not drawn:
                return
            item, _, _ = drawn[0]
            yield item  # the opener takes the stream here
            drawn.popleft()
    finally:
        for _, url, stream in drawn:
            if stream is not None and _withdraw(url, stream):
                stream.close()


def _opened(item: Any, begin: Callable[[str], ShardStream | None]) -> tuple[Any, str, ShardStream | None]:
    url = item.get("url") if isinstance(item, dict) else item
    if not isinstance(url, str) or not url.startswith(SCHEME):
        return item, "", None
    stream = begin(url)
    if stream is not None:
        with _lock:
            _waiting[url].append(stream)
    return item, url, stream


def _withdraw(url: str, stream: ShardStream) -> bool:
    """Remove a stream. Returns False if the opener has taken it."""
    with _lock:
        streams = _waiting.get(url, deque())
        if stream not in streams:
            return False
        streams.remove(stream)
        if not streams:
            del _waiting[url]
        return True


_END = object()
