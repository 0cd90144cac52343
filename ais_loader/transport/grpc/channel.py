"""Channel to a node, the one place where clients open one: without TLS for `grpc://`, with it for `grpcs://`.

A node whose certificate does not hold, or that speaks TLS where the URL says that it does not, would otherwise look
like one that cannot be reached: gRPC reports all of these in the same way. `untrusted` tells them apart.
"""

from __future__ import annotations

import contextlib
import functools
import socket
import ssl
from pathlib import Path

import grpc

from ais_loader.errors import InvalidRequest, NodeUntrusted
from ais_loader.values.options import ClusterOptions
from ais_loader.wire.channel_options import PROXY, ChannelOptions, with_changes
from ais_loader.wire.node_folder import UNIX_SCHEME

_PROBE_TIMEOUT_S = 2.0
_HANDSHAKE = "handshake failed"
_NO_TLS = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST")
_TLS_RECORDS = (b"\x15", b"\x16")
"""First byte of an alert, and of an answer to a handshake."""
_CUT = ("Socket closed", "Connection reset", "Broken pipe")


def open_channel(endpoint: str, options: ClusterOptions, channel_options: ChannelOptions) -> grpc.Channel:
    """Open a channel, which connects on first use. Raises InvalidRequest for a CA file that cannot be used."""
    channel_options = with_changes(channel_options, {PROXY: int(options.proxy)})
    if not options.tls:
        return grpc.insecure_channel(endpoint, options=channel_options)
    credentials = grpc.ssl_channel_credentials(read_ca(options.ca) if options.ca else _system_roots())
    return grpc.secure_channel(endpoint, credentials, options=channel_options)


def read_ca(path: str) -> bytes:
    """Read a file of certificates in PEM. Raises InvalidRequest."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
        return Path(path).read_bytes()
    except ssl.SSLError:
        raise InvalidRequest(f"ca={path!r}: the file has no certificates in PEM") from None
    except OSError as error:
        raise InvalidRequest(f"ca={path!r}: {error.strerror or error}") from None


@functools.cache
def _system_roots() -> bytes | None:
    """Return the CAs that this system trusts; None, which stands for those that gRPC brings, if it has none."""
    trusted = ssl.create_default_context().get_ca_certs(binary_form=True)
    return "".join(map(ssl.DER_cert_to_PEM_cert, trusted)).encode() or None


def untrusted(endpoint: str, details: str, options: ClusterOptions) -> NodeUntrusted | None:
    """Return the error of a connection that failed for a reason of TLS; None for any other reason.

    Args:
        details: gRPC's description of the failure.
    """
    if not options.tls:
        if any(cut in details for cut in _CUT) and not endpoint.startswith(UNIX_SCHEME) and _speaks_tls(endpoint):
            return NodeUntrusted(f"{endpoint}: the node speaks TLS: use grpcs://{endpoint}, and ca= for its own CA")
        return None
    if any(sign in details for sign in _NO_TLS):
        return NodeUntrusted(
            f"{endpoint}: the node does not speak TLS: start it with --secure, or use grpc://{endpoint}"
        )
    if "Hostname Verification" in details:
        host = endpoint.rpartition(":")[0]
        return NodeUntrusted(
            f"{endpoint}: the node's certificate is not for {host}: use a name that it contains, or start the node "
            f"with --advertise {host}"
        )
    if _HANDSHAKE in details.lower():
        reason = details.rpartition("OPENSSL_internal:")[2].removesuffix(": OK")
        trusted = f"the CAs in {options.ca}" if options.ca else "the CAs of this system (ca= names others)"
        return NodeUntrusted(
            f"{endpoint}: the node's certificate does not hold, by {trusted} and this machine's clock: {reason}"
        )
    return None


def _speaks_tls(endpoint: str) -> bool:
    """Whether a node answers a handshake, which is not finished."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # nothing is sent: the question is only whether it answers
    context.set_alpn_protocols(["h2"])
    hello = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), hello).do_handshake()
    host, _, port = endpoint.rpartition(":")
    address = host.strip("[]"), int(port)
    with contextlib.suppress(OSError, ValueError), socket.create_connection(address, timeout=_PROBE_TIMEOUT_S) as sock:
        sock.sendall(hello.read())
        return sock.recv(1) in _TLS_RECORDS
    return False
