"""Token source: where a client takes its token from, a file, a variable or a value, and to whom it may send it.

Only the reference is shown, compared and pickled. A value stays in this process, and in its forks; a client that was
pickled with one takes its token from the environment of the process that it comes to.
"""

from __future__ import annotations

import ipaddress
import os
import secrets
import threading
import time
from pathlib import Path
from typing import Any

from ais_loader.errors import AccessDenied, InvalidRequest
from ais_loader.wire.node_folder import UNIX_SCHEME

TOKEN_VARIABLE = "AIS_LOADER_TOKEN"
TOKEN_FILE_VARIABLE = "AIS_LOADER_TOKEN_FILE"
MAX_TOKEN_BYTES = 8 << 10
_LOOK_EVERY_S = 1.0
_VALUES: dict[str, str] = {}
"""Tokens that were given as values, by a number that only this process knows."""
_HOW = f"pass token_file= to connect(), or set {TOKEN_FILE_VARIABLE}"


def may_send_token(endpoint: str, is_tls: bool) -> bool:
    """Whether a token may be sent to host:port, or to a Unix socket: only where nobody on the network can read it."""
    host = endpoint.rpartition(":")[0].strip("[]")
    if is_tls or host == "localhost" or endpoint.startswith(UNIX_SCHEME):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name may be any address
        return False


class TokenSource:
    """A reference to a token. Thread-safe."""

    def __init__(self, kind: str, where: str) -> None:
        """Use one of the class methods."""
        self._kind, self._where = kind, where
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._looked_s = float("-inf")
        self._seen: tuple[int, int, int] | None = None
        self._token = ""

    @classmethod
    def value(cls, token: str) -> TokenSource:
        """Keep a token in this process. Raises InvalidRequest, which does not contain the token."""
        if not isinstance(token, str):
            raise TypeError(f"token: need a str, got {type(token).__name__}")
        number = secrets.token_hex(8)
        _VALUES[number] = _checked(token, "token=")
        return cls("value", number)

    @classmethod
    def file(cls, path: str | os.PathLike[str]) -> TokenSource:
        """Refer to a file with one token, which is read again when it has changed."""
        return cls("file", os.path.abspath(os.path.expanduser(path)))

    @classmethod
    def from_environment(cls) -> TokenSource | None:
        """Refer to AIS_LOADER_TOKEN_FILE or AIS_LOADER_TOKEN, whichever is set first; None if neither is."""
        if path := os.environ.get(TOKEN_FILE_VARIABLE):
            return cls.file(path)
        return cls("variable", TOKEN_VARIABLE) if os.environ.get(TOKEN_VARIABLE) else None

    def read(self) -> str:
        """Return the token as it is now. Raises AccessDenied if it cannot be read."""
        if self._kind == "file":
            return self._read_file()
        if self._kind == "variable":
            return _checked(os.environ.get(self._where, ""), self._where)
        if (token := _VALUES.get(self._where)) is not None:
            return token
        if (other := TokenSource.from_environment()) is not None:
            return other.read()
        raise AccessDenied(f"the client was pickled, and tokens are not: {_HOW} in this process")

    def _read_file(self) -> str:
        with self._lock:
            now_s = time.monotonic()
            if self._token and now_s - self._looked_s < _LOOK_EVERY_S:
                return self._token
            try:
                found = os.stat(self._where)
                seen = found.st_mtime_ns, found.st_size, found.st_ino
                if seen != self._seen:
                    self._token = _checked(Path(self._where).read_text(errors="replace"), self._where)
                    self._seen = seen
                self._looked_s = now_s
            except (OSError, InvalidRequest) as error:
                if not self._token:  # else the file is being replaced
                    raise AccessDenied(f"the token cannot be read: {error}") from None
            return self._token

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Return the metadata of a call with the token. Raises AccessDenied."""
        return (("authorization", f"Bearer {self.read()}"),)

    def __repr__(self) -> str:
        return "<token: a value of this process>" if self._kind == "value" else f"<token: {self._kind} {self._where}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TokenSource) and (self._kind, self._where) == (other._kind, other._where)

    def __hash__(self) -> int:
        return hash((self._kind, self._where))

    def __reduce__(self) -> tuple[Any, ...]:
        return TokenSource, (self._kind, self._where)


def _checked(text: str, source: str) -> str:
    """Return a token without the white space around it. Raises InvalidRequest, which does not contain it."""
    token = text.strip()
    if not token or len(token) > MAX_TOKEN_BYTES or not token.isascii() or not token.isprintable() or " " in token:
        raise InvalidRequest(f"{source}: need a token as `ais-loader token create` makes it, on one line")
    return token


def require_sendable(source: TokenSource | None, endpoint: str, is_tls: bool) -> None:
    """Check that a client's token may be sent to host:port. Raises AccessDenied."""
    if source is not None and not may_send_token(endpoint, is_tls):
        raise AccessDenied(
            f"{endpoint}: the token is not sent there, because the connection is not encrypted and others could read it"
        )
