"""Processor time that parsers take for 16 KiB of one punctuation character, wherever a request has a text."""

from __future__ import annotations

import base64
import gc
import itertools
import string
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from ais_loader.errors import LoaderError
from ais_loader.integrations.gateway import router
from ais_loader.integrations.gateway.aistore import interface
from ais_loader.integrations.gateway.aistore import router as ais_router
from ais_loader.integrations.gateway.aistore.bodies import AisBody
from ais_loader.integrations.gateway.aistore.request import AisRequest
from ais_loader.integrations.gateway.bodies import Body
from ais_loader.integrations.gateway.clients import Account, Clients
from ais_loader.integrations.gateway.post_form import PostForm
from ais_loader.integrations.gateway.request import Refusal, Request, Response, parse_json, query_pairs
from ais_loader.integrations.gateway.signature import ALGORITHM, Signed, verify
from ais_loader.integrations.gateway.spool import BodyMemory
from ais_loader.integrations.gateway.websites import refuse_websites
from ais_loader.integrations.gateway.xml import parse
from ais_loader.testing import throwaway_folder
from tests.gateway.raw_kit import connected, parsed, received, request
from tests.table import table

SIZE_BYTES = 16 << 10
BOUND_S = 0.050
"""Ten times what the slowest parser takes on a quiet machine, a twentieth of an expression that backtracks."""
TRIES = 10
CHARACTERS = [*string.punctuation, " ", "\t", "\x01", "é"]
KEYS = {"k": Account("k", "s"), "a:b": Account("a:b", "s")}
DOCUMENTS = ("{}", "<R>{}</R>", "<R a='{}'/>", "<R><{}></R>", "<R>&{};</R>", "<!--{}--><R/>", "<R><B><C>{}</C></B></R>")
TRAILER = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
Case = tuple[str, Callable[[], object]]


class Asked(dict[str, str]):
    """Headers or parameters that note the names that are asked for."""

    def __init__(self, values: dict[str, str]) -> None:
        super().__init__(values)
        self.names: set[str] = set()

    def get(self, name: str, default: Any = None) -> Any:
        self.names.add(name)
        return super().get(name, default)

    def __getitem__(self, name: str) -> str:
        self.names.add(name)
        return super().__getitem__(name)

    def __contains__(self, name: object) -> bool:
        self.names.add(str(name))
        return super().__contains__(name)


def took_s(parse: Callable[[], object], bound_s: float = BOUND_S) -> float:
    """Return the processor time of the fastest of several tries, up to the first that keeps to a bound."""
    best_s = float("inf")
    for _ in range(TRIES):
        began_s = time.thread_time()
        outcome(parse)
        best_s = min(best_s, time.thread_time() - began_s)
        if best_s < bound_s:
            break
    return best_s


def outcome(call: Callable[[], object]) -> None:
    try:
        call()
    except (Refusal, LoaderError, ValueError):
        return


class Calls:
    """The calls of both interfaces, with requests as their routers pass them on."""

    def __init__(self, folder: str) -> None:
        self.clients = Clients(f"{folder}/store", [])
        self.client = self.clients.of(None)
        self.client.create_bucket("b")
        self.folder, self.memory = folder, BodyMemory(16 << 20)
        self.opened: list[Any] = []

    def begin_anew(self) -> None:
        """Remove what earlier calls have made."""
        bucket = self.client.bucket("b")
        for upload in bucket.uploads():
            if upload.name:
                bucket.multipart(upload.name, upload_id=upload.id).abort()
        bucket.put("o", b"bytes")

    def upload(self) -> str:
        return self.client.bucket("b").multipart("o").id

    def body(self, headers: dict[str, str] | None = None, payload: str = "", data: bytes = b"") -> Body:
        """Return a body, which the next one closes."""
        self.close()
        made = Body(headers or {}, Signed(None, payload), folder=self.folder, most_bytes=1 << 20, memory=self.memory)
        self.opened.append(made)
        made.feed([data])
        return made

    def close(self) -> None:
        while self.opened:
            self.opened.pop().close()

    def s3(self, level: str, call: router.S3Call, query: Any, headers: Any, key: str = "o", data: bytes = b"") -> None:
        bucket, key = "" if level == "service" else "b", key if level == "object" else ""
        body = self.body(data=data)
        self.read(call.answer(Request("PUT", "/", query, headers, bucket, key, self.client, body, True, "k")))

    def read(self, answer: Response) -> None:
        if not isinstance(answer.body, bytes):
            self.opened.append(answer.body)
            next(iter(answer.body), None)

    def ais(
        self, call: ais_router.AisCall, query: Any, headers: Any, json: Any, key: str = "o", rest: str = "x"
    ) -> None:
        asked = AisRequest(call.method, "/", query, headers, "b", key, self.client, "http://h", rest=(rest, rest))
        asked.body, asked.json = AisBody({}, folder=self.folder, most_bytes=1 << 20, memory=self.memory), json
        self.close()
        self.read(call.answer(asked))

    def admit(self, method: str, path: str, query: str = "", **headers: str) -> None:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        admitted = interface.admit(
            *(method, path, query, given),
            is_tls=False,
            clients=self.clients,
            keys=KEYS if headers else None,
            spool=self.folder,
            memory=self.memory,
        )
        if admitted.body is not None:
            admitted.body.close()


@pytest.fixture(scope="module")
def calls() -> Iterator[Calls]:
    with throwaway_folder() as folder:
        made = Calls(str(folder))
        yield made
        made.close()
        made.clients.close()


@table("token", [":" * SIZE_BYTES, "k" + ":" * SIZE_BYTES, "a:b:" + "x:" * (SIZE_BYTES // 2)], ids=lambda t: t[:6])
def test_colons_of_a_bearer_take_no_time(calls: Calls, token: str) -> None:
    call = partial(calls.admit, "GET", "/v1/buckets", authorization=f"Bearer {token}")
    with pytest.raises(Refusal, match="not valid"):
        call()
    assert took_s(call) < BOUND_S
    calls.admit("GET", "/v1/buckets", authorization="Bearer a:b:s")


def test_headers_have_a_size_together(served: Any) -> None:
    answer = b""
    for headers in ([f"X-Amz-Meta-{at}" for at in range(8)], ["Authorization"] * 8):
        lines = "".join(f"{name}: {':' * 12_000}\r\n" for name in headers)
        for path in ("/b/o", "/v1/buckets"):
            with connected(served.port) as sock:
                sock.sendall(request("GET", path, served.port)[:-2] + f"{lines}Connection: close\r\n\r\n".encode())
                status, _, answer = parsed(received(sock))
            assert status == 400 and b"the headers have more than 65,536 bytes" in answer


@pytest.mark.slow
def test_texts_between_elements_take_time_in_proportion() -> None:
    few, many = (b"<R>" + b"<a/>0123456789abcdef" * count + b"</R>" for count in (24_000, 96_000))
    assert len(parse(many, "R").text) == 16 * 96_000
    gc.disable()  # a collection takes longer with every element that is kept
    try:
        assert took_s(lambda: parse(many, "R"), 0.0) < 9 * took_s(lambda: parse(few, "R"), 0.0)
    finally:
        gc.enable()


def heads(calls: Calls, text: str) -> Iterator[Case]:
    """Parsers of what precedes the body."""
    for method, path in itertools.product(("GET", "PUT", "PATCH"), ("", "objects/", "objects/b/", "buckets/", "etl/")):
        yield f"AIStore {method} {path}", partial(calls.admit, method, f"/v1/{path}{text}")
    for name in ("authorization", "content_length", "ais_checksum_type", "ais_checksum_value", "host"):
        for before in ("", "Bearer ", "Bearer k:"):
            headers = {"authorization": "Bearer k:s", name: before + text}
            yield f"AIStore {name}", partial(calls.admit, "PUT", "/v1/objects/b/o", **headers)
    for query in (text, f"x={text}", f"provider={text}", f"{text}=x", f"{text}&" * 2):
        yield "AIStore query", partial(calls.admit, "GET", "/v1/buckets", query)
        yield "query", partial(query_pairs, query)
        for before in ("", "AWSAccessKeyId=k&Expires=9999999999&Signature=", f"X-Amz-Algorithm={ALGORITHM}&"):
            yield "presigned", partial(verify, "GET", "/b", before + query, {}, "/b", KEYS)
    for path in (f"/{text}", f"/b/{text}"):
        yield "path", partial(routed, path, "h")
        yield "signed path", partial(verify, "GET", path, "AWSAccessKeyId=k&Expires=9999999999", {}, path, KEYS)
    yield "host", partial(routed, "/b/o", text)
    yield "website", partial(refuse_websites, {"host": text}, ("example.com",), is_loopback=True)
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    scope = f"k/{stamp[:8]}/us-east-1/s3/aws4_request"
    for given in (
        *(text, f"{ALGORITHM} {text}", f"{ALGORITHM} Credential={text},SignedHeaders=x,Signature=x"),
        f"{ALGORITHM} Credential={scope},SignedHeaders=host;{text},Signature=x",
        f"{ALGORITHM} Credential={scope},SignedHeaders=host;x-amz-date;x-amz-content-sha256,Signature={text}",
    ):
        for more in ({}, {"x-amz-date": text}, {"x-amz-content-sha256": text}, {"host": text}):
            headers = {"x-amz-date": stamp, "x-amz-content-sha256": "x", "host": "h", **more, "authorization": given}
            yield "Authorization", partial(verify, "GET", f"/b/{text}", f"x={text}", headers, "/b/o", KEYS)
    for name in ("content-md5", "x-amz-checksum-crc32", "x-amz-trailer", "x-amz-decoded-content-length"):
        for payload in ("", text, TRAILER, f"STREAMING-{text}"):
            yield name, partial(calls.body, {name: text}, payload)
    chunked = {"x-amz-decoded-content-length": "5", "x-amz-trailer": "x-amz-checksum-crc32"}
    for data in (text, f"5{text}\r\n", f"0\r\n{text}\r\n", f"0\r\nx-amz-checksum-crc32:{text}\r\n\r\n"):
        yield "chunks", partial(calls.body, chunked, TRAILER, data.encode())


def forms(text: str) -> Iterator[Case]:
    """Parsers of forms and their policies."""
    head = '--b\r\nContent-Disposition: form-data; name="{}"\r\n\r\n{}\r\n'
    policy = base64.b64encode(f'{{"expiration": "{text}", "conditions": []}}'.encode()).decode()
    for name, value in ((text, ""), ("a", text), ("policy", text), ("policy", policy), ("key", text)):
        body = head.format(name, value) + head.format("key", "k") * (name != "key") + head.format("file", text)
        for keys in (None, KEYS):
            yield f"form {name}", partial(fed, "b", keys, body.encode())
    yield "boundary", partial(PostForm.of, "POST", "b", "", "", f"multipart/form-data; boundary={text}", KEYS)
    for more in (";", "; boundary=a"):
        yield "boundary", partial(PostForm.of, "POST", "b", "", "", f"multipart/form-data{text}{more}{text}x", KEYS)
    yield "disposition", partial(fed, "b", None, f"--b\r\nContent-Disposition: {text}\r\n\r\n".encode())
    yield "disposition", partial(fed, "b", None, f'--b\r\nContent-Disposition: ;name="{text}\r\n\r\n'.encode())


def fed(boundary: str, keys: dict[str, Account] | None, body: bytes) -> None:
    PostForm(boundary, "b", keys).feed(body)


def routed(path: str, host: str) -> None:
    router.route("GET", *router.split_path(path, host, ("example.com",)), {}, {})


def documents(text: str) -> Iterator[Case]:
    """Parsers of XML and JSON."""
    for document in DOCUMENTS:
        yield f"XML {document}", partial(parse, document.replace("{}", text).encode(), "R")
    for document in (text, f'"{text}"', f'{{"a": {text}}}', f'["{text}", {text}]'):
        yield "JSON", partial(parse_json, document.encode())


def s3_calls(calls: Calls, text: str) -> Iterator[Case]:
    """Each call of S3, with the text in each header and parameter that it asks for."""
    found = [(level, call) for (level, _), rows in router._ROUTES.items() for _, call in rows]
    for level, call in [*found, *(("object", call) for call in router._COPIES.values())]:
        if call.name in ("DeleteBucket", "PostObject"):
            continue
        calls.begin_anew()
        upload = calls.upload() if "Part" in call.name or "Upload" in call.name else ""
        query = {"uploadId": upload, "partNumber": "1"} if upload else {}
        headers = {"x-amz-copy-source": "/b/o"} if "Copy" in call.name else {}
        asked, parameters = Asked(headers), Asked(query)
        answer = partial(calls.s3, level, call)
        outcome(partial(answer, parameters, asked))
        for name, value in itertools.product(asked.names | {"x-amz-tagging"}, (text, f"bytes={text}", f"/b/{text}")):
            yield f"{call.name} {name}", partial(answer, query, headers | {name: value})
        for name in parameters.names:
            yield f"{call.name} {name}", partial(answer, query | {name: text}, headers)
        yield f"{call.name} KEY", partial(answer, query, headers, text)
        if call.most_bytes and call.most_bytes < 1 << 30:
            for root, document in itertools.product(
                ("Delete", "Tagging", "CompleteMultipartUpload"),
                ("<R><Object><Key>{}</Key></Object></R>", "<R><TagSet>{}</TagSet></R>", '["{}"]'),
            ):
                data = document.replace("R>", f"{root}>").replace("{}", text).encode()
                yield f"{call.name} {root}", partial(answer, query, headers, data=data)


def ais_calls(calls: Calls, text: str) -> Iterator[Case]:
    """Each call of AIStore, with the text in each header, parameter and value that it asks for."""
    for call in ais_router.CALLS:
        if call.action in ("destroy-bck", "move-bck", "rename-obj"):
            continue
        calls.begin_anew()
        selector, _, selected = call.having.partition("=")
        query = {selector: selected} if selector else {}
        values: dict[str, Any] = {"tobck": {"name": "c"}, "objnames": ["a"], "name": "x", "archname": "a.tar"}
        json = {"action": call.action, "name": "x", "value": values, "in": [{"objname": "o"}]}
        asked, parameters, fields = Asked({}), Asked(query), Asked(values)
        answer = partial(calls.ais, call)
        outcome(partial(answer, parameters, asked, json | {"value": fields}))
        for name in asked.names:
            yield f"{call.name} {name}", partial(answer, query, {name: text}, json)
        for name in parameters.names | {"archregx", "archmode"}:
            yield f"{call.name} {name}", partial(answer, query | {name: text}, {}, json)
        for name, value in itertools.product(fields.names | {"template"}, (text, [text], f"{{0..1}}{text}")):
            more = {**values, name: value}
            if name == "template":
                del more["objnames"]
            yield f"{call.name} {name}", partial(answer, query, {}, json | {"value": more})
        for name in ("objname", "archpath", "start", "opaque"):
            yield f"{call.name} in {name}", partial(answer, query, {}, json | {"in": [{"objname": "o", name: text}]})
        yield f"{call.name} KEY", partial(answer, query, {}, json, text)
        yield f"{call.name} REST", partial(answer, query, {}, json, rest=text)


@pytest.mark.slow
@table("character", CHARACTERS)
def test_no_parser_takes_long_for_many_of_a_character(calls: Calls, character: str) -> None:
    text = character * (SIZE_BYTES // len(character.encode()))
    cases = itertools.chain(
        heads(calls, text), forms(text), documents(text), s3_calls(calls, text), ais_calls(calls, text)
    )
    slow = [f"{name}: {took:.3f} s" for name, call in cases if (took := took_s(call)) >= BOUND_S]
    assert not slow
