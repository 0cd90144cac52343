"""Channel pool: a gRPC channel to each other node, and which of them failed lately. Belongs to the event loop."""

from __future__ import annotations

import asyncio

import grpc.aio

from ais_loader.wire.backoff import Backoff
from ais_loader.wire.channel_options import CHANNEL_OPTIONS
from ais_loader.wire.suspects import Suspects

AVOID = Backoff(0.5, 0.5, jitter=0)
"""A node that could not be reached is not the first choice for this time."""
AVOID_SILENT = Backoff(5.0, 5.0, jitter=0)
"""The same for one that was waited for in vain: every attempt costs the whole time-out."""


class Channels:
    def __init__(self) -> None:
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._suspects: Suspects[str] = Suspects()

    def to(self, endpoint: str) -> grpc.aio.Channel:
        """Connects when it is used; stays open until `close`."""
        channel = self._channels.get(endpoint)
        if channel is None:
            channel = self._channels[endpoint] = grpc.aio.insecure_channel(endpoint, options=CHANNEL_OPTIONS)
        return channel

    def failed(self, endpoint: str, *, silent: bool = False) -> None:
        """It could not be reached, or did not answer in time."""
        self._suspects.failed(endpoint, AVOID_SILENT if silent else AVOID)

    def answered(self, endpoint: str) -> None:
        self._suspects.answered(endpoint)

    def avoided(self, endpoint: str) -> bool:
        """Whether it failed a moment ago."""
        return endpoint in self._suspects

    async def close(self) -> None:
        channels, self._channels = list(self._channels.values()), {}
        await asyncio.gather(*(channel.close() for channel in channels))
