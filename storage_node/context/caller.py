"""Identity of a caller between nodes: which node it is, by which map it acts, and a proof that it knows the secret.

It travels as metadata of every call to a peer listener. A `CallerChannel` adds it to all that is called through it, so
that no call between nodes can be made without. Who has no place in a map, an operator's command, says so.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ais_loader.wire.peer_proof import PROOF_KEY, CallClaim, Prover
from ais_loader.wire.reserved import NODE_ROLE, OPERATOR_ROLE, ROLE_KEY

NODE_KEY = "ais-node"
MAP_VERSION_KEY = "ais-map-version"
MIN_SECRET_CHARACTERS = 16
_SECRET = re.compile(rf"[!-~]{{{MIN_SECRET_CHARACTERS},1024}}")

Metadata = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Caller:
    """`node_uuid` is empty for an operator, who acts by no map."""

    secret: str = field(default="", repr=False)
    node_uuid: bytes = b""
    map_version: Callable[[], int] = int

    def prover(self, endpoint: str) -> Prover | None:
        """For the calls of one channel to this endpoint; None without a secret."""
        return Prover(self.secret, endpoint) if self.secret else None

    def metadata(self, method: str, prover: Prover | None) -> Metadata:
        """Metadata of one call, as things stand now. `method`: its path on the wire."""
        if self.node_uuid:
            claim = CallClaim(method, NODE_ROLE, self.node_uuid.hex(), str(self.map_version()))
            told: Metadata = ((ROLE_KEY, NODE_ROLE), (NODE_KEY, claim.node), (MAP_VERSION_KEY, claim.map_version))
        else:
            claim = CallClaim(method, OPERATOR_ROLE)
            told = ((ROLE_KEY, OPERATOR_ROLE),)
        return told if prover is None else (*told, (PROOF_KEY, prover.prove(claim)))

    def through(self, channel: Any, endpoint: str) -> Any:
        """A channel for generated stubs, of grpc or grpc.aio, that calls as this caller.

        `endpoint`: the host:port that the channel was made for.
        """
        return CallerChannel(channel, self, endpoint)


OPERATOR = Caller()
"""Of a cluster without a secret."""


class CallerChannel:
    """What stubs use of a channel. Not a gRPC interceptor: those put a queue in front of each stream of grpc.aio."""

    def __init__(self, channel: Any, caller: Caller, endpoint: str) -> None:
        self._channel = channel
        self._caller = caller
        self._prover = caller.prover(endpoint)

    def unary_unary(self, path: str, *arguments: Any, **named: Any) -> Any:
        return self._method(self._channel.unary_unary(path, *arguments, **named), path)

    def unary_stream(self, path: str, *arguments: Any, **named: Any) -> Any:
        return self._method(self._channel.unary_stream(path, *arguments, **named), path)

    def stream_unary(self, path: str, *arguments: Any, **named: Any) -> Any:
        return self._method(self._channel.stream_unary(path, *arguments, **named), path)

    def stream_stream(self, path: str, *arguments: Any, **named: Any) -> Any:
        return self._method(self._channel.stream_stream(path, *arguments, **named), path)

    def _method(self, method: Any, path: str) -> _Method:
        return _Method(method, self._caller, path, self._prover)

    def close(self) -> Any:
        """To be awaited where the channel is one of grpc.aio."""
        return self._channel.close()

    def __enter__(self) -> CallerChannel:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()


class _Method:
    def __init__(self, method: Any, caller: Caller, path: str, prover: Prover | None) -> None:
        self._method = method
        self._caller = caller
        self._path = path
        self._prover = prover

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._method(*arguments, metadata=self._caller.metadata(self._path, self._prover), **named)

    def future(self, *arguments: Any, **named: Any) -> Any:
        return self._method.future(*arguments, metadata=self._caller.metadata(self._path, self._prover), **named)


def make_secret(path: Path, secret: str = "") -> None:
    """A file with a new secret, or with this one, that only its owner may read; unless there is one. Raises OSError."""
    made = path.with_name(f"{path.name}.{os.getpid()}")
    fd = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with open(fd, "w") as file:
            file.write((secret or secrets.token_hex(32)) + "\n")
            file.flush()
            os.fsync(fd)
        os.link(made, path)
    except FileExistsError:
        pass
    finally:
        made.unlink()


def read_secret(path: str | Path) -> str:
    """The secret in a file; "" for no path. Raises OSError, and ValueError where the file holds none."""
    if not path:
        return ""
    text = Path(path).read_text(encoding="ascii", errors="replace").strip()
    if not _SECRET.fullmatch(text):
        raise ValueError(
            f"{path}: a secret is one line of {MIN_SECRET_CHARACTERS} to 1024 printable ASCII characters, as "
            "`openssl rand -hex 32` makes"
        )
    return text


def resolved(asked: str, told: str) -> str:
    """Where a node that was asked at one endpoint listens for peers, by what it told; see GetMapResponse."""
    if not told:
        return asked
    return asked.rpartition(":")[0] + told if told.startswith(":") else told
