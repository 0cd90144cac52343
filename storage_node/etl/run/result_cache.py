"""Result cache: outputs of transforms, kept for later requests. Concurrent requests for one result share one run.

The key of a result consists of everything that it is made of: the object's version, member and range, and the version
and arguments of every transform. The same key never stands for other bytes, so nothing is ever invalidated. Failures
are not cached.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable

from ais_loader.wire.generated import ais_batch_pb2 as pb
from storage_node.etl.values import Content
from storage_node.limits.tasks import retrieve


class Shared:
    """A result with several readers. Each reader releases it once."""

    __slots__ = ("content", "users")

    def __init__(self, content: Content) -> None:
        self.content = content
        self.users = 1

    def release(self) -> None:
        self.users -= 1
        if not self.users:
            self.content.close()


def result_key(
    bucket: str,
    name: str,
    version: str,
    member: str,
    part: tuple[int, int] | None,
    versions: tuple[bytes, ...],
    args: tuple[str, ...],
) -> Hashable:
    """Return the cache key of a result, which contains everything that it is made of. `part`: start and length of the
    requested range, if any."""
    return bucket, name, version, member, part, versions, args


def args_of(call: pb.TransformCall) -> tuple[str, ...]:
    return tuple([stage.args for stage in call.stage])


class CacheHits:
    """Transform versions that make the results of a call now, and counts of delivered cached results."""

    __slots__ = ("args", "kept", "kept_bytes", "versions")

    def __init__(self, versions: tuple[bytes, ...], args: tuple[str, ...]) -> None:
        self.versions, self.args = versions, args
        self.kept = self.kept_bytes = 0


class _Making:
    def __init__(self, task: asyncio.Task[Shared]) -> None:
        self.task = task
        self.waiting = 0


class ResultCache:
    """Cache that evicts the least recently used results first. Belongs to one event loop.

    Args:
        limit_bytes: Maximum size of the cache. A result larger than a quarter of it is not cached.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._kept: OrderedDict[Hashable, Shared] = OrderedDict()
        self._making: dict[Hashable, _Making] = {}
        self.held_bytes = 0
        self.hits = 0

    def touched(self, key: Hashable) -> Content | None:
        """Return a cached result. The caller must read its bytes at once, because it may be closed. May be called from
        any thread."""
        found = self._kept.get(key)
        if found is None:
            return None
        with contextlib.suppress(KeyError):
            self._kept.move_to_end(key)
        self.hits += 1
        return found.content

    def find(self, key: Hashable) -> Shared | None:
        """Return a cached result, which the caller releases; None if it is not cached."""
        found = self._kept.get(key)
        if found is None:
            return None
        self._kept.move_to_end(key)
        found.users += 1
        self.hits += 1
        return found

    async def get(
        self, key: Hashable, make: Callable[[], Awaitable[Content]], done: Callable[[], None] = lambda: None
    ) -> Shared:
        """Return a result, which the caller releases. An error of `make` is raised to all callers that wait for it.
        `make` is cancelled when no caller waits any more.

        `done` is called once, when `make` has ended or will not be called. If this call is cancelled, `make` may
        continue for other callers.
        """
        if (found := self.find(key)) is not None:
            done()
            return found
        making = self._making.get(key)
        if making is None:
            making = self._making[key] = _Making(asyncio.ensure_future(self._make(key, make)))
            making.task.add_done_callback(retrieve)
            making.task.add_done_callback(lambda _: done())
        else:
            self.hits += 1
            done()
        making.waiting += 1
        try:
            shared = await asyncio.shield(making.task)
            shared.users += 1
            return shared
        finally:
            making.waiting -= 1
            if not making.waiting:
                if self._making.get(key) is making:
                    del self._making[key]
                if not making.task.done():
                    making.task.cancel()
                elif not making.task.cancelled() and making.task.exception() is None:
                    making.task.result().release()  # the reference of the task itself

    async def _make(self, key: Hashable, make: Callable[[], Awaitable[Content]]) -> Shared:
        shared = Shared(await make())
        size_bytes = shared.content.size_bytes
        if self.limit_bytes and size_bytes <= self.limit_bytes // 4 and key not in self._kept:
            shared.users += 1
            self._kept[key] = shared
            self.held_bytes += size_bytes
            while self.held_bytes > self.limit_bytes:
                _, oldest = self._kept.popitem(last=False)
                self.held_bytes -= oldest.content.size_bytes
                oldest.release()
        return shared

    def clear(self) -> None:
        while self._kept:
            self._kept.popitem()[1].release()
        self.held_bytes = 0
