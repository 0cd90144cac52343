"""Google Cloud Storage for tests: fake-gcs-server, which has Google's JSON interface, behind its XML interface.

Our client speaks the XML interface, of which fake-gcs-server has reads and deletions only. A front in this process
translates the rest to the JSON interface: puts with their conditions and metadata, parts, conditions of reads, pages of
listings. Objects, generations, tags, ranges, inflation and the order of names are those of fake-gcs-server.

`make test-remote` installs it into AIS_LOADER_EMULATORS.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import threading
import uuid
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit
from xml.sax.saxutils import escape

from tests.free_ports import free_port
from tests.remote.emulator import Emulator

_PAGE = 100
_META = "x-goog-meta-"
_FORWARDED = ("range", "accept-encoding")


class GcsServer(Emulator):
    """A running emulator and its front. As a context manager, both stop at the end.

    Raises RuntimeError if the emulator does not start.
    """

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        host = f"127.0.0.1:{self.port}"
        options = ["-scheme", "http", "-host", "127.0.0.1", "-port", str(self.port), "-backend", "memory"]
        super().__init__(
            [folder / "bin/fake-gcs-server", *options, "-public-host", host, "-log-level", "error"], self.port
        )
        self.uploads: dict[str, dict[int, bytes]] = {}
        """Parts of uploads that are neither complete nor aborted."""
        self._front = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._front.daemon_threads = True
        self._thread = threading.Thread(target=self._front.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def close(self) -> None:
        self._front.shutdown()
        self._front.server_close()
        self._thread.join()
        super().close()

    @property
    def endpoint(self) -> str:
        """URL of the XML interface."""
        return f"http://127.0.0.1:{self._front.server_port}"

    def bucket(self) -> str:
        """Create a bucket with a name that no other test uses, and return the name."""
        name = f"r-{uuid.uuid4().hex[:16]}"
        self.json("POST", "/storage/v1/b?project=p", json.dumps({"name": name}).encode())
        return name

    def put(
        self,
        bucket: str,
        key: str,
        data: bytes,
        headers: Mapping[str, str] | None = None,
        metadata: Mapping[str, str] | None = None,
        generation: str = "",
    ) -> tuple[int, dict[str, Any]]:
        """Put an object, if it has this generation. Returns the status, and the description or an error."""
        given = {name.lower(): value for name, value in (headers or {}).items()}
        about = {
            "name": key,
            "contentType": given.get("content-type", ""),
            "contentEncoding": given.get("content-encoding", ""),
            "metadata": dict(metadata or {}),
        }
        line = uuid.uuid4().hex
        head = f"--{line}\r\nContent-Type: application/json\r\n\r\n{json.dumps(about)}\r\n--{line}\r\n"
        body = f"{head}Content-Type: {about['contentType'] or 'application/octet-stream'}\r\n\r\n".encode()
        condition = f"&ifGenerationMatch={generation}" if generation else ""
        return self.json(
            "POST",
            f"/upload/storage/v1/b/{bucket}/o?uploadType=multipart{condition}",
            body + data + f"\r\n--{line}--".encode(),
            {"Content-Type": f"multipart/related; boundary={line}"},
        )

    def has_bucket(self, bucket: str) -> bool:
        return self.json("GET", f"/storage/v1/b/{bucket}")[0] == 200

    def keys(self, bucket: str) -> list[str]:
        return sorted(key for key in _keys(self.call("GET", f"/{bucket}")[2]))

    def json(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> tuple[int, dict[str, Any]]:
        status, _, answer = self.call(method, path, body, headers)
        return status, json.loads(answer)

    def call(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        """Send a request to the emulator as it is. Returns the status, the headers and the content of the answer."""
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=180)) as connection:
            connection.putrequest(method, path, skip_accept_encoding=True)
            for name, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
                connection.putheader(name, value)
            connection.endheaders(body)
            answer = connection.getresponse()
            return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()


def _keys(listing: bytes) -> list[str]:
    return [found.text or "" for found in ET.fromstring(listing).iterfind("{*}Contents/{*}Key")]


def _handler(gcs: GcsServer) -> type[BaseHTTPRequestHandler]:
    """Return the front's class of handlers."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_request(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            parts = urlsplit(self.path)
            bucket, _, key = unquote(parts.path).lstrip("/").partition("/")
            query = dict(parse_qsl(parts.query, keep_blank_values=True))
            if not gcs.has_bucket(bucket):
                return self.error(404, "NoSuchBucket", "The specified bucket does not exist.")
            if self.command == "GET" and "list-type" in query:
                return self.listing(bucket, query)
            if "uploads" in query or "uploadId" in query:
                return self.upload(bucket, key, query, body)
            if self.command == "PUT":
                return self.stored(*self.put(bucket, key, body))
            return self.forwarded(f"/{bucket}/{quote(key, safe='')}")

        do_GET = do_HEAD = do_PUT = do_DELETE = do_POST = handle_request

        def listing(self, bucket: str, query: Mapping[str, str]) -> None:
            _, _, answer = gcs.call("GET", f"/{bucket}?prefix={quote(query.get('prefix', ''), safe='')}")
            after = query.get("continuation-token") or query.get("start-after", "")
            root = ET.fromstring(answer)
            found = [one for one in root.iterfind("{*}Contents") if (one.findtext("{*}Key") or "") > after]
            rows = []
            for one in found[:_PAGE]:
                about = {name: one.findtext("{*}" + name) or "" for name in ("Key", "Size", "LastModified", "ETag")}
                about["ETag"] = '"{}"'.format(about["ETag"].strip('"'))
                if query.get("encoding-type") == "url":
                    about["Key"] = quote(about["Key"])
                cells = "".join(f"<{name}>{escape(value)}</{name}>" for name, value in about.items())
                rows.append(f"<Contents>{cells}</Contents>")
            text = f"<IsTruncated>{str(len(found) > _PAGE).lower()}</IsTruncated>"
            if query.get("encoding-type") == "url":
                text += "<EncodingType>url</EncodingType>"
            if len(found) > _PAGE:
                last = found[_PAGE - 1].findtext("{*}Key") or ""
                text += f"<NextContinuationToken>{escape(last)}</NextContinuationToken>"
            body = f"<ListBucketResult>{text}{''.join(rows)}</ListBucketResult>".encode()
            self.answer(200, body, {"Content-Type": "application/xml"})

        def put(self, bucket: str, key: str, body: bytes) -> tuple[int, dict[str, Any]]:
            metadata = {
                name.lower().removeprefix(_META): value
                for name, value in self.headers.items()
                if name.lower().startswith(_META)
            }
            generation = self.headers.get("x-goog-if-generation-match", "")
            return gcs.put(bucket, key, body, self.headers, metadata, generation)

        def stored(self, status: int, about: Mapping[str, Any]) -> None:
            if status != 200:
                return self.error(status, "PreconditionFailed" if status == 412 else "Failed", json.dumps(about))
            self.answer(200, b"", {"ETag": f'"{about["etag"]}"', "x-goog-generation": str(about["generation"])})

        def upload(self, bucket: str, key: str, query: Mapping[str, str], body: bytes) -> None:
            if "uploads" in query:
                name = uuid.uuid4().hex
                gcs.uploads[name] = {}
                self.server.begun = getattr(self.server, "begun", {}) | {name: self.headers}  # type: ignore[attr-defined]
                text = f"<InitiateMultipartUploadResult><UploadId>{name}</UploadId></InitiateMultipartUploadResult>"
                return self.answer(200, text.encode(), {})
            name = query["uploadId"]
            if self.command == "PUT":
                gcs.uploads[name][int(query["partNumber"])] = body
                return self.answer(200, b"", {"ETag": f'"part-{query["partNumber"]}"'})
            parts = gcs.uploads.pop(name)
            if self.command == "DELETE":
                return self.answer(204, b"", {})
            numbers = [int(one) for one in re.findall(rb"<PartNumber>(\d+)</PartNumber>", body)]
            self.headers = self.server.begun[name]  # type: ignore[attr-defined]
            status, about = self.put(bucket, key, b"".join(parts[number] for number in numbers))
            if status != 200:
                return self.stored(status, about)
            tag = f"<ETag>&quot;{about['etag']}&quot;</ETag>"
            text = f"<CompleteMultipartUploadResult>{tag}</CompleteMultipartUploadResult>"
            self.answer(200, text.encode(), {"x-goog-generation": str(about["generation"])})

        def forwarded(self, path: str) -> None:
            wanted = self.headers.get("If-Match", ""), self.headers.get("If-None-Match", "")
            if any(wanted):
                status, found, _ = gcs.call("HEAD", path)
                if status == 200 and wanted[0] and found["etag"] != wanted[0]:
                    return self.error(412, "PreconditionFailed", "At least one condition did not hold.")
                if status == 200 and wanted[1] and found["etag"] == wanted[1]:
                    return self.answer(304, b"", {"ETag": found["etag"]})
            headers = {name: value for name, value in self.headers.items() if name.lower() in _FORWARDED}
            status, found, body = gcs.call(self.command, path, b"", headers)
            if status == 404:
                return self.error(404, "NoSuchKey", "The specified key does not exist.")
            self.answer(204 if self.command == "DELETE" else status, body, found)

        def error(self, status: int, code: str, said: str) -> None:
            self.answer(status, f"<Error><Code>{code}</Code><Message>{escape(said)}</Message></Error>".encode(), {})

        def answer(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
            self.send_response(status)
            own = {name: value for name, value in headers.items() if name.lower() not in ("date", "connection")}
            if self.command != "HEAD" and status not in (204, 304):
                own = {name: value for name, value in own.items() if name.lower() != "content-length"}
                own["Content-Length"] = str(len(body))
            for name, value in own.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD" and status not in (204, 304):
                self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    return Handler
