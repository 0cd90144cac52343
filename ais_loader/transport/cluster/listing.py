"""Merged listing of several nodes: every name once, in order, the newest version of it, complete under some map.

Names are gone through in stretches, as far as all nodes have said everything. What the nodes say of a stretch counts if
all of them knew the same map when they looked: objects go from node to node by a map only, and a node that has let one
go by a newer map says so. If one knows a newer map the stretch begins again, with the nodes of that map.

The nodes are not looked at in one moment. An object that goes from a node that has not been looked at yet to one that
already has would be missing. So a stretch is looked at twice, on all nodes before any is looked at again, where objects
may have gone meanwhile: while a change of the map moves them, and when a node says that it has just let go of one. What
was there all the time is in one of the two.

No network here: a page of a node is the answer to a call, which may fail.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from ais_loader.errors import (
    BucketNotFound,
    DriveFailed,
    LoaderError,
    NodeUnavailable,
    SilenceTimeout,
    SnapshotNotFound,
    StaleMap,
)
from ais_loader.transport.retry import Patience
from ais_loader.values.entry import ObjectInfo


@dataclass(frozen=True, slots=True)
class ListedMap:
    """What a listing needs to know of a map."""

    version: int
    nodes: Sequence[bytes]
    hosts: Sequence[str]
    """Failure domain of each node."""
    copies: int
    """On how many hosts each object is: so many less one may be silent. 0: the map has no such bucket."""
    moving: bool
    """Whether objects may go from node to node by this map."""


@dataclass(frozen=True, slots=True)
class ListedPage:
    """What a node has of some stretch of names."""

    objects: Sequence[ObjectInfo]
    """In the order of their names' UTF-8 bytes, which is that of their code points."""
    next: str | None = None
    """The name after which the next page begins; None when there is none."""
    in_doubt: Sequence[str] = ()
    """Names of which it cannot say what they are."""
    map_version: int = 0
    """The newest that the node knew when it had looked."""
    oldest_map_version: int = 0
    """The oldest by which it still acted when it began to look."""
    let_go_s: float = float("inf")
    """How long ago it last took away a copy because others have it."""


@dataclass(slots=True)
class _Feed:
    """What one node has said and nobody has taken yet."""

    at: int
    next: str | None
    objects: list[ObjectInfo] = field(default_factory=list)
    in_doubt: list[str] = field(default_factory=list)
    silent: bool = False
    asked_s: float = 0.0
    """When it was first asked for what it has said, that there is no more included, on the monotonic clock."""
    let_go_s: float = float("-inf")
    """The last moment at which it may have let go of a copy."""
    behind: bool = False
    """Whether it acted by an older map, too."""

    def up_to(self, end: str | None) -> tuple[list[ObjectInfo], list[str]]:
        """Objects and names in doubt up to this name, None: all; they are taken."""
        if end is None:
            stop, stop_doubt = len(self.objects), len(self.in_doubt)
        else:
            stop = bisect_right(self.objects, end, key=lambda info: info.name)
            stop_doubt = bisect_right(self.in_doubt, end)
        taken = self.objects[:stop], self.in_doubt[:stop_doubt]
        del self.objects[:stop], self.in_doubt[:stop_doubt]
        return taken


@dataclass(slots=True)
class _Looks:
    """What has been seen of one stretch so far, and did not suffice. What was known of a name once is true of a moment
    within the call, also where it is being written now."""

    end: str | None
    """Up to this name, None: all, something is known of every name that is not in doubt."""
    found: dict[str, ObjectInfo]
    in_doubt: set[str]
    """Names of which nothing has been known in any look."""

    def tell(self, name: str) -> bool:
        """Whether it is, or was, known whether there is such an object."""
        return name not in self.in_doubt and (self.end is None or name <= self.end)


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
    """Of one call. Iterate it once.

    Args:
        page_of: a page of one node of a map (by its position there), of the names after a given one.
        newest: the newest map; asks for one, the given node first, unless that is None.
        start_after: only names behind it are listed.

    Raises NodeUnavailable, SilenceTimeout, DriveFailed when more hosts are silent than there are further copies,
    StaleMap when maps change faster than one can be listed by, BucketNotFound when no node has the bucket.
    """

    def __init__(
        self,
        page_of: Callable[[ListedMap, int, str], ListedPage],
        newest: Callable[[bytes | None], ListedMap],
        *,
        map_: ListedMap,
        retry_s: float,
        start_after: str = "",
    ) -> None:
        self._page_of = page_of
        self._newest = newest
        self._patience = Patience(retry_s)
        self._after = start_after
        """Everything up to here has been listed."""
        self._looks: _Looks | None = None
        """Since the last stretch."""
        self._begin(map_)

    def _begin(self, map_: ListedMap) -> None:
        self._map = map_
        self._feeds = [_Feed(at, self._after) for at in range(len(map_.nodes))]
        self._silent: dict[str, LoaderError] = {}
        self._without: dict[int, BucketNotFound] = {}

    def __iter__(self) -> Iterator[ObjectInfo]:
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
            self._looks = None
            yield from found
            if end is None:
                return
            self._after = end

    def _stretch(self) -> tuple[list[ObjectInfo], str | None]:
        """The next objects, and the name up to which these are all; None when there are no more."""
        for feed in self._feeds:
            if not feed.objects and feed.next is not None:  # one that has said all has said it then
                feed.asked_s = time.monotonic()
            while not feed.objects and feed.next is not None and not feed.silent:
                self._ask(feed, feed.next)
        began_s = min((feed.asked_s for feed in self._feeds if not feed.silent), default=0.0)
        end = min((feed.next for feed in self._feeds if feed.next is not None and not feed.silent), default=None)
        said = [feed.up_to(end) for feed in self._feeds]
        if self._map.moving or any(feed.behind or feed.let_go_s >= began_s for feed in self._feeds):
            said += self._again(end)
        newest: dict[str, ObjectInfo] = {}
        for objects, _ in said:
            for info in objects:
                known = newest.get(info.name)
                if known is None or _newer(info.version, known.version):
                    newest[info.name] = info
        self._settle(newest, self._unsaid(said) - newest.keys(), end)
        return [newest[name] for name in sorted(newest)], end

    def _again(self, end: str | None) -> list[tuple[list[ObjectInfo], list[str]]]:
        """What the nodes have of the stretch now that all have been looked at."""
        for feed in self._feeds:
            feed.objects, feed.in_doubt, feed.next, feed.asked_s = [], [], self._after, time.monotonic()
        found: list[tuple[list[ObjectInfo], list[str]]] = []
        for feed in self._feeds:
            while feed.next is not None and not feed.silent and (end is None or feed.next < end):
                self._ask(feed, feed.next)
            found.append(feed.up_to(end))
        return found

    def _unsaid(self, said: Sequence[tuple[list[ObjectInfo], list[str]]]) -> set[str]:
        """Names of which nobody may say that there is no such object: who has it is in doubt, or may be silent."""
        if self._silent:
            return {name for _, in_doubt in said for name in in_doubt}
        # One that has it and is in no doubt would have listed it. As many as have it may be in doubt for a while, of a
        # write that was announced to all of them, and that too few have done. While objects move more nodes are told.
        looks = [in_doubt for _, in_doubt in said[-len(self._feeds) :]]
        times = Counter(name for in_doubt in looks for name in set(in_doubt))
        having = min(max(1, self._map.copies), len(set(self._map.hosts)))
        return {name for name, doubting in times.items() if doubting >= having > 1 and not self._map.moving}

    def _settle(self, newest: dict[str, ObjectInfo], in_doubt: set[str], end: str | None) -> None:
        """Add to `newest` what earlier looks at this stretch have told of names that are in doubt in this one.

        Of a name that is being written a node is in doubt for a moment, and of other names a moment later; of one whose
        only sure copy is silent for as long as that is.
        """
        before = self._looks
        left = in_doubt if before is None else {name for name in in_doubt if not before.tell(name)}
        found = newest if before is None else before.found | newest
        if left:
            ends = [end] if before is None else [end, before.end]
            self._looks = _Looks(None if None in ends else max(filter(None, ends)), found, left)
            error = next(iter(self._silent.values()), None)
            why = "all nodes that have them compare them" if error is None else f"who knows is silent: {error}"
            raise _TooFewAnswer(NodeUnavailable(f"{len(left):,} names are in doubt, and {why}"))
        newest.update((name, found[name]) for name in in_doubt if name in found)

    def _ask(self, feed: _Feed, after: str) -> None:
        map_ = self._map
        try:
            page = self._page_of(map_, feed.at, after)
        except BucketNotFound as error:
            self._lacks_bucket(feed, error)
            return
        except (NodeUnavailable, SilenceTimeout, DriveFailed) as error:
            self._is_silent(feed, error)
            return
        if page.map_version > map_.version:
            raise _NewerMap(feed.at, page.map_version)
        feed.behind |= page.oldest_map_version < map_.version
        feed.let_go_s = max(feed.let_go_s, time.monotonic() - page.let_go_s)
        feed.objects += page.objects
        feed.in_doubt += page.in_doubt
        feed.next = page.next

    def _lacks_bucket(self, feed: _Feed, error: BucketNotFound) -> None:
        """A node that has not learned of a bucket yet has nothing of it; of a snapshot it has what it had."""
        known = self._newest(self._map.nodes[feed.at])
        if known.version != self._map.version:
            raise _NewerMap(feed.at, known.version) from error
        self._without[feed.at] = error
        if len(self._without) == len(self._feeds):
            raise error
        if isinstance(error, SnapshotNotFound):
            self._is_silent(feed, NodeUnavailable(f"a node has not learned of it yet: {error}"))
        else:
            feed.next, feed.behind = None, True

    def _is_silent(self, feed: _Feed, error: LoaderError) -> None:
        """Done without, if others have copies of all that it has."""
        self._silent[self._map.hosts[feed.at]] = error
        feed.silent = True
        if len(self._silent) < max(1, self._map.copies):
            return
        known = self._newest(None)  # there may be fewer by now
        if known.version != self._map.version:
            raise _NewerMap(feed.at, known.version) from error
        if not isinstance(error, NodeUnavailable):
            raise error
        raise _TooFewAnswer(error)


def _newer(version: str, than: str) -> bool:
    """In the order of (epoch, counter, node)."""
    return tuple(map(int, version.split("."))) > tuple(map(int, than.split(".")))
