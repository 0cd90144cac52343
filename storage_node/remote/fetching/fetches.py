"""Fetches that readers of this node wait for, wherever they run.

A *cold* object is fetched once, however many readers wait: requests for the same object join one flight. In a cluster
the flight belongs to the object's first owner, which other nodes ask (`fetch_owner`). Belongs to one event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from contextlib import aclosing

from ais_loader.errors import LoaderError, RemoteUnavailable
from ais_loader.wire.generated import ais_remote_pb2 as pb
from storage_node.context.remote_buckets import RemoteBucket
from storage_node.limits.single_flight import SingleFlight
from storage_node.limits.tasks import deliver, retrieve
from storage_node.remote.arriving.relay import Relay, relayed
from storage_node.remote.copies.object_metadata import is_copy
from storage_node.remote.fetching.loads import Loads
from storage_node.remote.tier_context import TierContext

FAILURE_KEPT_S = 1.0
"""A failed fetch answers for this long: the other holders of the object are asked as well."""


class Fetches:
    """Belongs to one event loop."""

    def __init__(self, tier: TierContext, loads: Loads) -> None:
        self._loads, self._owner, self._read = loads, tier.owner, tier.host.read
        self._backends, self._copies = tier.backends, tier.copies
        self._write_back, self._arrivals = tier.write_back, tier.arrivals
        self.timeout_s = tier.settings.fetch_timeout_s
        self._flights = SingleFlight(FAILURE_KEPT_S)
        self.close = self._flights.close

    async def fetch(self, bucket: RemoteBucket, name: str, version: str = "") -> None:
        """Have a cold object stored, or the copy of this version validated, by the node that fetches it.

        Raises ObjectNotFound, RemoteUnavailable, RemoteDenied, and what storing an object raises.
        """
        await self.begin(bucket, name, version)

    def begin(
        self, bucket: RemoteBucket, name: str, version: str = "", *, with_bytes: bool = False
    ) -> asyncio.Future[None]:
        """Return the outcome of `fetch`. To cancel it leaves the fetch to others.

        `with_bytes`: a reader of this node has joined the arrival, so another node that fetches is to send the bytes.
        """
        self._write_back.require_kept(bucket, name)
        loop = asyncio.get_running_loop()
        began_s, waited = loop.time(), self._backends.waiting(bucket)
        outcome = self._flight(bucket, name, version, with_bytes=with_bytes)
        timers = list[asyncio.TimerHandle]()  # functions that know each other would be left to garbage collections
        timers.append(loop.call_at(began_s + self.timeout_s, self._look, bucket, name, began_s, outcome, timers))

        def end(ended: asyncio.Future[None]) -> None:
            timers.pop().cancel()
            waited()
            retrieve(ended)

        outcome.add_done_callback(end)
        return outcome

    def _look(
        self,
        bucket: RemoteBucket,
        name: str,
        began_s: float,
        outcome: asyncio.Future[None],
        timers: list[asyncio.TimerHandle],
    ) -> None:
        """Fail a wait in which nothing came for `timeout_s`; look again later otherwise."""
        ends_s = max(began_s, self._arrivals.moved_s((bucket.uuid, name))) + self.timeout_s
        if ends_s > outcome.get_loop().time():
            timers[0] = outcome.get_loop().call_at(ends_s, self._look, bucket, name, began_s, outcome, timers)
        else:
            silence = f"nothing came from {bucket.remote.url} for {self.timeout_s:g} s"
            deliver(outcome, None, RemoteUnavailable(f"{bucket.name}/{name}: {silence}"))

    def _flight(
        self, bucket: RemoteBucket, name: str, version: str, *, with_bytes: bool = False
    ) -> asyncio.Future[None]:
        # Only the flight of another node is one without the bytes.
        key = bucket.uuid, name, version, with_bytes
        return self._flights.flight(key, lambda: self._fetch(bucket, name, version, with_bytes=with_bytes))

    async def _fetch(self, bucket: RemoteBucket, name: str, version: str, *, with_bytes: bool) -> None:
        with Relay(self._arrivals, (bucket.uuid, name), name) as relay:
            is_fetched = await self._owner.forward(bucket, name, version, relay.take, with_bytes=with_bytes)
        if not is_fetched:
            await self._loads.load(bucket, name, leads=True)
        elif not version:
            await self._copies.bring(bucket, name)
        else:
            with contextlib.suppress(LoaderError):
                entry = await self._copies.find(bucket, name)
                if entry is None:
                    return
                if relay.version not in ("", str(entry.version)) and is_copy(entry.metadata):
                    # This copy missed a change of the remote object that the node that fetches has seen.
                    await self._copies.remove(bucket, name, entry)
                    if (entry := await self._copies.bring(bucket, name)) is None:
                        return
                self._copies.note_current(bucket, name, str(entry.version))

    async def for_node(
        self, bucket: RemoteBucket, name: str, version: str, *, with_bytes: bool
    ) -> AsyncGenerator[pb.FetchResponse, None]:
        """Call `Loads.load` for another node of the cluster. Yields what it is told meanwhile; see `relayed`."""
        fetch = self._loads.load(bucket, name)
        responses = relayed(self._arrivals, (bucket.uuid, name), fetch, self._read, with_bytes=with_bytes)
        async with aclosing(responses):
            async for response in responses:
                yield response
        if version:
            with contextlib.suppress(LoaderError):
                entry = await self._read(self._copies.stored, bucket, name)
                yield pb.FetchResponse(version=str(entry.version))

    async def ahead(self, bucket: RemoteBucket, name: str, version: str) -> None:
        """Call `fetch` for a reader that comes later, who is not counted as waiting. Raises what `fetch` raises."""
        await self._flight(bucket, name, version)
