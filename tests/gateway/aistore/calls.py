"""Calls of AIStore's API as its clients make them: JSON in bodies of GET and DELETE, a token of the key file."""

from __future__ import annotations

import contextlib
import http.client
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from tests.gateway.conftest import ACCOUNT, Served

HEADERS = {
    "Authorization": f"Bearer {ACCOUNT.access_key}:{ACCOUNT.secret_key}",
    "Content-Type": "application/json",
}


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def call(served: Served, method: str, path: str, message: Any = None, **query: str) -> Answer:
    """Send a request to /v1/`path`, and return the whole answer. Raises IncompleteRead if it ends early."""
    with contextlib.closing(connection(served)) as open_connection:
        answer = ask(open_connection, method, path, message, **query)
        return Answer(answer.status, {name.lower(): value for name, value in answer.headers.items()}, answer.read())


def connection(served: Served) -> http.client.HTTPConnection:
    return http.client.HTTPConnection("127.0.0.1", served.port, timeout=30)


def ask(
    open_connection: http.client.HTTPConnection, method: str, path: str, message: Any = None, **query: str
) -> http.client.HTTPResponse:
    """Send a request, and return its answer as it arrives. A message of bytes is sent as it is."""
    body = message if message is None or isinstance(message, bytes) else json.dumps(message).encode()
    target = f"/v1/{quote(path)}" + (f"?{urlencode(query)}" if query else "")
    open_connection.request(method, target, body, HEADERS)
    return open_connection.getresponse()


def action(name: str, value: Any = None, /, **fields: Any) -> dict[str, Any]:
    return {"action": name, "value": value, **fields}


def succeeded(answer: Answer) -> Answer:
    assert answer.status == 200, (answer.status, answer.body[:1000])
    return answer


def job_of(served: Served, answer: Answer) -> dict[str, Any]:
    """Return the state of the job that an answer names, which must be at its end."""
    id = succeeded(answer).text
    found: dict[str, Any] = succeeded(call(served, "GET", "cluster", {"ID": id, "Kind": ""}, what="status")).json
    assert found["uuid"] == id
    assert found["end_time"] > 0
    return found
