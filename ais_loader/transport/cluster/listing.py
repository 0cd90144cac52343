"""Merged listing of several nodes: every name once, in order, in its newest version, complete by one map.

All nodes are asked for a page side by side, so a listing takes as long as its slowest node, and holds a page of each.
It proceeds in ranges of names. A range ends where some node's answer ends, so that all nodes have listed it completely.
The answers count if all nodes knew the same map when they listed: objects move between nodes only by a map, and a node
that has removed an object by a newer map reports that version. If a node knows a newer map, the range begins again,
with the nodes of that map.

The nodes are not listed at the same instant. An object that moves from a node that has not been listed yet to one that
already has would be missed. So a range is listed twice, on all nodes before any is listed again, if objects may have
moved meanwhile: while a change of the map moves them, and when a node reports that it has just removed a replica. An
object that existed all the time is found by one of the two passes.

No networking here: a page of a node is the result of a call, which may fail.
"""

from __future__ import annotations

import itertools
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, cast

from ais_loader.errors import (
    BucketNotFound,
    DriveFailed,
    LoaderError,
    NodeUnavailable,
    Overloaded,
    SilenceTimeout,
    SnapshotNotFound,
    StaleMap,
)
from ais_loader.transport.listings import Item, name_of_item
from ais_loader.transport.retry import RetryBudget
from ais_loader.values.entry import ObjectInfo


@dataclass(frozen=True, slots=True)
class ListedMap:
    """The properties of a map that a listing needs."""

    version: int
    nodes: Sequence[bytes]
    hosts: Sequence[str]
    """Failure domain of each node."""
    copies: int
    """Number of hosts that have each object. Up to one less than this may be silent. 0: the map has no such bucket."""
    moving: bool
    """Whether objects may move between nodes by this map."""


@dataclass(frozen=True, slots=True)
class ListedPage:
    """Items of one node in a range of names."""

    items: Sequence[Item]
    """In the order of their names' UTF-8 bytes, which is that of their code points."""
    next: str | None = None
    """Name after which the next page begins; None if this is the last one."""
    in_doubt: Sequence[str] = ()
    """Names for which the node cannot tell whether the object exists."""
    map_version: int = 0
    """Newest map version that the node knew after it had listed."""
    oldest_map_version: int = 0
    """Oldest map version by which it still acted when it began to list."""
    since_removal_s: float = float("inf")
    """Time since it last removed a replica because others have the object."""


@dataclass(slots=True)
class _Feed:
    """Answers of one node that have not been consumed yet."""

    at: int
    next: str | None
    items: list[Item] = field(default_factory=list)
    in_doubt: list[str] = field(default_factory=list)
    silent: bool = False
    requested_at_s: float = 0.0
    """Monotonic time of the first request for what the feed holds, including that there is no more."""
    removed_at_s: float = float("-inf")
    """Last moment at which the node may have removed a replica."""
    outdated: bool = False
    """Whether the node also acted by an older map."""

    def up_to(self, end: str | None) -> tuple[list[Item], list[str]]:
        """Consume the items and the names in doubt up to this name; None: all."""
        if end is None:
            stop, stop_doubt = len(self.items), len(self.in_doubt)
        else:
            stop = bisect_right(self.items, end, key=name_of_item)
            stop_doubt = bisect_right(self.in_doubt, end)
        consumed = self.items[:stop], self.in_doubt[:stop_doubt]
        del self.items[:stop], self.in_doubt[:stop_doubt]
        return consumed


@dataclass(slots=True)
class _EarlierPasses:
    """Results of earlier, incomplete passes over one range. An answer about a name holds for a moment within the call,
    even if the name is being written now."""

    end: str | None
    """Every name up to here (None: all) that is not in doubt has an answer."""
    found: dict[str, Item]
    in_doubt: set[str]
    """Names without an answer in any pass."""

    def has_answer(self, name: str) -> bool:
        """Whether a pass has established if the object exists."""
        return name not in self.in_doubt and (self.end is None or name <= self.end)


Answer: TypeAlias = tuple[ListedPage, float]
"""A page, and the monotonic time when it arrived."""


class _NewerMap(Exception):
    """A node acts by a newer map than this listing."""

    def __init__(self, at: int, version: int) -> None:
        super().__init__(at, version)
        self.at = at


class _TooFewAnswer(Exception):
    def __init__(self, error: LoaderError) -> None:
        super().__init__(error)
        self.error = error


class MergedListing:
    """Merged listing of one call. Use it once.

    Args:
        page_of: returns a page of one node (by its position in the map) with the names after a given one.
        newest: requests and returns the newest map. It asks the given node first, unless that is None.
        begin: starts a call, and returns a call that waits for its result. By default, calls run one after another.
        start_after: only names after this one are listed.

    Raises NodeUnavailable, Overloaded, SilenceTimeout, DriveFailed if more hosts are silent than there are further
    copies, StaleMap if the map changes faster than a range can be listed, BucketNotFound if no node has the bucket.
    """

    def __init__(
        self,
        page_of: Callable[[ListedMap, int, str], ListedPage],
        newest: Callable[[bytes | None], ListedMap],
        *,
        map_: ListedMap,
        retry_s: float,
        start_after: str = "",
        begin: Callable[[Callable[[], Answer]], Callable[[], Answer]] = lambda call: call,
    ) -> None:
        self._page_of = page_of
        self._newest = newest
        self._begin_call = begin
        self._patience = RetryBudget(retry_s)
        self._after = start_after
        """Everything up to here has been listed."""
        self._earlier: _EarlierPasses | None = None
        """Earlier passes over the current range."""
        self._begin(map_)

    def _begin(self, map_: ListedMap) -> None:
        self._map = map_
        self._feeds: list[_Feed] = [_Feed(at, self._after) for at in range(len(map_.nodes))]
        self._silent: dict[str, LoaderError] = {}
        self._without: dict[int, BucketNotFound] = {}
        self._begun: dict[tuple[int, str], Callable[[], Answer]] = {}
        """Calls whose results have not been consumed, by node and name."""

    def stretches(self) -> Iterator[list[Item]]:
        """Yield lists that are the listing, one after another."""
        while True:
            try:
                found, end = self._stretch()
            except _NewerMap as newer:
                before, node = self._map.version, self._map.nodes[newer.at]
                self._begin(self._newest(node))
                if self._map.version == before:
                    self._patience.pause(StaleMap("nodes act by a newer map, which none of them tells"))
                continue
            except _TooFewAnswer as few:
                self._patience.pause(few.error)
                self._begin(self._newest(self._map.nodes[0] if self._map.nodes else b""))
                continue
            self._patience.progress()
            self._earlier = None
            yield found
            if end is None:
                return
            self._after = end

    def _stretch(self) -> tuple[list[Item], str | None]:
        """Return the next items, and the name up to which they are complete; None at the end."""
        for feed in self._feeds:
            if not feed.items and feed.next is not None:  # a feed at its end keeps the time of its last request
                feed.requested_at_s = time.monotonic()
                self._request_page(feed, feed.next)
        for feed in self._feeds:
            while not feed.items and feed.next is not None and not feed.silent:
                self._fetch_page(feed, feed.next)
        began_s = min((feed.requested_at_s for feed in self._feeds if not feed.silent), default=0.0)
        end = min((feed.next for feed in self._feeds if feed.next is not None and not feed.silent), default=None)
        answers = [feed.up_to(end) for feed in self._feeds]
        if self._map.moving or any(feed.outdated or feed.removed_at_s >= began_s for feed in self._feeds):
            answers += self._list_again(end)
        doubtful = self._doubtful(answers)
        lists = [items for items, _ in answers if items]
        if self._earlier is None and not doubtful:
            if len(lists) < 2:
                return lists[0] if lists else [], end
            if isinstance(lists[0][0], bytes):
                names = cast("list[list[bytes]]", lists)
                return list(dict.fromkeys(sorted(itertools.chain(*names)))), end  # a sort of sorted lists merges them
        newest: dict[str, Item] = {}
        for items in lists:
            for one in items:
                name = name_of_item(one)
                known = newest.get(name)
                if known is None or _is_newer(one, known):
                    newest[name] = one
        self._settle(newest, doubtful - newest.keys(), end)
        return [newest[name] for name in sorted(newest)], end

    def _list_again(self, end: str | None) -> list[tuple[list[Item], list[str]]]:
        """List the range again, now that all nodes have been listed once."""
        for feed in self._feeds:
            feed.items, feed.in_doubt, feed.next, feed.requested_at_s = [], [], self._after, time.monotonic()
            self._request_page(feed, self._after)
        found: list[tuple[list[Item], list[str]]] = []
        for feed in self._feeds:
            while feed.next is not None and not feed.silent and (end is None or feed.next < end):
                self._fetch_page(feed, feed.next)
            found.append(feed.up_to(end))
        return found

    def _doubtful(self, answers: Sequence[tuple[list[Item], list[str]]]) -> set[str]:
        """Return names that may exist though no node has listed them: their holder is in doubt, or may be silent."""
        if self._silent:
            return {name for _, in_doubt in answers for name in in_doubt}
        # A holder without doubt would have listed the name. All holders may be in doubt for a moment, about a write
        # that was announced to all of them and committed on too few. While objects move, more nodes than these get the
        # announcement.
        last_pass = [in_doubt for _, in_doubt in answers[-len(self._feeds) :]]
        times = Counter(name for in_doubt in last_pass for name in set(in_doubt))
        having = min(max(1, self._map.copies), len(set(self._map.hosts)))
        return {name for name, doubting in times.items() if doubting >= having > 1 and not self._map.moving}

    def _settle(self, newest: dict[str, Item], in_doubt: set[str], end: str | None) -> None:
        """Add answers of earlier passes over this range for names that are in doubt in this one.

        A node is in doubt about a name for the moment in which it is written, and a moment later about another name. If
        the only sure replica is on a silent node, the doubt lasts as long as the silence.
        """
        before = self._earlier
        left = in_doubt if before is None else {name for name in in_doubt if not before.has_answer(name)}
        found = newest if before is None else before.found | newest
        if left:
            ends = [end] if before is None else [end, before.end]
            self._earlier = _EarlierPasses(None if None in ends else max(filter(None, ends)), found, left)
            error = next(iter(self._silent.values()), None)
            reason = "all nodes that have them compare them" if error is None else f"who knows is silent: {error}"
            raise _TooFewAnswer(NodeUnavailable(f"{len(left):,} names are in doubt, and {reason}"))
        newest.update((name, found[name]) for name in in_doubt if name in found)

    def _request_page(self, feed: _Feed, after: str) -> None:
        map_ = self._map
        if not feed.silent and (feed.at, after) not in self._begun:
            call = lambda: (self._page_of(map_, feed.at, after), time.monotonic())  # noqa: E731
            self._begun[feed.at, after] = self._begin_call(call)

    def _fetch_page(self, feed: _Feed, after: str) -> None:
        map_ = self._map
        self._request_page(feed, after)
        try:
            page, answered_at_s = self._begun.pop((feed.at, after))()
        except BucketNotFound as error:
            self._lacks_bucket(feed, error)
            return
        except (NodeUnavailable, SilenceTimeout, DriveFailed, Overloaded) as error:
            self._is_silent(feed, error)
            return
        if page.map_version > map_.version:
            raise _NewerMap(feed.at, page.map_version)
        feed.outdated |= page.oldest_map_version < map_.version
        feed.removed_at_s = max(feed.removed_at_s, answered_at_s - page.since_removal_s)
        feed.items += page.items
        feed.in_doubt += page.in_doubt
        feed.next = page.next

    def _lacks_bucket(self, feed: _Feed, error: BucketNotFound) -> None:
        """Handle a node without the bucket. If it has not learned of the bucket yet, it has none of its objects. Of a
        snapshot it has the replicas that it had."""
        known = self._newest(self._map.nodes[feed.at])
        if known.version != self._map.version:
            raise _NewerMap(feed.at, known.version) from error
        self._without[feed.at] = error
        if len(self._without) == len(self._feeds):
            raise error
        if isinstance(error, SnapshotNotFound):
            self._is_silent(feed, NodeUnavailable(f"a node has not learned of it yet: {error}"))
        else:
            feed.next, feed.outdated = None, True

    def _is_silent(self, feed: _Feed, error: LoaderError) -> None:
        """Continue without this node, if others have replicas of everything that it has."""
        self._silent[self._map.hosts[feed.at]] = error
        feed.silent = True
        if len(self._silent) < max(1, self._map.copies):
            return
        known = self._newest(None)  # nodes may have been removed meanwhile
        if known.version != self._map.version:
            raise _NewerMap(feed.at, known.version) from error
        if not isinstance(error, (NodeUnavailable, Overloaded)):
            raise error
        raise _TooFewAnswer(error)


def _is_newer(one: Item, than: Item) -> bool:
    """Compare versions in the order of (epoch, counter, node). Names and folders have none."""
    if not isinstance(one, ObjectInfo) or not isinstance(than, ObjectInfo):
        return False
    return tuple(map(int, one.version.split("."))) > tuple(map(int, than.version.split(".")))
