"""gRPC channel options for every channel to a storage node, a client's and another node's alike."""

from __future__ import annotations

from collections.abc import Mapping

ChannelOptions = tuple[tuple[str, int], ...]
CHANNEL_OPTIONS: ChannelOptions = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # gRPC's own default leaves a caller waiting for up to 17 s after a node is back.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.enable_retries", 0),
    # A node whose machine has gone without a word is found out while a call or a session is open.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.max_pings_without_data", 0),
    # A connection of its own for each channel: writes do not wait behind batches, nor one client behind another.
    ("grpc.use_local_subchannel_pool", 1),
)

CONNECT_TIMEOUT = {"grpc.min_reconnect_backoff_ms": 1000}
"""How long one try to connect may take, in truth; a refusal ends it at once."""


def with_changes(options: ChannelOptions, changes: Mapping[str, int]) -> ChannelOptions:
    return tuple({**dict(options), **changes}.items())


def for_patience(options: ChannelOptions, patience_s: float) -> ChannelOptions:
    """The options of whoever waits for a node no longer than `patience_s`.

    Between two tries to connect gRPC answers from memory: pauses as long as the patience would have a caller told of a
    refusal that is older than the node.
    """
    pause_ms = patience_s * 1000 / 4
    if pause_ms >= dict(options)["grpc.max_reconnect_backoff_ms"]:
        return options
    # A try to connect may last as long as a pause, which is too short for distant nodes here.
    return with_changes(options, {"grpc.max_reconnect_backoff_ms": max(100, round(pause_ms)), **CONNECT_TIMEOUT})
