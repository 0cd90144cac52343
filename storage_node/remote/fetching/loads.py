"""Loads: fetches by this node from the remote storage, for all nodes of the cluster.

The object becomes visible when it is complete and verified, with a condition: a fetch never replaces what a client has
put meanwhile. A copy that is here already is *validated*: one conditional GET, which fetches the new object if there is
one. An object that is gone from the remote storage is removed here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from ais_loader.errors import CorruptObject, ObjectNotFound, RemoteUnavailable, VersionConflict
from ais_loader.wire.reserved import REMOTE_ETAG
from storage_node.context.remote_buckets import RemoteBucket
from storage_node.limits.single_flight import SingleFlight
from storage_node.remote.arriving.arrivals import Arrival
from storage_node.remote.arriving.object_intake import ObjectIntake
from storage_node.remote.drivers.driver import RemoteChanged
from storage_node.remote.tier_context import TierContext
from storage_node.store.drive.preconditions import parse_condition
from storage_node.store.format import CatalogEntry


class Loads:
    """Belongs to one event loop."""

    def __init__(self, tier: TierContext) -> None:
        self._backends, self._copies, self._space = tier.backends, tier.copies, tier.space
        self._write_back, self._arrivals = tier.write_back, tier.arrivals
        host = tier.host
        self._intake = ObjectIntake(tier.arrivals, host.store_object, host.put_group, tier.space, host.read)
        self._delete_object = host.delete_object
        self._flights = tier.space.loading = SingleFlight(0)

    async def close(self) -> None:
        await self._flights.close()
        await self._intake.close()

    async def settle(self, bucket: RemoteBucket, names: Iterable[str]) -> None:
        """Wait for the loads of these objects that are in progress."""
        await self._flights.settle((bucket.uuid, name) for name in names)

    async def load(self, bucket: RemoteBucket, name: str, *, leads: bool = False) -> None:
        """Have an object stored and current, here or on another owner. Raises what `Fetches.fetch` raises.

        `leads`: see `SingleFlight.join`.
        """
        await self._flights.join((bucket.uuid, name), lambda: self._look_and_load(bucket, name), leads=leads)

    async def _look_and_load(self, bucket: RemoteBucket, name: str) -> None:
        """Fetch, unless the object is stored here, or on another owner, and is current."""
        entry: CatalogEntry | None = None
        try:
            entry = await self._copies.bring(bucket, name)
        except RemoteUnavailable:
            if bucket.remote.is_write_back:
                raise  # the remote storage may not have it yet
        if entry is None:
            await self._load(bucket, name, "", "")
        elif not self._copies.is_current(bucket, name, entry):
            await self._load(bucket, name, str(entry.version), entry.metadata.get(REMOTE_ETAG, ""))

    async def _load(
        self, bucket: RemoteBucket, name: str, version: str, etag: str, *, make_room: bool = True, tries: int = 3
    ) -> None:
        """Fetch and store an object, unless the copy with this version and etag is current. With `make_room`, a full
        drive has copies evicted, and the object is fetched once more. So is one that is replaced meanwhile, or of which
        other bytes came."""
        key = bucket.uuid, name
        self._write_back.require_kept(bucket, name)
        self._backends.require_budget(bucket)
        try:
            answer = await self._backends.of(bucket).get(name, unless_etag=etag)
        except ObjectNotFound:
            if version:
                with contextlib.suppress(ObjectNotFound, VersionConflict):  # somebody else has deleted or replaced it
                    await self._delete_object(bucket.name, name, parse_condition(False, version), b"")
            raise
        if answer is None:
            self._copies.note_current(bucket, name, version)
            return
        arrival: Arrival | None = None
        try:
            async with answer as arriving, self._space.room(bucket, name, arriving.info.size_bytes):
                if not arriving.md5:  # otherwise nobody gets bytes that have not been compared
                    arrival = await self._arrivals.begin(key, arriving.info)
                info = await self._intake.store(bucket, arriving, arrival, version, make_room=make_room)
        except (RemoteChanged, CorruptObject) as error:
            if not tries:
                raise
            again = {"make_room": make_room, "tries": tries - 1 if isinstance(error, RemoteChanged) else 0}
        except VersionConflict:
            # Somebody else has stored or deleted the object; the reader looks again.
            if not version:
                await self._copies.bring(bucket, name)
            return
        else:
            if info is not None:
                self._copies.note_current(bucket, name, info.version)
                return
            again = {"make_room": False}
        finally:
            self._arrivals.end(key, arrival)
        await self._load(bucket, name, version, etag, **again)  # type: ignore[arg-type]
