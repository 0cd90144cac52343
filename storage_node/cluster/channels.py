"""Channel pool: a gRPC channel to each other node, and which of them failed lately. Belongs to the event loop."""

from __future__ import annotations

import asyncio
import time

import grpc.aio

from ais_loader.wire.channel_options import CHANNEL_OPTIONS

AVOID_S = 0.5
"""A node that could not be reached is not the first choice for this time."""
AVOID_SILENT_S = 5.0
"""The same for one that was waited for in vain: every attempt costs the whole time-out."""


class Channels:
    def __init__(self) -> None:
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._avoided_until_s: dict[str, float] = {}  # on the monotonic clock

    def to(self, endpoint: str) -> grpc.aio.Channel:
        """Connects when it is used; stays open until `close`."""
        channel = self._channels.get(endpoint)
        if channel is None:
            channel = self._channels[endpoint] = grpc.aio.insecure_channel(endpoint, options=CHANNEL_OPTIONS)
        return channel

    def failed(self, endpoint: str, *, silent: bool = False) -> None:
        """It could not be reached, or did not answer in time."""
        self._avoided_until_s[endpoint] = time.monotonic() + (AVOID_SILENT_S if silent else AVOID_S)

    def answered(self, endpoint: str) -> None:
        self._avoided_until_s.pop(endpoint, None)

    def avoided(self, endpoint: str) -> bool:
        """Whether it failed a moment ago."""
        return time.monotonic() < self._avoided_until_s.get(endpoint, 0.0)

    async def close(self) -> None:
        channels, self._channels = list(self._channels.values()), {}
        await asyncio.gather(*(channel.close() for channel in channels))
