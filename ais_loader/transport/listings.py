"""Listings of a bucket, the same for every store: its objects, their names alone, and one level of them.

A level has the objects directly below a folder, and its subfolders in place of what is in them. Of a remote bucket,
stored and remote objects are merged by name.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import itemgetter
from typing import NamedTuple, TypeAlias, cast

import numpy as np

from ais_loader.errors import InvalidRequest, NodeUnavailable
from ais_loader.tracebacks import short_tracebacks
from ais_loader.transport.base import PAGE_SIZE, Transport, object_info, require_bucket, require_object, require_text
from ais_loader.transport.remote_inventory import cold_objects
from ais_loader.values.entry import MemberInfo, ObjectInfo
from ais_loader.wire.generated import ais_objects_pb2 as pb
from ais_loader.wire.generated import ais_remote_pb2 as remote_pb
from ais_loader.wire.names_block import NamesBlock, after_folder
from ais_loader.wire.remote import Remote

log = logging.getLogger(__name__)
PAGE_BYTES = 1 << 20
"""Approximate size of the names of a page."""
_NAMES_TOGETHER = 10_000
LevelItem: TypeAlias = ObjectInfo | str
"""An object, or the name of a folder up to its slash, which no object has."""
Item: TypeAlias = LevelItem | bytes
"""Item of a listing: one of a level, or a name in UTF-8 in a listing of names alone."""


def name_of_item(item: Item) -> str:
    if isinstance(item, ObjectInfo):
        return item.name
    return item if isinstance(item, str) else item.decode()


def folder_of(name: str, prefix: str) -> str | None:
    """Return the folder that contains a name one level below the last folder of the prefix; None if the name is on that
    level itself."""
    slash = name.find("/", prefix.rfind("/") + 1)
    return None if slash < 0 else name[: slash + 1]


def items_of(objects: Iterable[ObjectInfo], folders: Sequence[str], prefix: str) -> list[LevelItem]:
    """Return the items of a page, in the order of names. The objects may be below the level, too."""
    found: dict[str, LevelItem] = dict(zip(folders, folders, strict=True))
    for info in objects:
        folder = folder_of(info.name, prefix)
        if folder is None:
            found[info.name] = info
        else:
            found[folder] = folder
    return [found[name] for name in sorted(found)]


def level_of_objects(listed: Callable[[str], Iterator[ObjectInfo]], prefix: str, most: int) -> Iterator[LevelItem]:
    """Yield one level of a listing that has all objects.

    `listed`: begins the listing after a name. It begins anew behind a folder with `most` names, a page of it. In
    smaller folders, the names are skipped: another request would return more of them.
    """
    last, passed = "", 0
    listing = listed("")
    while (info := next(listing, None)) is not None:
        folder = folder_of(info.name, prefix)
        if folder is None:
            yield info
            continue
        if folder != last:
            last, passed = folder, 0
            yield folder
        passed += 1
        if passed == most:
            listing = listed(after_folder(folder))


def merged(stored: Iterator[ObjectInfo], remote: Iterator[ObjectInfo]) -> Iterator[ObjectInfo]:
    """Merge two listings in the order of names. A stored object stands for the remote one of its name."""
    last = None
    for name, _, info in heapq.merge(
        ((info.name, 0, info) for info in stored), ((info.name, 1, info) for info in remote), key=itemgetter(0, 1)
    ):
        if name != last:
            yield info
        last = name


def objects_of(pages: Iterable[remote_pb.ListRemoteResponse], bucket: str) -> Iterator[pb.ObjectInfo]:
    """Iterate over the objects of these pages. Remote names that no object can have are logged."""
    for page in pages:
        if page.skipped:
            shown = ", ".join(map(repr, page.skipped_name))
            log.warning(
                "bucket %r: %s remote names were left out of the listing, as no object here can have them, such as %s",
                bucket,
                f"{page.skipped:,}",
                shown,
            )
        yield from page.object


def names_of_page(page: pb.ListResponse) -> NamesBlock:
    """Return the names in a response to a request with `names_only`. Raises NodeUnavailable if they do not fit their
    lengths."""
    lengths = np.frombuffer(page.name_lengths[: len(page.name_lengths) // 2 * 2], "<u2")
    if len(page.name_lengths) % 2 or int(lengths.sum(dtype=np.int64)) != len(page.names):
        raise NodeUnavailable("a node sent names that do not fit their lengths")
    return NamesBlock(lengths, page.names)


class MembersPage(NamedTuple):
    """Page of an archive's members: their names, sizes in bytes and checksums."""

    version: str
    members: Iterable[tuple[str, int, int]]
    next: int
    hidden: int


@short_tracebacks
class BucketListings(ABC):
    """The listings of a transport: what its store has, merged with what the remote storage of a bucket has."""

    @abstractmethod
    def _pages(self, request: pb.ListRequest) -> Iterator[Sequence[Item]]:
        """Yield what is stored, page by page. A folder may be the last item of a page and the first of the next."""

    @abstractmethod
    def _member_page(self, request: pb.ListMembersRequest) -> MembersPage:
        """Return a page of an archive's members, from the first holder that answers."""

    @abstractmethod
    def _remote_of(self, bucket: str) -> Remote | None:
        """Return the remote storage that is listed too; None if there is none."""

    @abstractmethod
    def _remote_pages(self, bucket: str, prefix: str, start_after: str) -> Iterator[remote_pb.ListRemoteResponse]:
        """Yield the pages of what the remote storage has."""

    def _remote_below(self, bucket: str, prefix: str) -> Remote | None:
        """Return the remote storage that may have names with this prefix."""
        return None if prefix.startswith("/") else self._remote_of(bucket)

    def objects(
        self,
        bucket: str,
        *,
        prefix: str,
        page_size: int = PAGE_SIZE,
        start_after: str = "",
        skip_missing_drives: bool = False,
        stored_only: bool = False,
    ) -> Iterator[ObjectInfo]:
        """See `Transport.objects`. A cluster lists every name once, in its newest version. Raises NodeUnavailable if
        all replicas of some objects may be on nodes that do not answer."""
        request = _request(bucket, prefix, page_size, start_after, skip_missing_drives=skip_missing_drives)
        stored = cast("Iterator[ObjectInfo]", itertools.chain.from_iterable(self._pages(request)))
        place = None if stored_only else self._remote_below(bucket, prefix)
        if place is None:
            yield from stored
            return

        def listed(after: str) -> Iterator[ObjectInfo]:
            return map(object_info, objects_of(self._remote_pages(bucket, prefix, after), bucket))

        transport = cast(Transport, self)
        asked = listed if place.can_list else None
        yield from merged(stored, cold_objects(transport, bucket, place, prefix, start_after, asked))

    def names(self, bucket: str, *, prefix: str, skip_missing_drives: bool = False) -> Iterator[NamesBlock]:
        """See `Transport.names`."""
        request = _request(bucket, prefix, PAGE_SIZE, skip_missing_drives=skip_missing_drives)
        if self._remote_below(bucket, prefix) is None:
            request.names_only = True
            yield from map(NamesBlock.of, cast("Iterator[Sequence[bytes]]", self._pages(request)))
            return
        found = self.objects(bucket, prefix=prefix, skip_missing_drives=skip_missing_drives)
        while group := [info.name.encode() for info in itertools.islice(found, _NAMES_TOGETHER)]:
            yield NamesBlock.of(group)

    def level(
        self, bucket: str, *, prefix: str, page_size: int, skip_missing_drives: bool = False
    ) -> Iterator[LevelItem]:
        """See `Transport.level`."""
        request = _request(bucket, prefix, page_size, skip_missing_drives=skip_missing_drives)
        if self._remote_below(bucket, prefix) is None:
            request.one_level = True
            items = cast("Iterator[LevelItem]", itertools.chain.from_iterable(self._pages(request)))
            yield from (item for item, _ in itertools.groupby(items))
            return
        listed = functools.partial(
            self.objects, bucket, prefix=prefix, page_size=page_size, skip_missing_drives=skip_missing_drives
        )
        yield from level_of_objects(lambda after: listed(start_after=after), prefix, page_size)

    def list_members(self, bucket: str, name: str, *, prefix: str, page_size: int) -> Iterator[MemberInfo]:
        """List the members of one version. Raises ObjectNotFound also when the archive is replaced between two
        pages."""
        require_object(bucket, name)
        require_text(prefix, InvalidRequest, "prefix")
        request = pb.ListMembersRequest(bucket=bucket, name=name, prefix=prefix, page_size=min(page_size, 2**32 - 1))
        while True:
            page = self._member_page(request)
            for member in page.members:
                yield MemberInfo(bucket, name, *member, page.version, page.hidden)
            if not page.next:
                return
            request.first, request.version = page.next, page.version


def _request(
    bucket: str, prefix: str, page_size: int, start_after: str = "", *, skip_missing_drives: bool
) -> pb.ListRequest:
    """Return the request for a first page. Raises BucketNotFound, InvalidRequest for texts that no request carries."""
    require_bucket(bucket)
    require_text(prefix, InvalidRequest, "prefix")
    require_text(start_after, InvalidRequest, "start_after")
    return pb.ListRequest(
        bucket=bucket,
        prefix=prefix,
        start_after=start_after,
        page_size=min(page_size, 2**32 - 1),
        skip_missing_drives=skip_missing_drives,
    )
