"""Inventory of a remote bucket: made, described, dropped, and read as entries."""

from __future__ import annotations

import itertools
import secrets
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from ais_loader import errors
from ais_loader.objects.bucket_part import BucketPart
from ais_loader.transport.base import Transport, require_text
from ais_loader.transport.remote_inventory import UNREADABLE, InventoryReader, readable
from ais_loader.values.entry_table import EntryTable
from ais_loader.values.summary import InventoryInfo, when
from ais_loader.wire.bucket_settings import BucketSettings
from ais_loader.wire.generated import ais_remote_pb2 as pb
from ais_loader.wire.inventory import PREFIX, Description, changed_name, current_name
from ais_loader.wire.names_block import NamesBlock
from ais_loader.wire.remote import Remote

_STORED_PAGE = 10_000
_DELETED_AT_ONCE = 5000


def kept_inventory(transport: Transport, bucket: str, remote: Remote) -> Remote:
    """Return this value for the remote of a bucket, with the bucket's inventory if the place stays the same."""
    if remote.inventory:
        return remote
    before = transport.bucket(bucket).remote
    if before is None or before.place != remote.place:
        return remote
    return replace(remote, inventory=before.inventory)


def forget_inventories(transport: Transport, bucket: str) -> None:
    """Delete the objects of inventories that a bucket had at another place."""
    remote = transport.bucket(bucket).remote
    _delete_hidden(transport, bucket, remote.inventory if remote is not None else "")


def table_of_inventory(transport: Transport, bucket: str, prefix: str, *, skip_missing: bool) -> EntryTable | None:
    """Return entries of all objects with this prefix, cold and stored, in the order of names; None if no inventory has
    them."""
    # Where cold objects cannot be fetched, listings have what is stored.
    remote = transport.bucket(bucket).remote if transport.can_expect(bucket) else None
    tried = ""
    while remote is not None and (reader := readable(transport, bucket, remote, prefix, tried)) is not None:
        tried = reader.description.data
        changed = list(reader.changed(prefix))
        stored = transport.objects(
            bucket, prefix=prefix, page_size=_STORED_PAGE, skip_missing_drives=skip_missing, stored_only=True
        )
        there = {info.name for info in itertools.chain(stored, reader.looked_up(changed))}
        try:
            blocks = list(_merged(reader.names(prefix), sorted(name.encode() for name in there), changed))
        except errors.ObjectNotFound:
            continue  # it was replaced meanwhile
        except UNREADABLE:
            return None  # the listing that follows tells
        return EntryTable.of_columns(bucket, [block.lengths for block in blocks], [block.names for block in blocks])
    return None


def _merged(blocks: Iterator[NamesBlock], there: Sequence[bytes], changed: Sequence[str]) -> Iterator[NamesBlock]:
    """Yield the names of these blocks but the `changed` ones, and those that are `there`, in order."""
    gone = sorted(name.encode() for name in changed)
    if not gone and not there:
        yield from blocks
        return
    at = at_gone = 0
    for block in blocks:
        if not len(block.lengths):
            continue
        last = block.names[len(block.names) - int(block.lengths[-1]) :]
        stop, stop_gone = bisect_right(there, last, at), bisect_right(gone, last, at_gone)
        if stop > at or stop_gone > at_gone:
            names = set(block.to_list()).difference(gone[at_gone:stop_gone])
            block = NamesBlock.of(sorted(names.union(there[at:stop])))
        at, at_gone = stop, stop_gone
        yield block
    if at < len(there):
        yield NamesBlock.of(there[at:])


def _made(
    transport: Transport, bucket: str, prefix: str, remote: Remote, progress: Callable[[int], object] | None
) -> InventoryInfo:
    request = pb.RefreshInventoryRequest(bucket=bucket, prefix=prefix, id=remote.inventory)
    description = ""
    for answer in transport.refresh_inventory(request):
        description = description or answer.description
        if progress is not None:
            progress(answer.listed)
    if not description:
        raise errors.NodeUnavailable(f"bucket {bucket!r}: the refresh ended before the inventory was stored")
    return _info_of(Description.of_json(description))


def _info_of(found: Description) -> InventoryInfo:
    return InventoryInfo(
        prefix=found.prefix,
        count=found.count,
        size_bytes=found.size_bytes,
        skipped=found.skipped,
        skipped_names=found.skipped_names,
        listed_at=when(found.listed_ns),
    )


def _remote_of(transport: Transport, bucket: str) -> Remote:
    """Return the remote of a bucket. Raises InvalidRequest if it has none, BucketNotFound."""
    remote = transport.bucket(bucket).remote
    if remote is None:
        raise errors.InvalidRequest(f"bucket {bucket!r} is not a remote one")
    return remote


def _delete_hidden(transport: Transport, bucket: str, kept: str) -> None:
    """Delete the objects of inventories but those of the inventory with this id."""
    found = transport.objects(bucket, prefix=PREFIX)
    _delete(
        transport, bucket, (info.name for info in found if not kept or not info.name.startswith(f"{PREFIX}{kept}/"))
    )


def _delete(transport: Transport, bucket: str, names: Iterable[str]) -> None:
    left = iter(names)
    while group := list(itertools.islice(left, _DELETED_AT_ONCE)):
        for error in transport.delete_names(bucket, group):
            if error is not None and not isinstance(error, errors.NotFound):
                raise error


class BucketInventory(BucketPart):
    """The inventory of a remote bucket."""

    def refresh_inventory(self, prefix: str = "", *, progress: Callable[[int], object] | None = None) -> InventoryInfo:
        """List a remote bucket once, and keep the list in the store. Listings and datasets then read it, until you
        refresh or drop it, instead of asking the remote storage.

        Args:
            prefix: List only names that begin with it. The new inventory replaces the old one as a whole.
            progress: A function that is called from time to time with the number of objects listed so far.

        If it fails, the old inventory stays. Objects that are put or deleted through the store later are listed as they
        are. Raises InvalidRequest for a bucket that is not a remote one, Unsupported for a web server,
        RemoteUnavailable, RemoteDenied, NodeUnavailable, StoreReadOnly.
        """
        transport, bucket = self._transport, self.name
        require_text(prefix, errors.InvalidRequest, "prefix")
        remote = _remote_of(transport, bucket)
        if not remote.can_list:
            raise errors.Unsupported(f"{remote.url}: a web server has no listing; name the objects")
        if not remote.inventory:
            remote = replace(remote, inventory=secrets.token_hex(8))
            transport.set_bucket(bucket, BucketSettings(remote=remote))
        marks, old = changed_name(remote.inventory), []
        changed = []
        for info in transport.objects(bucket, prefix=PREFIX):
            if info.name.startswith(marks):
                changed.append((info.name, info.version))
            elif info.name != current_name(remote.inventory):
                old.append(info.name)
        made = _made(transport, bucket, prefix, remote, progress)
        for name, version in changed:
            try:
                transport.delete(bucket, name, if_version=version)
            except (errors.VersionConflict, errors.NotFound):
                continue  # the object has been changed again
        _delete(transport, bucket, old)
        return made

    def inventory(self) -> InventoryInfo | None:
        """Describe the inventory of a remote bucket; None if there is none.

        Raises InvalidRequest for a bucket that is not a remote one, BucketNotFound, NodeUnavailable.
        """
        transport, bucket = self._transport, self.name
        remote = _remote_of(transport, bucket)
        found = InventoryReader.open(transport, bucket, remote)
        return None if found is None else _info_of(found.description)

    def drop_inventory(self) -> None:
        """Remove the inventory of a remote bucket, if there is one: listings ask the remote storage again.

        Raises InvalidRequest for a bucket that is not a remote one, BucketNotFound, NodeUnavailable, StoreReadOnly.
        """
        transport, bucket = self._transport, self.name
        remote = _remote_of(transport, bucket)
        if remote.inventory:
            transport.set_bucket(bucket, BucketSettings(remote=replace(remote, inventory="")))
        _delete_hidden(transport, bucket, "")
