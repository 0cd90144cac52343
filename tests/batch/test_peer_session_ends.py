"""A session to another node whose reader fails in an unforeseen way: its streams hear of it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from storage_node.batch import peers
from storage_node.batch.peer_stream import PeerError, PeerUnavailable


def test_streams_of_a_session_hear_of_an_unforeseen_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody would read their answers, and nobody would open another session, as one is there."""

    async def scenario() -> None:
        came, failed = asyncio.Event(), list[PeerError]()

        async def read() -> bytes:
            await came.wait()
            return b"a message"

        def decode(message: bytes) -> None:
            raise ValueError("nobody has foreseen this")

        monkeypatch.setattr(peers, "decode_response", decode)
        call = SimpleNamespace(read=read, cancel=lambda: None)
        suspects = SimpleNamespace(answered=lambda _: None)
        peer = SimpleNamespace(endpoint="n1:1", suspects=suspects, failed=failed.append, rest=lambda _: None)
        session = peers._GrpcSession(cast(Any, peer), lambda messages: call)
        heard: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        session.streams[1] = cast(Any, SimpleNamespace(deliver=heard.set_result))
        came.set()
        await asyncio.wait([session._reader])
        assert session.broken is not None and failed == [session.broken]
        assert isinstance(heard.result(), PeerUnavailable) and "nobody has foreseen" in str(session.broken)

    asyncio.run(scenario())
