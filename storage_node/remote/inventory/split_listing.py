"""Split listing: one listing of a remote location by several streams, each of a range of names.

The listing begins as one range. A stream that has nothing to do divides a range in two: it probes for names behind a
point between the range's position and its end. What the probe finds is the first page of the new range, and the old one
ends at that point. A probe that finds nothing moves the old range's end forward, so that a few of them lead to where
the names are, whatever they look like. Ranges are adjacent, so together they are the sequential listing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Protocol

from storage_node.remote.drivers.driver import ListBounds, RemoteObject
from storage_node.remote.location.skipped_names import SkippedNames

_FREE_PROBES = 64
"""Number of probes beside one for each page, so that a listing makes few requests more than a sequential one."""
_TOPS = (("0", "9"), ("A", "Z"), ("a", "z"))
"""First and last of the characters among which names are looked for first."""
_FIRST, _LAST, _HIGHEST = 0x20, 0x7F, 0x10FFFF
_SURROGATES = range(0xD800, 0xE000)
_MAX_LENGTH = 250
"""Longest point of a division, in characters: 1,000 bytes at most."""

Pages = AsyncGenerator[list[RemoteObject], None]


class ListRange(Protocol):
    """See `Backend.list`."""

    def __call__(self, prefix: str, start_after: str, *, skipped: SkippedNames, bounds: ListBounds) -> Pages: ...


@dataclass(slots=True)
class ListedRange:
    """A range of names."""

    bounds: ListBounds
    skipped: SkippedNames = field(default_factory=SkippedNames)
    first: str = ""
    """The first name; "" until a page has come."""
    is_probed: bool = False
    """Whether a probe is in progress."""
    is_done: bool = False


class SplitListing:
    """One listing, for one call of `run`. Belongs to an event loop.

    Args:
        streams: The most requests at the same time; 1 lists in sequence.
        take: Takes the next page of a range.
    """

    def __init__(
        self,
        list_range: ListRange,
        prefix: str,
        *,
        streams: int,
        take: Callable[[ListedRange, list[RemoteObject]], Awaitable[None]],
    ) -> None:
        self._list, self._prefix = list_range, prefix
        self._streams = streams
        self._take = take
        self._ranges = [ListedRange(ListBounds())]
        self._changed = asyncio.Condition()
        self._probes_left = _FREE_PROBES

    async def run(self) -> list[ListedRange]:
        """List everything. Returns the ranges in the order of their names.

        Raises what the listing and `take` raise.
        """
        first = self._ranges[0]
        tasks = [asyncio.create_task(self._drain(first, self._stream(first)))]
        tasks += [asyncio.create_task(self._help()) for _ in range(self._streams - 1)]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return self._ranges

    def _stream(self, range_: ListedRange) -> Pages:
        bounds = range_.bounds
        return self._list(self._prefix, bounds.position, skipped=range_.skipped, bounds=bounds)

    async def _drain(self, range_: ListedRange, pages: Pages) -> None:
        async with aclosing(pages):
            async for page in pages:
                self._probes_left += 1
                await self._note(range_, page)
                await self._take(range_, page)
        range_.is_done = True
        await self._note(range_)

    async def _note(self, range_: ListedRange, page: list[RemoteObject] | None = None) -> None:
        if page and not range_.first:
            range_.first = page[0].name
        async with self._changed:
            self._changed.notify_all()

    async def _help(self) -> None:
        """Divide ranges, and list the new ones, until all are done."""
        while True:
            async with self._changed:
                while (found := self._to_divide()) is None:
                    if all(range_.is_done for range_ in self._ranges):
                        return
                    await self._changed.wait()
            old, point = found
            old.is_probed = True
            self._probes_left -= 1
            await self._divide(old, point)

    def _to_divide(self) -> tuple[ListedRange, str] | None:
        """Return a range that has more to list, as far as is known, and where to divide it."""
        if self._probes_left <= 0:
            return None
        for range_ in self._ranges:
            if range_.first and not range_.is_done and not range_.is_probed:
                bounds = range_.bounds
                point = point_between(bounds.position, bounds.until, self._prefix, range_.first)
                if point is not None:
                    return range_, point
        return None

    async def _divide(self, old: ListedRange, point: str) -> None:
        new = ListedRange(ListBounds(point, old.bounds.until))
        async with aclosing(self._stream(new)) as pages:
            page = await anext(pages, None)
            old.is_probed = False
            if old.is_done or old.bounds.position >= point:
                await self._note(old)  # it has been here already
                return
            old.bounds.until = point
            new.is_done = page is None
            self._ranges.insert(self._ranges.index(old) + 1, new)
            if page is None:
                await self._note(old)
                return
            self._probes_left += 1
            await self._note(new, page)
            await self._take(new, page)
            await self._drain(new, pages)


def point_between(position: str, until: str, prefix: str, first: str = "") -> str | None:
    """Return a text that sorts after `position` and before `until` ("" for no end), in the middle of where names may
    be; None if there is none.

    `prefix`: that of all names. `first`: a name before the position. What both begin with is probably common to more
    names, so a point within that is only the second choice, and its length is halved each time.
    """
    begin, end = position.removeprefix(prefix), until.removeprefix(prefix) if until else ""
    level, alike = _shared(begin, end), _shared(begin, first.removeprefix(prefix)) if first else 0
    if alike - level > 1:
        level, end = (level + alike) // 2, ""
    for at in range(level, len(begin) + 1):
        last, bound = _bounds(begin, end, at)
        middle = (last + bound) // 2
        if middle in _SURROGATES:
            middle = _SURROGATES.stop if _SURROGATES.stop < bound else last
        if middle > last:
            point = prefix + begin[:at] + chr(middle)
            return point if len(point) <= _MAX_LENGTH and position < point and not (until and point >= until) else None
        if bound != last:
            end = ""  # what begins with this character of the position is before the end
    return None


def _shared(one: str, other: str) -> int:
    """Return the length of the text with which both begin."""
    return next(
        (at for at, (mine, its) in enumerate(zip(one, other, strict=False)) if mine != its), min(len(one), len(other))
    )


def _bounds(begin: str, end: str, at: int) -> tuple[int, int]:
    """Return the numbers of two characters, between which a name's character at this position may be."""
    last = ord(begin[at]) if at < len(begin) else _FIRST
    if at < len(end):
        return last, ord(end[at])
    if end:
        return last, last  # the end is reached: it begins with the position
    for low, high in _TOPS:
        if low <= chr(last) < high:
            return last, ord(high) + 1
    return last, _LAST if last < _LAST - 1 else _HIGHEST
