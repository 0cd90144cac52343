"""Group reader: ranges of groups, read from fragments, and decoded from others where a fragment cannot be read in time.

A range of a group is a range of one data fragment, or of a few. Those of many objects are requested together, with one
request to each node that has some of them. A fragment is late if its node is much slower than usual, and lost if its
node fails, does not have it, or finds it damaged. The same range of as many others as there is data is requested then:
a range of any fragment is decoded from the same range of those. A node that is known to fail is asked last.

Whole objects are compared with their checksums. If one does not match, it is read once more with each fragment
compared with the checksums of its blocks, so that a damaged one counts as lost. Ranges are compared only if that is
asked for, like those of objects with files.

Manifests are cached without the names of objects. If a fragment is not where its manifest says, it was rebuilt
elsewhere: the manifest is read again. A range in which no object is any more is refused: its object was denied, and
zeros took its place.

Belongs to the node's event loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Collection, Iterable, Sequence
from contextlib import aclosing
from typing import NamedTuple, Protocol

from ais_loader.errors import CorruptObject, LoaderError, NodeUnavailable, ObjectNotFound
from ais_loader.wire.frame import Frame
from ais_loader.wire.gather.hedging import Hedging, Silences
from ais_loader.wire.generated import ais_batch_pb2 as pb
from ais_loader.wire.generated import ais_cluster_pb2 as cluster_pb
from ais_loader.wire.redundancy import companion_name
from storage_node.cluster.coding.codec import codec_of
from storage_node.cluster.coding.group import Manifest
from storage_node.store.checksum import crc32c
from storage_node.store.names import CODED_PREFIX

_KNOWN_GROUPS = 1 << 14
log = logging.getLogger(__name__)


class Wanted(NamedTuple):
    """Range of a group."""

    group: bytes
    offset: int
    size_bytes: int
    checksum: int | None = None
    """CRC-32C of these bytes; None if it is unknown."""


class Fetching(Protocol):
    """Requests to the nodes that have fragments."""

    hedging: Hedging

    def frames(self, request: pb.BatchRequest) -> AsyncGenerator[Frame, None]:
        """Yield the frames of all entries, in any order, from the nodes that have them. Raises LoaderError."""

    def failing(self, bucket: str, names: Iterable[str]) -> Collection[str]:
        """Return the names whose nodes are known to fail."""

    def stood_still(self, bucket: str, late: Iterable[str], arrived: Iterable[str]) -> None:
        """Mark the nodes of late objects as failing, until they send anything, if none of theirs has arrived."""


class _Range:
    """Range of one fragment that is being read."""

    def __init__(self, manifest: Manifest, fragment: int, start: int, target: memoryview) -> None:
        self.manifest, self.fragment, self.start, self.target = manifest, fragment, start, target
        self.is_done = not target
        self._have: dict[int, memoryview] = {}
        """The same range of other fragments."""
        self._parts: dict[int, memoryview] = {}
        """Ranges of other fragments of which pieces have arrived."""
        self._problem = ""
        self._asked: set[int] = set()
        self._lost: set[int] = set()
        self._late: set[int] = set()

    def name(self, fragment: int) -> str:
        return self.manifest.fragments[fragment]

    @property
    def is_decoded(self) -> bool:
        return len(self._have) == self.manifest.data

    def arrived(self) -> list[str]:
        """Return the names of the fragments of which the range has arrived."""
        own = {self.fragment} if self.is_done and not self.is_decoded else set()
        return [self.name(at) for at in self._have.keys() | own]

    @property
    def waiting(self) -> set[int]:
        """Fragments that are on their way."""
        return self._asked - self._lost - self._have.keys()

    def ask(self, failing: Collection[str]) -> list[int]:
        """Return the fragments to request next, if those on their way are not enough."""
        manifest, expected = self.manifest, self.expected
        if self.is_done or self.fragment in expected:
            return []
        if not self._asked and self.name(self.fragment) not in failing:
            chosen = [self.fragment]
        else:
            count = len(manifest.fragments)
            others = [at % count for at in range(self.fragment + 1, self.fragment + count)]  # all of them in turn
            left = [at for at in others if at not in self._asked]
            missing = manifest.data - len(self._have) - len(expected)
            chosen = sorted(left, key=lambda at: self.name(at) in failing)[: max(0, missing)]
            if len(chosen) < missing and self.fragment not in self._asked:
                chosen.append(self.fragment)
        self._asked.update(chosen)
        return chosen

    def take(self, fragment: int, offset: int, data: memoryview, *, is_last: bool) -> None:
        """Take bytes of a fragment, from `offset` of the range on."""
        if self.is_done:
            return
        room = self.target if fragment == self.fragment else self._parts.get(fragment)
        if room is None and not (is_last and not offset):
            room = self._parts[fragment] = memoryview(bytearray(len(self.target)))
        if room is not None:
            room[offset : offset + len(data)] = data
        if not is_last:
            return
        if fragment == self.fragment:
            self.is_done = True
            return
        self._have[fragment] = data if room is None else room
        if self.is_decoded:
            try:
                codec = codec_of(self.manifest.data, self.manifest.parity)
            except LoaderError as error:
                self._problem = f"; {error}"
                return
            [self.target[:]] = codec.decode(self._have, [self.fragment])
            self.is_done = True

    def lose(self, fragment: int) -> None:
        if fragment not in self._have:
            self._lost.add(fragment)

    @property
    def expected(self) -> set[int]:
        """Fragments that are on their way, and not late."""
        return self.waiting - self._late

    def note_late(self, names: Collection[str]) -> None:
        """Rely on none of these fragments that are on their way."""
        self._late |= {at for at in self.expected if self.name(at) in names}

    def error(self) -> NodeUnavailable:
        missing = sorted(self._lost | self.waiting)
        return NodeUnavailable(
            f"group {self.manifest.group.hex()}: {len(self.manifest.fragments) - len(missing)} of "
            f"{len(self.manifest.fragments)} fragments can be read, {self.manifest.data} are needed; not {missing}"
            f"{self._problem}"
        )


class GroupReader:
    """Reads groups of all buckets."""

    def __init__(self, fetching: Fetching) -> None:
        self._fetching = fetching
        self._silences = Silences(floor_s=0.05, first_s=0.5)
        self._known: OrderedDict[bytes, Manifest] = OrderedDict()
        self._loading: dict[bytes, asyncio.Task[None]] = {}
        self.decoded = 0
        """Number of ranges that were decoded from other fragments."""

    # -- manifests

    async def manifest(self, bucket: cluster_pb.MapBucket, group: bytes) -> Manifest:
        """Read the manifest of a group, with its slots. Raises ObjectNotFound, LoaderError."""
        [found] = await self._manifests(bucket, [group])
        if isinstance(found, LoaderError):
            raise found
        return found

    async def _manifests(self, bucket: cluster_pb.MapBucket, groups: Sequence[bytes]) -> list[Manifest | LoaderError]:
        request = pb.BatchRequest(bucket=[bucket.name], name=[CODED_PREFIX + group.hex() for group in groups])
        parts = [bytearray() for _ in groups]
        found: list[Manifest | LoaderError] = [NodeUnavailable("not read")] * len(groups)
        async with aclosing(self._fetching.frames(request)) as frames:
            async for frame in frames:
                for at, status, data in zip(frame.index.tolist(), frame.status.tolist(), frame.entries(), strict=True):
                    parts[at][:] = data if frame.begins_again else parts[at] + data
                    if status:
                        found[at] = _failure(frame, at, status, f"manifest of group {groups[at].hex()}")
                    elif frame.completes_entry:
                        try:
                            found[at] = Manifest.decode(bytes(parts[at]))
                        except LoaderError as error:
                            found[at] = error
        return found

    async def _layouts(self, bucket: cluster_pb.MapBucket, groups: Collection[bytes]) -> dict[bytes, Manifest]:
        """Return the manifests of these groups without names, as far as they can be read."""
        missing = [group for group in groups if group not in self._known and group not in self._loading]
        if missing:
            self._loading |= dict.fromkeys(missing, asyncio.ensure_future(self._load(bucket, missing)))
        loading = {self._loading[group] for group in groups if group in self._loading}
        await asyncio.gather(*map(asyncio.shield, loading))
        found = {group: self._known[group] for group in groups if group in self._known}
        for group in found:
            self._known.move_to_end(group)
        return found

    async def _load(self, bucket: cluster_pb.MapBucket, groups: Sequence[bytes]) -> None:
        try:
            for group, manifest in zip(groups, await self._manifests(bucket, groups), strict=True):
                if isinstance(manifest, Manifest):
                    self._known[group] = manifest.joined()
            while len(self._known) > _KNOWN_GROUPS:
                self._known.popitem(last=False)
        except LoaderError:
            log.debug("manifests of groups cannot be read", exc_info=True)
        finally:
            for group in groups:
                del self._loading[group]

    def forget(self, groups: Iterable[bytes]) -> None:
        """Read the manifests of these groups again when they are needed."""
        for group in groups:
            self._known.pop(group, None)

    # -- ranges

    async def read(
        self, bucket: cluster_pb.MapBucket, wanted: Sequence[Wanted], *, verify: bool = False
    ) -> list[memoryview | LoaderError]:
        """Read ranges of groups of a bucket. Returns the bytes or the error of each, in order.

        `verify`: compare also ranges without a checksum with the checksums of their blocks. Errors are NodeUnavailable
        if too few fragments can be read, CorruptObject if what was read is not what was put.
        """
        verify = verify and any(one.checksum is None for one in wanted)
        found = await self._read(bucket, wanted, verify=verify)
        damaged = [at for at, one in enumerate(wanted) if not _matches(found[at], one)]
        if damaged:
            again = await self._read(bucket, [wanted[at] for at in damaged], verify=True)
            for at, data in zip(damaged, again, strict=True):
                found[at] = data if _matches(data, wanted[at]) else CorruptObject(f"{_name(wanted[at])} is damaged")
        return found

    async def fragment(
        self, bucket: cluster_pb.MapBucket, manifest: Manifest, fragment: int, start: int, size_bytes: int
    ) -> memoryview:
        """Read a range of a fragment, data or parity, each verified; decoded from others if it is lost. Raises
        NodeUnavailable, LoaderError."""
        target = memoryview(bytearray(size_bytes))
        one = _Range(manifest, fragment, start, target)
        await self._fill(companion_name(bucket.uuid), [one], verify=True, waits=True)
        if not one.is_done:
            raise one.error()
        return target

    async def _read(
        self, bucket: cluster_pb.MapBucket, wanted: Sequence[Wanted], *, verify: bool
    ) -> list[memoryview | LoaderError]:
        """Read each range, and those of which fragments were not found, or are late, once more by their new
        manifests."""
        found: list[memoryview | LoaderError] = []
        left = list(range(len(wanted)))
        for is_last in (False, True):
            layouts = await self._layouts(bucket, {wanted[at].group for at in left})
            rooms, ranges = {at: memoryview(bytearray(wanted[at].size_bytes)) for at in left}, dict[int, list[_Range]]()
            for at in left:
                if (layout := layouts.get(wanted[at].group)) is not None and _has(layout, wanted[at]):
                    ranges[at] = _ranges(layout, wanted[at], rooms[at])
            parts = [one for each in ranges.values() for one in each]
            await self._fill(companion_name(bucket.uuid), parts, verify=verify, waits=is_last)
            if not found:
                found = [_unreadable(one.group) for one in wanted]
            for at, each in ranges.items():
                lost = next((one for one in each if not one.is_done), None)
                found[at] = rooms[at] if lost is None else lost.error()
            left = [at for at in left if isinstance(found[at], LoaderError)]
            if not left:
                break
            self.forget(wanted[at].group for at in left)
        return found

    async def _fill(self, companion: str, ranges: Sequence[_Range], *, verify: bool, waits: bool) -> None:
        """Fill the targets of these ranges, as far as enough fragments can be read. `waits`: also for those that are
        late when there are no others: without, they may be elsewhere by now."""
        names = {name for one in ranges for name in one.manifest.fragments}
        failing = self._fetching.failing(companion, names)
        changed, asking, limit_s = asyncio.Event(), set[asyncio.Task[None]](), self._silences.limit_s(last=True)
        try:
            while left := [one for one in ranges if not one.is_done]:
                changed.clear()
                if chosen := [(one, at) for one in left for at in one.ask(failing)]:
                    asking.add(asyncio.create_task(self._ask(companion, chosen, changed, verify=verify)))
                if not any(one.waiting if waits else one.expected for one in left):
                    return
                try:
                    async with asyncio.timeout(limit_s):
                        await changed.wait()
                except TimeoutError:
                    limit_s *= 2
                    self._give_up(companion, ranges)
        finally:
            self.decoded += sum(one.is_decoded for one in ranges)
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)

    def _give_up(self, companion: str, ranges: Sequence[_Range]) -> None:
        """Note what is late: what is on its way from nodes that send nothing, and of the rest as much as the budget of
        second requests allows."""
        budget, late = self._fetching.hedging.budget, [one for one in ranges if not one.is_done]
        if not budget.share:
            return
        names = {one.name(at) for one in late for at in one.expected}
        self._fetching.stood_still(companion, names, [name for one in ranges for name in one.arrived()])
        failing = self._fetching.failing(companion, names)
        for one in late:
            one.note_late(failing)
        slow = [one for one in late if one.expected]
        for one in slow[: budget.take(len(slow))]:
            one.note_late(names)

    async def _ask(
        self, companion: str, chosen: Sequence[tuple[_Range, int]], changed: asyncio.Event, *, verify: bool
    ) -> None:
        """Request ranges of fragments, and enter what arrives."""
        request = pb.BatchRequest(
            bucket=[companion],
            name=[one.name(at) for one, at in chosen],
            start=[one.start for one, _ in chosen],
            length=[len(one.target) for one, _ in chosen],
            verify_ranges=verify,
        )
        began_s = time.monotonic()
        try:
            async with aclosing(self._fetching.frames(request)) as frames:
                async for frame in frames:
                    offset = frame.piece.offset if frame.piece is not None else 0
                    entries = zip(frame.index.tolist(), frame.status.tolist(), frame.entries(), strict=True)
                    for at, status, data in entries:
                        one, fragment = chosen[at]
                        if status:
                            one.lose(fragment)
                        else:
                            one.take(fragment, offset, data, is_last=frame.completes_entry)
                    changed.set()
            self._silences.note(time.monotonic() - began_s)
        except LoaderError as error:
            log.debug("fragments cannot be read: %s", error)
        finally:
            for one, fragment in chosen:
                one.lose(fragment)  # what has not arrived
            changed.set()


def _has(layout: Manifest, wanted: Wanted) -> bool:
    return any(one.offset <= wanted.offset <= one.offset + one.size_bytes - wanted.size_bytes for one in layout.slots)


def _ranges(layout: Manifest, wanted: Wanted, room: memoryview) -> list[_Range]:
    found: list[_Range] = []
    at = 0
    for piece in layout.pieces(wanted.offset, wanted.size_bytes):
        found.append(_Range(layout, piece.fragment, piece.start, room[at : at + piece.size_bytes]))
        at += piece.size_bytes
    return found


def _matches(found: memoryview | LoaderError, wanted: Wanted) -> bool:
    return isinstance(found, LoaderError) or wanted.checksum in (None, crc32c(found))


def _name(wanted: Wanted) -> str:
    return f"group {wanted.group.hex()}: byte {wanted.offset:,} and the {wanted.size_bytes:,} from there on"


def _unreadable(group: bytes) -> NodeUnavailable:
    return NodeUnavailable(f"group {group.hex()}: its manifest cannot be read now, or its object has left it")


def _failure(frame: Frame, index: int, status: int, label: str) -> LoaderError:
    fault = frame.errors.get(index)
    message = f"{label}: {pb.Status.Name(pb.Status.ValueType(status))}{f' ({fault.message})' if fault else ''}"
    return ObjectNotFound(message) if status == pb.NOT_FOUND else NodeUnavailable(message)
