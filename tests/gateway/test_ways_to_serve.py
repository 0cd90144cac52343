"""The command, the key file, hosts as buckets, requests without keys, and several gateways of one store."""

from __future__ import annotations

import contextlib
import subprocess
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from botocore.auth import HmacV1QueryAuth, S3SigV4Auth, S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from ais_loader import errors
from ais_loader.integrations.gateway.clients import Account, Clients, read_keys
from ais_loader.integrations.gateway.request import S3Error
from ais_loader.integrations.gateway.router import split_path
from tests.gateway.command_kit import COMMAND, TIMEOUT_S, GatewayCommand, key_file, s3_at
from tests.gateway.conftest import ACCOUNT, Served
from tests.gateway.gateway_thread import GatewayThread


def test_key_files(tmp_path: Path) -> None:
    row = {"access_key": "k", "secret_key": "s", "tenant": "t", "token_file": "f"}
    found = read_keys(key_file(tmp_path, [row]))
    assert (found["k"].secret_key, found["k"].tenant, found["k"].token_file) == ("s", "t", "f")
    assert "secret" not in repr(found["k"])
    for wrong in (
        "{",
        [],
        {},
        [1],
        [{}],
        [{"access_key": "k"}],
        [row, row],
        *([{**row, "access_key": key}] for key in ("a,b", "a/b", "a b", "é", "a\n")),
        [{**row, "x": ""}],
        [{**row, "tenant": 1}],
    ):
        with pytest.raises(errors.InvalidRequest):
            read_keys(key_file(tmp_path, wrong))
    with pytest.raises(errors.InvalidRequest, match="chmod"):
        read_keys(key_file(tmp_path, [row], 0o644))


def test_a_token_file_that_is_missing_is_noticed_at_the_start(tmp_path: Path) -> None:
    url, missing, empty = "grpc://127.0.0.1:1", str(tmp_path / "missing"), tmp_path / "empty"
    empty.touch(0o600)
    with pytest.raises(errors.AccessDenied, match="missing"):
        Clients(url, [], token_file=missing)
    with pytest.raises(errors.AccessDenied, match="missing"):
        Clients(url, [Account("k", "s", token_file=missing)])
    with pytest.raises(errors.AccessDenied, match="empty: need a token"):
        Clients(url, [], token_file=str(empty))
    keys = key_file(tmp_path, [{"access_key": "k", "secret_key": "s", "token_file": missing}])
    command = [*COMMAND, url, "--keys", str(keys), "--port", "0"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert ended.returncode and missing in ended.stderr and "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--keys"),
        (["--keys", "KEYS", "--no-keys"], "--keys"),
        (["--no-keys", "--host", "0.0.0.0"], "loopback"),
        (["--keys", "KEYS", "--host", "0.0.0.0"], "loopback"),
        (["--keys", "KEYS", "--cert", "KEYS"], "go together"),
        (["--keys", "KEYS", "--host", "0.0.0.0", "--insecure", "--ui"], "--ui"),
        (["--keys", "KEYS", "--processes", "2"], "one process"),
    ],
)
def test_wrong_uses(tmp_path: Path, arguments: list[str], message: str) -> None:
    keys = str(key_file(tmp_path, [{"access_key": "k", "secret_key": "s"}]))
    command = [*COMMAND, str(tmp_path / "store"), *(keys if word == "KEYS" else word for word in arguments)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=180)
    assert (ended.returncode, message in ended.stderr) == (2, True), ended.stderr


def test_the_command(tmp_path: Path) -> None:
    keys = key_file(tmp_path, [{"access_key": "k", "secret_key": "s"}])
    with GatewayCommand(str(tmp_path / "store"), "--keys", str(keys)) as gateway:
        s3 = s3_at(gateway.url, "k", "s")
        s3.create_bucket(Bucket="speech")
        s3.put_object(Bucket="speech", Key="a", Body=b"1")
        assert s3.get_object(Bucket="speech", Key="a")["Body"].read() == b"1"
        assert gateway.end() == 0


def test_hosts_and_paths() -> None:
    assert split_path("/b/a%2Fc%20d", "gateway:9000", ()) == ("b", "a/c d")
    assert split_path("/a/c", "b.s3.local:9000", ("s3.local",)) == ("b", "a/c")
    assert split_path("/b", "s3.local", ("s3.local",)) == ("b", "")
    assert split_path("/", "s3.local", ()) == ("", "")
    with pytest.raises(S3Error):
        split_path("*", "x", ())


def test_hosts_as_buckets_and_several_gateways(served: Served, bucket: str) -> None:
    """An upload that one gateway began is continued by another, whose buckets are hosts."""
    s3 = served.s3()
    upload_id = s3.create_multipart_upload(Bucket=bucket, Key="d/a")["UploadId"]
    with GatewayThread(served.clients, {ACCOUNT.access_key: ACCOUNT}, domains=("gateway.test",)) as other:
        credentials = Credentials(ACCOUNT.access_key, ACCOUNT.secret_key)
        url = f"http://{bucket}.gateway.test:{other.port}/d/a"
        put = AWSRequest("PUT", f"{url}?partNumber=1&uploadId={upload_id}", data=b"1")
        S3SigV4Auth(credentials, "s3", "us-east-1").add_auth(put)
        etag = _sent(other.port, put, b"1").headers["etag"]
        parts = {"Parts": [{"PartNumber": 1, "ETag": etag}]}
        s3.complete_multipart_upload(Bucket=bucket, Key="d/a", UploadId=upload_id, MultipartUpload=parts)
        for auth in (S3SigV4QueryAuth(credentials, "s3", "us-east-1"), HmacV1QueryAuth(credentials)):
            get = AWSRequest("GET", url, auth_path=f"/{bucket}/d/a")
            auth.add_auth(get)
            assert _sent(other.port, get).body == b"1"


class _Answer:
    def __init__(self, answer: HTTPResponse) -> None:
        self.headers, self.body = answer.headers, answer.read()
        assert answer.status == 200, self.body


def _sent(port: int, request: AWSRequest, body: bytes | None = None) -> _Answer:
    """Send a request to a gateway on this machine, whatever its host is."""
    split = urlsplit(request.url)
    with contextlib.closing(HTTPConnection("127.0.0.1", port, timeout=180)) as connection:
        headers = {"Host": split.netloc, **dict(request.headers.items())}
        connection.request(request.method, f"{split.path}?{split.query}", body=body, headers=headers)
        return _Answer(connection.getresponse())


def test_requests_without_keys(served: Served, bucket: str) -> None:
    with GatewayThread(served.clients, None) as gateway:
        connection = HTTPConnection("127.0.0.1", gateway.port, timeout=180)
        for method, body, status in (("PUT", b"1", 200), ("GET", None, 200), ("DELETE", None, 204), ("GET", None, 404)):
            connection.request(method, f"/{bucket}/a", body=body)
            answer = connection.getresponse()
            answer.read()
            assert answer.status == status
        connection.close()
