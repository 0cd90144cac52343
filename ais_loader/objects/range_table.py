"""Range table: samples that are byte ranges of objects, in flat buffers, and the objects in the versions they had."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from ais_loader.errors import InvalidRequest, ObjectNotFound
from ais_loader.objects.client import Client
from ais_loader.values.entry import Entry, ObjectInfo, to_entry
from ais_loader.wire.object_info import has_version
from ais_loader.wire.reserved import ETAG_VERSION, REMOTE_ETAG

_PART_BYTES = 32 << 20


class RangeTable(Sequence[Entry]):
    """Immutable sequence of n ranges, object after object. A subclass says where each range of an object is."""

    def __init__(self, objects: Sequence[ObjectInfo], counts: Iterable[int]) -> None:
        """`counts`: the number of ranges in each object."""
        self._objects = [(info.bucket, info.name, pin_of(info)) for info in objects]
        self._stops: npt.NDArray[np.int64] = np.fromiter(counts, np.int64, len(objects)).cumsum()

    def __len__(self) -> int:
        return self._stops.item(-1) if len(self._stops) else 0

    @overload
    def __getitem__(self, index: int) -> Entry: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Entry]: ...
    def __getitem__(self, index: Any) -> Any:
        indices = range(len(self))[index]
        if isinstance(indices, range):
            return [self[at] for at in indices]
        return self.entry_of(*self.place_of(indices))

    def place_of(self, at: int) -> tuple[int, int]:
        """Return the number of the object that has a range, and the number of the range within it, both from 0."""
        number = int(self._stops.searchsorted(at, "right"))
        return number, at - self.first_of(number)

    def first_of(self, number: int) -> int:
        """Return the index of the first range of an object."""
        return self._stops.item(number - 1) if number else 0

    def load(self, indices: Sequence[int]) -> None:
        """Read what says where these ranges are, 0 <= index < n, so that each of them need not do so."""

    def entry_of(self, number: int, within: int) -> Entry:
        """Return the entry of a range of object `number`."""
        start, length = self.range_of(number, within)
        bucket, name, version = self._objects[number]
        return Entry(bucket, name, None, start, length, version)

    def range_of(self, number: int, within: int) -> tuple[int, int]:
        """Return the start and length in bytes of a range of object `number`."""
        raise NotImplementedError

    def digest(self) -> str:
        """Return a digest of what the ranges fetch, in their order, the same on every platform."""
        digest = hashlib.blake2b(repr(self._objects).encode("utf-8", "surrogatepass"), digest_size=16)
        for column in self.columns():
            digest.update(np.ascontiguousarray(column, "<i8").data)
        return digest.hexdigest()

    def columns(self) -> Iterable[npt.NDArray[np.integer[Any]]]:
        """Return the arrays that say where the ranges are."""
        return (self._stops,)


class BoundsTable(RangeTable):
    """Ranges that follow each other within an object."""

    def __init__(
        self,
        objects: Sequence[ObjectInfo],
        bounds: Sequence[npt.NDArray[np.int64]],
        counts: Iterable[int] | None = None,
    ) -> None:
        """`bounds`: where the ranges of each object begin and, last, end. `counts`: the number of samples in each
        object, if a range is not one."""
        super().__init__(objects, (len(one) - 1 for one in bounds) if counts is None else counts)
        self._bounds = np.concatenate([np.zeros(0, np.int64), *bounds])
        self._firsts = np.array([0, *map(len, bounds)]).cumsum()

    def range_of(self, number: int, within: int) -> tuple[int, int]:
        at = self._firsts.item(number) + within
        start = self._bounds.item(at)
        return start, self._bounds.item(at + 1) - start


def text_column(value: object) -> npt.NDArray[np.uint8]:
    """Return the text of a value as a column for a digest."""
    return np.frombuffer(repr(value).encode("utf-8", "surrogatepass"), np.uint8)


def read_ranges(client: Client, ranges: Sequence[tuple[ObjectInfo, int, int]], timeout_s: float) -> list[bytes]:
    """Return the bytes of (object, start, length), with one request. Raises the errors of `Client.get_batch`."""
    entries: list[Entry] = []
    counts = []
    for info, start, length in ranges:
        stop = start + length
        starts = range(start, stop, _PART_BYTES) or (start,)
        counts.append(len(starts))
        pin = pin_of(info)
        entries += [Entry(info.bucket, info.name, None, at, min(_PART_BYTES, stop - at), pin) for at in starts]
    if not entries:
        return []
    with client.get_batch(entries, timeout_s=timeout_s) as batch:
        items = iter(batch)
        return [b"".join(next(items).data for _ in range(count)) for count in counts]


def described(client: Client, entries: Iterable[Any], bucket: str | None) -> list[ObjectInfo]:
    """Return the properties of whole objects as they are now, in order, with a request for each thousand of a bucket.

    Raises InvalidRequest for anything but whole objects; ObjectNotFound for an object that does not exist, or has
    another version than its entry; ObjectDenied; TypeError.
    """
    wanted = [to_entry(entry, bucket) for entry in entries]
    names: dict[str, dict[str, None]] = {}
    for entry in wanted:
        if (entry.member, entry.start, entry.length, entry.ranges, entry.etl) != (None, 0, None, None, None):
            raise InvalidRequest(f"{entry.bucket}/{entry.name}: need whole objects, not members, ranges or transforms")
        names.setdefault(entry.bucket, {})[entry.name] = None
    found = {
        (of, name): info
        for of, several in names.items()
        for name, info in zip(several, client.bucket(of).head_many(list(several)), strict=True)
    }
    for (of, name), info in found.items():
        if info is None:
            with contextlib.suppress(ObjectNotFound):
                client.bucket(of).head(name)  # raises ObjectDenied for one that is denied
    return [_checked(found[entry.bucket, entry.name], entry) for entry in wanted]


def place(info: ObjectInfo) -> str:
    """Return the URL of an object, for errors."""
    return f"ais://{info.bucket}/{info.name}"


def foreign(objects: Sequence[ObjectInfo], one: ObjectInfo, found: str, need: str, usual: str) -> InvalidRequest:
    """Return the error for an object that is something else, with the pattern that leaves it out.

    The pattern is the commonest extension of the other objects; `usual` if they have none.
    """
    endings = Counter(os.path.splitext(info.name)[1] for info in objects)
    del endings[os.path.splitext(one.name)[1]], endings[""]
    pattern = f"*{endings.most_common(1)[0][0]}" if endings else usual
    return InvalidRequest(
        f"{place(one)}: {found}, and not {need}; store it as such, or leave it out with "
        f"Bucket.entries(prefix, pattern={pattern!r})"
    )


def _checked(info: ObjectInfo | None, entry: Entry) -> ObjectInfo:
    if info is None:
        raise ObjectNotFound(f"{entry.bucket}/{entry.name} does not exist")
    if entry.version is not None and not has_version(info, entry.version):
        raise ObjectNotFound(f"{entry.bucket}/{entry.name}: not in version {entry.version} but in {info.version}")
    return info


def pin_of(info: ObjectInfo) -> str:
    """Return the version to read: of a copy of a remote object its ETag, which stays if the copy is evicted.

    Raises InvalidRequest for a cold object without an ETag, which an inventory may have.
    """
    etag = info.metadata.get(REMOTE_ETAG)
    version = f"{ETAG_VERSION}{etag}" if etag else info.entry(pinned=True).version
    assert version is not None
    return version
