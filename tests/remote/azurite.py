"""Azurite, Microsoft's emulator of Azure Blob Storage, and what tests put into it beside our client.

`make test-remote` installs it into AIS_LOADER_EMULATORS.
"""

from __future__ import annotations

import base64
import contextlib
import hmac
import http.client
import urllib.parse
import uuid
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from email.utils import formatdate
from pathlib import Path

from tests.free_ports import free_port
from tests.remote.emulator import Emulator

ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The account that Azurite always has, with the key that its documentation names."""


class Azurite(Emulator):
    """A running Azurite, empty at first. As a context manager, it stops at the end.

    Raises RuntimeError if it does not start.
    """

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        program = folder / "node_modules/.bin/azurite-blob"
        options = ["--inMemoryPersistence", "--silent", "--skipApiVersionCheck", "--disableTelemetry"]
        super().__init__([program, "--blobHost", "127.0.0.1", "--blobPort", str(self.port), *options], self.port)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}/{ACCOUNT}"

    def container(self) -> str:
        """Create a container with a name that no other test uses, and return the name."""
        name = f"r-{uuid.uuid4().hex[:16]}"
        self._call("PUT", name, query={"restype": "container"})
        return name

    def put(self, container: str, key: str, data: bytes, headers: Mapping[str, str] | None = None) -> None:
        own = {f"x-ms-blob-{name.lower()}": value for name, value in (headers or {}).items()}
        self._call("PUT", f"{container}/{urllib.parse.quote(key)}", data, {"x-ms-blob-type": "BlockBlob", **own})

    def keys(self, container: str) -> list[str]:
        body = self._call("GET", container, query={"restype": "container", "comp": "list"})
        return sorted(found.text or "" for found in ET.fromstring(body).iterfind("Blobs/Blob/Name"))

    def _call(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        query: Mapping[str, str] | None = None,
    ) -> bytes:
        path, query = f"/{ACCOUNT}/{path}", query or {}
        sent = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-08-06", **(headers or {})}
        length = str(len(body)) if body else ""
        lines = [method, "", "", length, *[""] * 8, *(f"{name}:{sent[name]}" for name in sorted(sent))]
        lines += [f"/{ACCOUNT}{path}", *(f"{name}:{value}" for name, value in sorted(query.items()))]
        digest = hmac.digest(base64.b64decode(KEY), "\n".join(lines).encode(), "sha256")
        sent["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}"
        url = path + (f"?{urllib.parse.urlencode(query)}" if query else "")
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=180)) as connection:
            connection.request(method, url, body=body, headers=sent)
            answer = connection.getresponse()
            data = answer.read()
        if answer.status >= 300:
            raise RuntimeError(f"{method} {url}: {answer.status} {data[:500]!r}")
        return data
