"""S3 server: moto in a process of its own, and what tests put into it, over plain HTTP.

A process, so that neither the warnings nor the processor time of moto are those of a test. It ends when its input is
closed, and therefore never outlives the tests. It accepts any credentials.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import subprocess
import sys
import urllib.parse
import uuid
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping
from types import TracebackType

CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "test-key",
    "AWS_SECRET_ACCESS_KEY": "test-secret",
    "AWS_REGION": "us-east-1",
}
"""Environment of a client of the server."""
_UNSIGNED = (
    "AWS4-HMAC-SHA256 Credential=test-key/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=unchecked"
)
_PROGRAM = """
import logging, sys
from moto.server import ThreadedMotoServer
logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""
PAGE_KEYS = 100
"""Number of keys of a page of a listing."""
_TIMEOUT_S = 180.0


class S3Client:
    """Calls of the server on this port, which any process may make."""

    def __init__(self, port: int) -> None:
        self.port = port

    def bucket(self) -> str:
        """Create a bucket with a name that no other test uses, and return the name."""
        name = f"r-{uuid.uuid4().hex[:16]}"
        self._call("PUT", name)
        return name

    def put(
        self,
        bucket: str,
        key: str,
        data: bytes,
        *,
        metadata: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> str:
        """Put an object and return its ETag, with its quotes."""
        headers = {**(headers or {}), **{f"x-amz-meta-{name}": value for name, value in (metadata or {}).items()}}
        return self._call("PUT", bucket, key, body=data, headers=headers)[0]["ETag"]

    def get(self, bucket: str, key: str) -> bytes:
        """Raises KeyError if there is no such object, like `head` and `delete`."""
        return self._call("GET", bucket, key)[1]

    def head(self, bucket: str, key: str) -> dict[str, str]:
        """Return the headers of an object, such as `ETag` and `x-amz-meta-NAME`."""
        return self._call("HEAD", bucket, key)[0]

    def delete(self, bucket: str, key: str) -> None:
        self.head(bucket, key)
        self._call("DELETE", bucket, key)

    def keys(self, bucket: str) -> list[str]:
        """Return the keys of a bucket, sorted."""
        return sorted(self._listed(bucket))

    def uploads(self, bucket: str) -> int:
        """Return the number of uploads in parts that are neither complete nor aborted."""
        root = ET.fromstring(self._call("GET", bucket, query={"uploads": ""})[1])
        return len(root.findall("{*}Upload"))

    def _listed(self, bucket: str) -> Iterator[str]:
        token = ""
        while True:
            query = {"list-type": "2", "encoding-type": "url"} | ({"continuation-token": token} if token else {})
            root = ET.fromstring(self._call("GET", bucket, query=query)[1])
            yield from (urllib.parse.unquote(found.text or "") for found in root.findall("{*}Contents/{*}Key"))
            token = root.findtext("{*}NextContinuationToken", "")
            if not token:
                return

    def _call(
        self,
        method: str,
        bucket: str,
        key: str = "",
        *,
        query: Mapping[str, str] | None = None,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
    ) -> tuple[dict[str, str], bytes]:
        path = f"/{bucket}/{urllib.parse.quote(key)}" + (f"?{urllib.parse.urlencode(query)}" if query else "")
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=_TIMEOUT_S)) as connection:
            connection.request(method, path, body=body, headers={**(headers or {}), "Authorization": _UNSIGNED})
            answer = connection.getresponse()
            data = answer.read()
        if answer.status == 404:
            raise KeyError(key or bucket)
        if answer.status >= 300:
            raise RuntimeError(f"{method} {path}: {answer.status} {data[:500]!r}")
        return dict(answer.getheaders()), data


class S3Server(S3Client):
    """A running S3 server, empty at first. As a context manager, it stops at the end.

    Raises RuntimeError if the server does not start.
    """

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", _PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"MOTO_S3_DEFAULT_MAX_KEYS": str(PAGE_KEYS)},
        )
        assert self._process.stdout is not None
        port = self._process.stdout.readline().strip()
        if not port:
            self.close()
            raise RuntimeError(
                f"the S3 server ended with status {self._process.returncode}; is moto[server] installed?"
            )
        super().__init__(int(port))

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def close(self) -> None:
        """Stop the server. May be called again."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        try:
            self._process.wait(5.0)
        except subprocess.TimeoutExpired:  # it is serving somebody still
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> S3Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
