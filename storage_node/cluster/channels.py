"""One channel to each other node, and a memory of those that did not answer lately. Belongs to the event loop."""

from __future__ import annotations

import asyncio
import time

import grpc
import grpc.aio

AVOID_S = 1.0
"""A node that did not answer is not the first choice for this time: others need not wait for it again."""
_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # A node that comes back is found within a second.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.enable_retries", 0),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    # Writes do not wait behind the batches that this node gathers.
    ("grpc.use_local_subchannel_pool", 1),
)


class Channels:
    def __init__(self) -> None:
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._failed_at_s: dict[str, float] = {}  # on the monotonic clock

    def to(self, endpoint: str) -> grpc.aio.Channel:
        """Connects when it is used; stays open until `close`."""
        channel = self._channels.get(endpoint)
        if channel is None:
            channel = self._channels[endpoint] = grpc.aio.insecure_channel(endpoint, options=_OPTIONS)
        return channel

    def failed(self, endpoint: str) -> None:
        """It could not be reached, or fell silent."""
        self._failed_at_s[endpoint] = time.monotonic()

    def answered(self, endpoint: str) -> None:
        self._failed_at_s.pop(endpoint, None)

    def avoided(self, endpoint: str) -> bool:
        """Whether it failed a moment ago."""
        failed_at_s = self._failed_at_s.get(endpoint)
        return failed_at_s is not None and time.monotonic() - failed_at_s < AVOID_S

    async def close(self) -> None:
        channels, self._channels = list(self._channels.values()), {}
        await asyncio.gather(*(channel.close() for channel in channels))
