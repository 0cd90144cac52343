"""Pieces of an object that a client sends by a lane: small ones go together, but never wait for all others."""

from __future__ import annotations

import random
import socket
import threading
from typing import Any, cast

from ais_loader import errors
from ais_loader.transport.session.call_lane import PUT, LaneCall
from ais_loader.wire.lane import DATA, HEADER, LAST, MESSAGE

PIECES, PIECE_BYTES = 300, 60_000
HELD_BYTES = 64 << 10
TIMEOUT_S = 180.0


class _Lane:
    is_readable = False

    def close(self) -> None:
        """The test closes its sockets."""


def _failed(error: Exception) -> errors.LoaderError:
    return errors.NodeUnavailable(str(error))


def test_small_pieces_are_sent_while_others_follow_and_arrive_in_order() -> None:
    pieces = [random.Random(number).randbytes(PIECE_BYTES) for number in range(PIECES)]
    ours, theirs = socket.socketpair()
    received = bytearray()
    with ours, theirs:
        ours.settimeout(TIMEOUT_S)
        theirs.settimeout(TIMEOUT_S)

        def receive() -> None:
            while part := theirs.recv(1 << 20):
                received.extend(part)

        reader = threading.Thread(target=receive)
        reader.start()
        with LaneCall(cast(Any, _Lane()), ours, PUT, _failed) as call:
            for number, piece in enumerate(pieces):
                call.send(piece, DATA, more=number < PIECES - 1)
                assert len(call._held) <= HELD_BYTES
            call.send(b"end", LAST)
        ours.shutdown(socket.SHUT_WR)
        reader.join(TIMEOUT_S)
        assert not reader.is_alive()
    messages, at = [], 0
    while at < len(received):
        size_bytes, kind = HEADER.unpack_from(received, at)
        at += HEADER.size + size_bytes
        messages.append((kind, bytes(received[at - size_bytes : at])))
    assert messages[0][1] == PUT.encode()
    assert messages[1:] == [*((DATA, piece) for piece in pieces), (LAST, b"end")]


def test_small_messages_share_one_packet() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        theirs.settimeout(TIMEOUT_S)
        with LaneCall(cast(Any, _Lane()), ours, PUT, _failed) as call:
            for number in range(3):
                call.send(b"%d" % number, MESSAGE, more=True)
            call.send(b"end", LAST)
        packet = theirs.recv(1 << 16)
    assert packet.endswith(b"end")
    assert packet.count(b"end") == 1
    assert len(packet) == 5 * HEADER.size + len(PUT) + 3 + len(b"end")
