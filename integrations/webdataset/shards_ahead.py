"""Shards ahead: the next ones of an iteration, being read while the one before them is used.

WebDataset opens a shard when the one before it has ended, and so waits for each at its beginning. The stages of its
pipelines that open shards are given their URLs through `ahead` instead, which draws a few before they are needed,
begins to read those of the store, and leaves them where the opener finds them.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Generator, Iterable
from typing import Any

from ais_loader.urls import SCHEME

from .shard_stream import ShardStream

_waiting: defaultdict[str, deque[ShardStream]] = defaultdict(deque)  # guarded by _lock
_lock = threading.Lock()


def take_ahead(url: str) -> ShardStream | None:
    """A stream of this shard that nobody has read from, if `ahead` began one."""
    with _lock:
        streams = _waiting.get(url)
        if not streams:
            return None
        stream = streams.popleft()
        if not streams:
            del _waiting[url]
        return stream


def ahead(source: Iterable[Any], shards: int, begin: Callable[[str], ShardStream | None]) -> Generator[Any, None, None]:
    """What `source` yields, URLs or `{"url": …}`, with up to `shards` of the store begun: the next and those behind it.

    Nothing is drawn ahead of a URL that is not of the store, since what yields files may move them when it is asked for
    the next one. `begin` returns None for what it does not read ahead. What was begun and not taken is given up when
    the iterator is closed.
    """
    rest = iter(source)
    drawn: deque[tuple[Any, str, ShardStream | None]] = deque()
    try:
        while True:
            while len(drawn) < shards and (not drawn or drawn[-1][2] is not None):
                item = next(rest, _END)
                if item is _END:
                    break
                drawn.append(_begun(item, begin))
            if not drawn:
                return
            item, _, _ = drawn[0]
            yield item  # and here the opener takes the stream
            drawn.popleft()
    finally:
        for _, url, stream in drawn:
            if stream is not None and _withdraw(url, stream):
                stream.close()


def _begun(item: Any, begin: Callable[[str], ShardStream | None]) -> tuple[Any, str, ShardStream | None]:
    url = item.get("url") if isinstance(item, dict) else item
    if not isinstance(url, str) or not url.startswith(SCHEME):
        return item, "", None
    stream = begin(url)
    if stream is not None:
        with _lock:
            _waiting[url].append(stream)
    return item, url, stream


def _withdraw(url: str, stream: ShardStream) -> bool:
    """False: the opener has it."""
    with _lock:
        streams = _waiting.get(url, deque())
        if stream not in streams:
            return False
        streams.remove(stream)
        if not streams:
            del _waiting[url]
        return True


_END = object()
