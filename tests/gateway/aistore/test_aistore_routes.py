"""Paths, methods, actions and accounts: whatever is not answered is refused in AIStore's terms, and never with 500."""

from __future__ import annotations

import json
from pathlib import Path

from ais_loader.integrations.gateway.clients import Account, Clients
from tests.gateway.aistore.conftest import BEARER, Ais
from tests.gateway.conftest import ACCOUNT, Served
from tests.gateway.gateway_thread import GatewayThread
from tests.security.rights_kit import EVERYTHING, secure
from tests.table import table


@table(
    ("method", "path", "status"),
    [
        ("GET", "", 400),
        ("GET", "nothing", 400),
        ("GET", "health/more", 400),
        ("PUT", "health", 405),
        ("PATCH", "buckets", 400),
        ("POST", "buckets/", 400),
        ("DELETE", "buckets/", 400),
        ("HEAD", "buckets", 400),
        ("PUT", "objects/b", 400),
        ("GET", "objects/b/", 400),
        ("GET", "objects", 400),
        ("OPTIONS", "buckets/b", 405),
        ("GET", "daemon?what=mountpaths", 501),
        ("POST", "download", 501),
        ("POST", "sort/x", 501),
        ("GET", "objects/b/x?etl_name=e", 404),
        ("PUT", "objects/b/..%2Fx", 400),
        ("PUT", "objects/b/a%2F%2Fb", 400),
        ("PUT", "objects/b/%ff", 400),
        ("GET", "objects/none/x", 404),
        ("GET", "objects/b*/x", 400),
        ("GET", "objects/b/x?provider=nowhere", 400),
        ("GET", "objects/b/x?provider=aws", 404),
        ("GET", "objects/b/x?namespace=%40u%23n", 400),
    ],
)
def test_what_is_refused(ais: Ais, method: str, path: str, status: int) -> None:
    answer = ais(method, path)
    assert answer.status == status, answer
    if method == "HEAD":
        assert json.loads(answer.headers["hdr-error"])["status"] == status and not answer.body
    else:
        assert answer.message()
    if status == 405:
        assert answer.headers["allow"]


@table("action", ["rebalance", "make-n-copies", "ec-encode", "resilver"])
def test_actions_without_a_meaning_here(ais: Ais, bucket: str, action: str) -> None:
    answer = ais("POST", f"buckets/{bucket}", {"action": action})
    assert answer.status == 501 and action in answer.message()


def test_bodies_that_are_no_message(ais: Ais, bucket: str) -> None:
    for body in (b"{", b"[" * 100_000, b"[]", b'"list"', b"\xff", b'{"action": 7}', b'{"action": "strange"}', b""):
        answer = ais("POST", f"buckets/{bucket}", body)
        assert answer.status == 400 and answer.message(), body
    assert ais("GET", f"buckets/{bucket}", {"action": "list", "value": [1]}).status == 400
    assert ais("PUT", f"objects/{bucket}/x", b"", {"Content-Length": "-1"}).status == 400


def test_who_is_refused(ais: Ais, served: Served, bucket: str) -> None:
    for bearer in ("", "Basic x", "Bearer", "Bearer a-token", "Bearer the-key:other", "Bearer other:the-secret"):
        anyone = Ais(served.port, bearer)
        answer = anyone("PUT", f"objects/{bucket}/x", b"bytes")
        assert answer.status == 401 and ACCOUNT.secret_key not in answer.message(), bearer
        assert json.loads(anyone("HEAD", f"buckets/{bucket}").headers["hdr-error"])["status"] == 401
    assert ais.get(bucket, "x").status == 404
    assert Ais(served.port, BEARER.replace("Bearer", "bearer"))("GET", "buckets").status == 200


def test_keys_with_colons(tmp_path: Path) -> None:
    account = Account("a:b", "c:d")
    clients = Clients(str(tmp_path / "store"), [account])
    try:
        with GatewayThread(clients, {account.access_key: account}) as gateway:
            assert Ais(gateway.port, "Bearer a:b:c:d")("GET", "buckets").json() == []
            assert Ais(gateway.port, "Bearer a:b:c")("GET", "buckets").status == 401
    finally:
        clients.close()


def test_no_keys_are_open(tmp_path: Path) -> None:
    clients = Clients(str(tmp_path / "store"), [])
    try:
        with GatewayThread(clients, None) as gateway:
            for bearer in ("", "Bearer anything"):
                anyone = Ais(gateway.port, bearer)
                assert anyone("GET", "buckets").json() == []
                config = anyone("GET", "cluster", what="cluster_config").json()
                assert config["auth"] == {"enabled": False}
    finally:
        clients.close()


def test_paths_of_s3_are_not_changed(served: Served, bucket: str) -> None:
    s3 = served.s3()
    for key in ("v1/buckets", "v1"):
        s3.put_object(Bucket=bucket, Key=key, Body=b"of S3")
        assert s3.get_object(Bucket=bucket, Key=key)["Body"].read() == b"of S3"


def test_tokens_of_the_store(tmp_path: Path) -> None:
    account = Account("k", "s")
    with secure(tmp_path) as node:
        (tmp_path / "token").touch(0o600)
        (tmp_path / "token").write_text(node.token(EVERYTHING))
        clients = Clients(node.url, [account], token_file=str(tmp_path / "token"))
        try:
            with GatewayThread(clients, {"k": account}) as gateway:
                owner = Ais(gateway.port, "Bearer k:s")
                for bucket in ("mine", "other"):
                    assert owner("POST", f"buckets/{bucket}", {"action": "create-bck"}).status == 200
                    owner.put(bucket, "x", b"bytes")
                reader = Ais(gateway.port, f"Bearer {node.token('mine:read')}")
                writer = Ais(gateway.port, f"Bearer {node.token('mine:read,list,write')}")
                for _ in range(2):
                    assert reader.get("mine", "x").body == b"bytes"
                    refused = reader("PUT", "objects/mine/y", b"1")
                    assert refused.status == 403 and "ais://mine/y" in refused.message()
                    assert reader.get("other", "x").status in (403, 404)
                    assert writer("PUT", "objects/mine/y", b"1").status == 200
                    assert [one["name"] for one in writer("GET", "buckets").json()] == ["mine"]
                for wrong in (node.expired(), "x.y.z", "x"):
                    answer = Ais(gateway.port, f"Bearer {wrong}")("PUT", "objects/mine/z", b"1")
                    assert answer.status == 401 and answer.message()
                assert owner.get("mine", "z").status == 404
        finally:
            clients.close()


def test_calls_are_logged_by_their_names(tmp_path: Path) -> None:
    account = Account("k", "s")
    clients = Clients(str(tmp_path / "store"), [account])
    try:
        with GatewayThread(clients, {"k": account}, access_log=tmp_path / "log") as gateway:
            ais = Ais(gateway.port, "Bearer k:s")
            ais("POST", "buckets/b", {"action": "create-bck"})
            ais.put("b", "x", b"123")
            ais("GET", "buckets/b", {"action": "list"})
            ais.get("b", "none")
            Ais(gateway.port, "Bearer k:wrong").get("b", "x")
    finally:
        clients.close()
    rows = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert [(row["call"], row["status"], row["access_key"]) for row in rows] == [
        ("POST buckets/B create-bck", "200", "k"),
        ("PUT objects/B/O", "200", "k"),
        ("GET buckets/B list", "200", "k"),
        ("GET objects/B/O", "404", "k"),
        ("none", "401", ""),
    ]
    assert rows[1]["received_bytes"] == 3
