"""Rights, tenants and certificates of a gateway over nodes: keys whose tokens a node with TLS checks."""

from __future__ import annotations

import json
import shutil
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from ais_loader import connect
from ais_loader.integrations.gateway.clients import Account, Clients
from ais_loader.testing import NodeProcess, eventually, throwaway_folder
from storage_node.ops.gateway_process import GatewayProcess
from storage_node.security.identity.identity_folder import IdentityFolder
from storage_node.server import NodeServer
from storage_node.settings.config import ServerConfig
from tests.gateway.command_kit import GatewayCommand, key_file, s3_at
from tests.gateway.gateway_thread import GatewayThread
from tests.security.rights_kit import EVERYTHING, SecureNode, key_in
from tests.tar_kit import packed_tar

pytestmark = pytest.mark.slow
SCOPES = {
    "operator": EVERYTHING,
    "writer": "speech-*:read,list,write,delete,admin",
    "reader": "speech-*:read,list",
    "other": "vision-*:read,list,write",
    "lister": "speech-*:list",
}


class SecureGateway:
    """A gateway over a node with TLS that asks for tokens."""

    def __init__(self, url: str, ca: str) -> None:
        self.url, self.ca = url, ca

    def s3(self, key: str) -> Any:
        return s3_at(self.url, key, f"secret of {key}", verify=self.ca)


@pytest.fixture(scope="module")
def gateway() -> Iterator[SecureGateway]:
    with throwaway_folder() as folder:
        identity = IdentityFolder(folder / "identity")
        identity.make()
        key = key_in(folder / "keys")
        keys = folder / "keys.json"
        settings = {"gateway_port": 0, "gateway_keys_file": str(keys), "gateway_processes": 2}
        config = ServerConfig(port=0, token_key_file=f"{key}.pub", **settings)
        with NodeServer([folder / "drive"], config, identity=identity.path) as server:
            node, rows = SecureNode(server, key), []
            for name, scope in SCOPES.items():
                token = folder / f"{name}.token"
                token.touch(0o600)
                token.write_text(node.token(scope, tenant=name))
                rows.append({"access_key": name, "secret_key": f"secret of {name}", "token_file": str(token)})
            expired = folder / "expired.token"
            expired.touch(0o600)
            expired.write_text(node.expired())
            rows.append({"access_key": "expired", "secret_key": "secret of expired", "token_file": str(expired)})
            keys.touch(0o600)
            keys.write_text(json.dumps(rows))
            process = GatewayProcess(server.config, server.port).start()
            try:
                yield SecureGateway(process.url, server.config.listen.ca_file)
            finally:
                process.stop()


def refused(code: str, call: Any, **arguments: Any) -> None:
    with pytest.raises(ClientError) as caught:
        call(**arguments)
    error = caught.value.response
    # HEAD has no document, and so no code
    found = error["Error"]["Code"]
    assert found == code or (found, code) in (("404", "NoSuchBucket"), ("403", "AccessDenied")), error


def test_each_key_has_the_rights_of_its_token(gateway: SecureGateway) -> None:
    assert gateway.url.startswith("https://")
    writer, reader, other = (gateway.s3(name) for name in ("writer", "reader", "other"))
    writer.create_bucket(Bucket="speech-1")
    writer.put_object(Bucket="speech-1", Key="a", Body=b"heard")
    assert reader.get_object(Bucket="speech-1", Key="a")["Body"].read() == b"heard"
    assert [row["Key"] for row in reader.list_objects_v2(Bucket="speech-1")["Contents"]] == ["a"]
    mine = {"Bucket": "speech-1", "Key": "a"}
    refused("AccessDenied", reader.put_object, **mine, Body=b"0")
    refused("AccessDenied", reader.put_object, Bucket="speech-1", Key="new", Body=b"0")
    refused("AccessDenied", reader.delete_object, **mine)
    refused("AccessDenied", reader.copy_object, Bucket="speech-1", Key="copy", CopySource="speech-1/a")
    refused("AccessDenied", reader.create_multipart_upload, Bucket="speech-1", Key="parts")
    refused("AccessDenied", reader.create_bucket, Bucket="speech-2")
    refused("AccessDenied", reader.delete_bucket, Bucket="speech-1")
    errors = reader.delete_objects(Bucket="speech-1", Delete={"Objects": [{"Key": "a"}]})["Errors"]
    assert [(error["Key"], error["Code"]) for error in errors] == [("a", "AccessDenied")]
    # A bucket that a key may not see does not exist for it.
    for call, arguments in (
        (other.get_object, mine),
        (other.head_object, mine),
        (other.put_object, {**mine, "Body": b"0"}),
        (other.delete_object, mine),
        (other.list_objects_v2, {"Bucket": "speech-1"}),
        (other.head_bucket, {"Bucket": "speech-1"}),
        (other.create_multipart_upload, mine),
    ):
        refused("NoSuchBucket", call, **arguments)
    assert [row["Name"] for row in reader.list_buckets()["Buckets"]] == ["speech-1"]
    assert other.list_buckets()["Buckets"] == []
    assert writer.get_object(**mine)["Body"].read() == b"heard"
    writer.delete_object(**mine)
    refused("NoSuchKey", reader.get_object, **mine)


def test_members_that_a_key_may_list_and_not_read_are_refused_with_a_status(gateway: SecureGateway) -> None:
    operator = gateway.s3("operator")
    operator.create_bucket(Bucket="speech-shards")
    operator.put_object(Bucket="speech-shards", Key="s.tar", Body=packed_tar({"a": b"heard"}))
    context = ssl.create_default_context(cafile=gateway.ca)
    for key, status in (("reader", 200), ("lister", 403)):
        request = urllib.request.Request(f"{gateway.url}/v1/objects/speech-shards/s.tar?archregx=a")
        request.add_header("Authorization", f"Bearer {key}:secret of {key}")
        try:
            with urllib.request.urlopen(request, context=context, timeout=180) as answer:
                found, body = answer.status, answer.read()
        except urllib.error.HTTPError as error:
            found, body = error.code, error.read()
        assert (found, b"heard" in body) == (status, status == 200)


def test_a_source_that_a_key_may_not_see_is_not_copied(gateway: SecureGateway) -> None:
    operator, other = gateway.s3("operator"), gateway.s3("other")
    operator.create_bucket(Bucket="speech-secret")
    operator.put_object(Bucket="speech-secret", Key="a", Body=b"secret")
    operator.create_bucket(Bucket="vision-1")
    source = "speech-secret/a"
    refused("NoSuchBucket", other.copy_object, Bucket="vision-1", Key="b", CopySource=source)
    upload = other.create_multipart_upload(Bucket="vision-1", Key="b")["UploadId"]
    part = {"Bucket": "vision-1", "Key": "b", "UploadId": upload, "PartNumber": 1}
    refused("NoSuchBucket", other.upload_part_copy, **part, CopySource=source)
    assert "Contents" not in other.list_objects_v2(Bucket="vision-1")


def test_an_expired_token_is_refused(gateway: SecureGateway) -> None:
    refused("AccessDenied", gateway.s3("expired").list_buckets)


def test_the_node_accounts_for_the_tenant_of_a_key(tmp_path: Path) -> None:
    account = Account("k", "s", tenant="asr")
    size = 300_000
    with NodeProcess(tmp_path / "drive", metrics=True, arguments=["--tenant-weight", "asr=2"]) as node:
        with connect(node.url) as client:
            client.create_bucket("b").put("a", bytes(size))
        clients = Clients(node.url, [account])
        try:
            with GatewayThread(clients, {"k": account}) as gateway:
                s3 = s3_at(gateway.url, "k", "s")
                for _ in range(3):
                    assert s3.get_object(Bucket="b", Key="a")["Body"].read() == bytes(size)
        finally:
            clients.close()
        name = 'ais_loader_tenant_bytes_total{tenant="asr"}'
        eventually(lambda: node.numbers()[name] == 3 * size)


def test_a_certificate_that_changes_is_shown_without_a_restart(tmp_path: Path) -> None:
    pairs = []
    for name in ("first", "second"):
        folder = IdentityFolder(tmp_path / name)
        folder.make()
        pairs.append((folder.node_files(bytes(16), ["127.0.0.1"]), tmp_path / name / "ca.pem"))
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"

    def install(number: int) -> None:
        files, _ = pairs[number]
        shutil.copy(files.cert_file, cert)
        shutil.copy(files.key_file, key)

    def accepted(port: int, ca: Path) -> bool:
        context = ssl.create_default_context(cafile=str(ca))
        try:
            urllib.request.urlopen(f"https://127.0.0.1:{port}/", context=context, timeout=180)
        except urllib.error.HTTPError:
            return True  # without a signature
        except urllib.error.URLError:
            return False
        return True

    install(0)
    keys = key_file(tmp_path, [{"access_key": "k", "secret_key": "s"}])
    arguments = ["--keys", str(keys), "--cert", str(cert), "--key", str(key)]
    with GatewayCommand(str(tmp_path / "store"), *arguments) as gateway:
        assert (accepted(gateway.port, pairs[0][1]), accepted(gateway.port, pairs[1][1])) == (True, False)
        shutil.copy(pairs[1][0].cert_file, cert)  # half of a change
        eventually(lambda: "the former certificate stays in use" in gateway.log())
        assert accepted(gateway.port, pairs[0][1])
        install(1)
        eventually(lambda: accepted(gateway.port, pairs[1][1]))
        assert not accepted(gateway.port, pairs[0][1])
