"""How every gRPC channel to a storage node is set up, a client's and another node's alike."""

from __future__ import annotations

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


def for_patience(options: ChannelOptions, retry_s: float) -> ChannelOptions:
    """The options of whoever waits for a node no longer than `retry_s`.

    Between two tries to connect gRPC answers from memory: pauses as long as the patience would have a caller told of a
    refusal that is older than the node.
    """
    pause_ms = retry_s * 1000 / 4
    if pause_ms >= dict(options)["grpc.max_reconnect_backoff_ms"]:
        return options
    # The second is how long one try to connect may take, which the pauses stretch otherwise; a refusal ends it at once.
    changed = {"grpc.max_reconnect_backoff_ms": max(100, round(pause_ms)), "grpc.min_reconnect_backoff_ms": 1000}
    return tuple({**dict(options), **changed}.items())
