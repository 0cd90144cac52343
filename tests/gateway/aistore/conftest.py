"""A client of AIStore's API that is plain HTTP."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

import pytest

from ais_loader.integrations.gateway.aistore import jobs
from ais_loader.objects import archive
from tests.gateway.conftest import ACCOUNT, Served

BEARER = f"Bearer {ACCOUNT.access_key}:{ACCOUNT.secret_key}"


@dataclass(frozen=True)
class Answer:
    """Status, headers by names in lower case, and body."""

    status: int
    headers: dict[str, str]
    pairs: list[tuple[str, str]]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    def message(self) -> str:
        """The message of an error, after its shape has been checked."""
        assert self.headers["content-type"] == "application/json" and self.body.endswith(b"}\n")
        error = self.json()
        assert error.keys() == {
            *("tcode", "message", "method", "url_path", "remote_addr", "caller", "node", "status"),
        }
        assert error["status"] == self.status
        return str(error["message"])


class Ais:
    """Sends requests to a gateway, each on a connection of its own."""

    def __init__(self, port: int, bearer: str = BEARER) -> None:
        self.port, self.bearer = port, bearer

    def __call__(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        **query: str,
    ) -> Answer:
        """Send a request below /v1/. A body that is a dict is sent as JSON; an iterator in chunks."""
        sent = {"Content-Type": "application/json", **(headers or {})}
        if self.bearer:
            sent["Authorization"] = self.bearer
        if isinstance(body, dict):
            body = json.dumps(body)
        target = f"/v1/{path}" + (f"?{urlencode(query)}" if query else "")
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=180)
        try:
            connection.request(method, target, body, sent)
            answer = connection.getresponse()
            pairs = [(name.lower(), value) for name, value in answer.getheaders()]
            return Answer(answer.status, dict(pairs), pairs, answer.read())
        finally:
            connection.close()

    def put(self, bucket: str, name: str, data: bytes, **query: str) -> Answer:
        """Store an object, which must succeed."""
        answer = self("PUT", f"objects/{bucket}/{quote(name)}", data, **query)
        assert answer.status == 200, answer
        return answer

    def get(self, bucket: str, name: str, headers: Mapping[str, str] | None = None, **query: str) -> Answer:
        return self("GET", f"objects/{bucket}/{quote(name)}", headers=headers, **query)

    def head(self, bucket: str, name: str, **query: str) -> Answer:
        return self("HEAD", f"objects/{bucket}/{quote(name)}", **query)


@pytest.fixture(scope="module", autouse=True)
def errors_before_answers() -> Iterator[None]:
    """On a busy machine, what fails soon fails after a while, when the answer would have begun with a status of 200."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jobs, "_AT_ONCE_S", 180.0)
        patch.setattr(archive, "_CHUNK_S", 180.0)
        yield


@pytest.fixture(scope="session")
def ais(served: Served) -> Ais:
    return Ais(served.port)
