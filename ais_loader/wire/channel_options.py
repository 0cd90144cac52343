"""Options of connections to storage nodes, used by clients and nodes: of gRPC channels, and of sockets of lanes."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Any

ChannelOptions = tuple[tuple[str, int], ...]
CHANNEL_OPTIONS: ChannelOptions = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # gRPC's default back-off leaves a caller waiting for up to 17 s after a node is back.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.enable_retries", 0),
    # Detects a node whose machine has gone silent while a call or a session is open.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.max_pings_without_data", 0),
    # A separate connection per channel: writes do not wait behind batches, nor one client behind another.
    ("grpc.use_local_subchannel_pool", 1),
)

PROXY = "grpc.enable_http_proxy"
"""Whether a connection may go through the web proxy of the environment, as gRPC's do by default: wherever a channel to
a node is made, this is 0. A web proxy may be unable to reach the node, and could read and change what passes."""

CONNECT_TIMEOUT = {"grpc.min_reconnect_backoff_ms": 1000}
"""Despite its name, this option limits how long one attempt to connect may take; a refusal ends it at once."""


def with_changes(options: ChannelOptions, changes: Mapping[str, int]) -> ChannelOptions:
    return tuple({**dict(options), **changes}.items())


def for_patience(options: ChannelOptions, patience_s: float) -> ChannelOptions:
    """Return the options of a caller that waits for a node no longer than `patience_s`.

    Between two attempts to connect, gRPC answers from memory. With pauses as long as the patience, a caller would
    receive a refusal older than the node.
    """
    pause_ms = patience_s * 1000 / 4
    if pause_ms >= dict(options)["grpc.max_reconnect_backoff_ms"]:
        return options
    # An attempt may last as long as a pause, which is too short for distant nodes here.
    return with_changes(options, {"grpc.max_reconnect_backoff_ms": max(100, round(pause_ms)), **CONNECT_TIMEOUT})


def set_tcp_options(sock: Any, idle_s: int = 30, probes: int = 2) -> None:
    """Disable Nagle's algorithm, and detect a peer whose machine has disappeared: on an idle connection, and while it
    takes nothing."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("IDLE", idle_s), ("INTVL", 10), ("CNT", probes)):
        sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, f"TCP_KEEP{name}"), value)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 20_000)
