"""Slots of the requests that are answered at once, shared among clients.

The rules are those of a node's calls: one client gets all but a part of the slots, and a client that takes its answer
too slowly loses its slot if another request needs it. A request waits for a slot, which a node's call does not.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from storage_node.limits.call_slots import TENANT_SHARE, CallSlot, CallSlots, limit_of_tenant

from ..request import S3Error
from .options import Limits

_LOOK_INTERVAL_S = 0.25
"""How often it is looked whether a client has become too slow while requests wait."""


@dataclass(slots=True)
class _Waiting:
    """A request that waits for a slot."""

    client: str
    evict: Callable[[], None]
    granted: asyncio.Future[CallSlot]


class RequestSlots:
    """Slots of one kind. Belongs to the event loop."""

    def __init__(self, limit: int, limits: Limits) -> None:
        share = max(1, min(limit_of_tenant(limit, TENANT_SHARE), limit - 1))
        self._slots = CallSlots(limit, limits.still_s, tenant_limit=share)
        self._wait_s = limits.wait_s
        self._waiting: list[_Waiting] = []
        self._look: asyncio.TimerHandle | None = None

    @asynccontextmanager
    async def held(self, client: str, evict: Callable[[], None]) -> AsyncIterator[CallSlot]:
        """Hold a slot. Raises S3Error if there is none for too long.

        Args:
            client: Who shares its slots: an access key, or an address.
            evict: Called if the client loses the slot to another request.
        """
        slot = await self._take(client, evict)
        try:
            yield slot
        finally:
            slot.give_back()
            self._pass_on()

    async def _take(self, client: str, evict: Callable[[], None]) -> CallSlot:
        self._pass_on()  # those that wait come first
        slot = self._slots.take(client, evict)
        if slot is not None:
            return slot
        waiting = _Waiting(client, evict, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        self._watch()
        try:
            return await asyncio.wait_for(asyncio.shield(waiting.granted), self._wait_s)
        except BaseException as error:
            if waiting.granted.done():  # in this moment
                waiting.granted.result().give_back()
                self._pass_on()
            waiting.granted.cancel()
            if isinstance(error, TimeoutError):
                raise S3Error("SlowDown", "too many requests are being answered") from None
            raise

    def _pass_on(self) -> None:
        """Give slots to requests that wait, in their order, as far as their clients may have more."""
        left: list[_Waiting] = []
        without: set[str] = set()
        for one in self._waiting:
            if one.granted.done():  # it has given up
                continue
            slot = None if one.client in without else self._slots.take(one.client, one.evict)
            if slot is None:
                without.add(one.client)
                left.append(one)
            else:
                one.granted.set_result(slot)
        self._waiting = left

    def _watch(self) -> None:
        if self._look is None and self._waiting:
            self._look = asyncio.get_running_loop().call_later(_LOOK_INTERVAL_S, self._looked)

    def _looked(self) -> None:
        self._look = None
        self._pass_on()
        self._watch()
