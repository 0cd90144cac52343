"""Calls of AIStore's API with JSON in their bodies, also those of GET and DELETE, as its clients make them."""

from __future__ import annotations

import http.client
import json
from typing import Any
from urllib.parse import quote

from tests.gateway.aistore.conftest import BEARER, Ais, Answer
from tests.gateway.conftest import Served


def call(served: Served, method: str, path: str, message: Any = None, **query: str) -> Answer:
    """Send a request to /v1/`path`, and return the whole answer. Raises IncompleteRead if it ends early."""
    body = message if message is None or isinstance(message, bytes) else json.dumps(message)
    return Ais(served.port)(method, quote(path), body, **query)


def connection(served: Served) -> http.client.HTTPConnection:
    return http.client.HTTPConnection("127.0.0.1", served.port, timeout=180)


def ask(opened: http.client.HTTPConnection, method: str, path: str, message: Any) -> http.client.HTTPResponse:
    """Send a request, and return its answer as it arrives."""
    opened.request(method, f"/v1/{path}", json.dumps(message), {"Authorization": BEARER})
    return opened.getresponse()


def action(name: str, value: Any = None, /, **fields: Any) -> dict[str, Any]:
    return {"action": name, "value": value, **fields}


def succeeded(answer: Answer) -> Answer:
    assert answer.status == 200, (answer.status, answer.body[:1000])
    return answer


def job_of(served: Served, answer: Answer) -> dict[str, Any]:
    """Return the state of the job that an answer names, which must be at its end."""
    id = succeeded(answer).body.decode()
    found: dict[str, Any] = succeeded(call(served, "GET", "cluster", {"ID": id, "Kind": ""}, what="status")).json()
    assert found["uuid"] == id
    assert found["end_time"] > 0
    return found
