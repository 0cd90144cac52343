"""Result cache: what transforms have made, kept for those who ask again, and made once however many ask at a time.

A result is known by what it was made of and by what: the object's version, member and range, and the version and
arguments of every transform. None of these ever means other bytes, so that nothing is ever taken back. What fails is
not kept.
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
    """A result that several may read. Whoever has it releases it once."""

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
    """By what a result is kept: everything that it is made of. `part`: start and length, of a request that has any."""
    return bucket, name, version, member, part, versions, args


def args_of(call: pb.TransformCall) -> tuple[str, ...]:
    """Of all stages."""
    return tuple([stage.args for stage in call.stage])


class _Making:
    def __init__(self, task: asyncio.Task[Shared]) -> None:
        self.task = task
        self.waiting = 0


class ResultCache:
    """Belongs to one event loop. Least recently used results go first.

    Args:
        limit_bytes: of what is kept; a result of more than a quarter of it is not.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._kept: OrderedDict[Hashable, Shared] = OrderedDict()
        self._making: dict[Hashable, _Making] = {}
        self.held_bytes = 0
        self.hits = 0
        self.misses = 0

    def touched(self, key: Hashable) -> Content | None:
        """What is kept, whose bytes the caller takes at once: they may be closed. May be called from any thread."""
        found = self._kept.get(key)
        if found is None:
            return None
        with contextlib.suppress(KeyError):
            self._kept.move_to_end(key)
        self.hits += 1
        return found.content

    def find(self, key: Hashable) -> Shared | None:
        """To be released; None where it is not kept."""
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
        """To be released. What `make` raises, all who wait for it raise; it is cancelled when none of them waits.

        `done`: called once, when `make` is over or will not be called: it may go on for others when this is cancelled.
        """
        if (found := self.find(key)) is not None:
            done()
            return found
        making = self._making.get(key)
        if making is None:
            self.misses += 1
            making = self._making[key] = _Making(asyncio.ensure_future(self._make(key, make)))
            making.task.add_done_callback(retrieve)
            making.task.add_done_callback(lambda _: done())
        else:
            self.hits += 1
            done()
        making.waiting += 1
        try:
            made = await asyncio.shield(making.task)
            made.users += 1
            return made
        finally:
            making.waiting -= 1
            if not making.waiting:
                if self._making.get(key) is making:
                    del self._making[key]
                if not making.task.done():
                    making.task.cancel()
                elif not making.task.cancelled() and making.task.exception() is None:
                    making.task.result().release()  # of the making itself

    async def _make(self, key: Hashable, make: Callable[[], Awaitable[Content]]) -> Shared:
        made = Shared(await make())
        size_bytes = made.content.size_bytes
        if self.limit_bytes and size_bytes <= self.limit_bytes // 4 and key not in self._kept:
            made.users += 1
            self._kept[key] = made
            self.held_bytes += size_bytes
            while self.held_bytes > self.limit_bytes:
                _, oldest = self._kept.popitem(last=False)
                self.held_bytes -= oldest.content.size_bytes
                oldest.release()
        return made

    def clear(self) -> None:
        while self._kept:
            self._kept.popitem()[1].release()
        self.held_bytes = 0
