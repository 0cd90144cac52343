"""Identity of a caller between nodes: its node, the version of its map, and a proof that it knows the secret.

The identity is metadata of every call to a peer listener. A `CallerChannel` adds it to all calls made through it, so
that no call between nodes can be made without it. A caller that has no place in a map, such as an operator's command,
has the operator's role.
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
    """Identity of a node or an operator. `node_uuid` is empty for an operator, which acts by no map."""

    secret: str = field(default="", repr=False)
    node_uuid: bytes = b""
    map_version: Callable[[], int] = int

    def prover(self, endpoint: str) -> Prover | None:
        """Return a prover for the calls of one channel to this endpoint; None without a secret."""
        return Prover(self.secret, endpoint) if self.secret else None

    def metadata(self, method: str, prover: Prover | None) -> Metadata:
        """Return the metadata of one call, by the current map. `method`: its path on the wire."""
        if self.node_uuid:
            claim = CallClaim(method, NODE_ROLE, self.node_uuid.hex(), str(self.map_version()))
            metadata: Metadata = ((ROLE_KEY, NODE_ROLE), (NODE_KEY, claim.node), (MAP_VERSION_KEY, claim.map_version))
        else:
            claim = CallClaim(method, OPERATOR_ROLE)
            metadata = ((ROLE_KEY, OPERATOR_ROLE),)
        return metadata if prover is None else (*metadata, (PROOF_KEY, prover.prove(claim)))

    def through(self, channel: Any, endpoint: str) -> Any:
        """Wrap a channel of grpc or grpc.aio, so that generated stubs call as this caller.

        `endpoint`: the host:port for which the channel was made.
        """
        return CallerChannel(channel, self, endpoint)


OPERATOR = Caller()
"""Operator of a cluster without a secret."""


class CallerChannel:
    """The methods of a channel that stubs use. Not a gRPC interceptor, which would queue each stream of grpc.aio."""

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
        """Close the channel. The result is awaitable for a channel of grpc.aio."""
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
    """Create a file with a new secret, or with this one, that only its owner may read; unless there is one. Raises
    OSError."""
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
    """Read the secret from a file; "" for an empty path. Raises OSError, and ValueError if the file contains none."""
    if not path:
        return ""
    text = Path(path).read_text(encoding="ascii", errors="replace").strip()
    if not _SECRET.fullmatch(text):
        raise ValueError(
            f"{path}: a secret is one line of {MIN_SECRET_CHARACTERS} to 1024 printable ASCII characters, as "
            "`openssl rand -hex 32` makes"
        )
    return text


def resolved(asked: str, answer: str) -> str:
    """Return a node's endpoint for peers, from its answer at another endpoint; see GetMapResponse."""
    if not answer:
        return asked
    return asked.rpartition(":")[0] + answer if answer.startswith(":") else answer
