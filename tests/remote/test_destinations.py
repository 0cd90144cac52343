"""Who receives which credentials, and which servers are reached, when a client names a server of its own."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import http.client
import http.server
import itertools
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from ais_loader.errors import LoaderError, RemoteDenied, RemoteUnavailable
from ais_loader.wire.remote import Remote
from storage_node.remote.drivers.gate import Gate, Place
from storage_node.security.identity.identity_folder import IdentityFolder
from storage_node.settings.host_patterns import UrlOrigin
from tests.remote.backend_kit import Asked, DecidedServer, OneBackend, Reply, chunked, content, names, read

ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "SECRET-key-id",
    "AWS_SECRET_ACCESS_KEY": "SECRET-key",
    "AWS_SESSION_TOKEN": "SECRET-session",
    "AZURE_STORAGE_ACCOUNT_NAME": "account",
    "AZURE_STORAGE_ACCOUNT_KEY": "U0VDUkVU",
    "AZURE_STORAGE_SAS_TOKEN": "sig=SECRET",
}
KEYS = 'access_key_id = "SECRET-id"\nsecret_access_key = "SECRET-key"\nsession_token = "SECRET-session"\n'
LOOPBACK = ("127.0.0.1:*",)


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    yield monkeypatch


@pytest.fixture
def foreign() -> Iterator[DecidedServer]:
    with DecidedServer(lambda asked: content(asked, b"data")) as server:
        yield server


@pytest.fixture
def redirecting(foreign: DecidedServer) -> Iterator[DecidedServer]:
    """A server that sends everybody on to `foreign`."""
    with DecidedServer(lambda asked: Reply(307, headers={"Location": foreign.url + asked.path})) as server:
        yield server


def profiles(folder: Path, text: str) -> str:
    path = folder / "profiles.toml"
    path.touch(0o600)
    path.write_text(text)
    return str(path)


async def used(remote: Remote, path: str, hosts: tuple[str, ...] = LOOPBACK) -> list[LoaderError]:
    """Read, list and put. Returns the errors."""
    failed = []
    async with OneBackend(remote, profiles=path, hosts=hosts, retry_s=0.05) as backend:
        for call in (read(backend, "a"), names(backend), backend.put("b", chunked(b"b"), 1)):
            try:
                await call
            except LoaderError as error:
                failed.append(error)
    return failed


def is_secret(asked: Asked) -> bool:
    said = f"{asked.path} {asked.headers}"
    return any(one in said for one in ("SECRET", "U0VDUkVU", "AWS4-HMAC", "X-Amz-", "SharedKey", "Bearer", "sig="))


def test_no_server_of_a_client_receives_a_secret(
    environment: pytest.MonkeyPatch, tmp_path: Path, foreign: DecidedServer
) -> None:
    environment.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    own = 'endpoint = "http://127.0.0.1:9"\n'
    texts = {
        "": "",
        "keys": KEYS,
        "keys-of-an-endpoint": KEYS + own,
        "keys-of-hosts": KEYS + 'hosts = ["127.0.0.1", "*.example.org:*"]\n',
        "keys-by-tls": KEYS + 'hosts = ["127.0.0.1:*"]\n',
        "keys-of-a-bucket": KEYS + f'hosts = ["{foreign.url}"]\nbuckets = ["mine"]\n',
        "no-keys": 'region = "eu-west-1"\n',
        "anonymous": "anonymous = true\n",
    }
    web = {
        "": "",
        "token": 'bearer_token = "SECRET"\n',
        "token-by-tls": 'bearer_token = "SECRET"\nhosts = ["127.0.0.1:*"]\n',
        "token-of-another": 'bearer_token = "SECRET"\nhosts = ["http://127.0.0.1:9"]\n',
    }
    remotes = [Remote("s3://b", endpoint=foreign.url, profile=name) for name in texts]
    remotes += [Remote(f"{foreign.url}/b", profile=name) for name in web]
    path = profiles(tmp_path, "".join(f"[{name}]\n{text}" for name, text in {**texts, **web}.items() if name))
    errors = {(one.url, one.profile): asyncio.run(used(one, path)) for one in remotes}
    assert foreign.asked and not [asked for asked in foreign.asked if is_secret(asked)]
    assert not [error for error in itertools.chain(*errors.values()) if "SECRET" in str(error)]
    asked = len(foreign.asked)
    for remote in remotes:  # what is not anonymous is refused, and not sent without credentials by mistake
        if remote.profile not in ("", "anonymous"):
            assert isinstance(errors[remote.url, remote.profile][0], RemoteDenied)
            asyncio.run(used(remote, path))
    assert len(foreign.asked) == asked


@pytest.mark.parametrize("scheme", ["gs", "az"])
def test_a_profile_takes_nothing_from_the_environment(
    environment: pytest.MonkeyPatch, tmp_path: Path, foreign: DecidedServer, scheme: str
) -> None:
    for name in ("GOOGLE_BASE_URL", "AZURE_STORAGE_ENDPOINT"):
        environment.setenv(name, foreign.url)
    account = 'account_name = "other"\n' if scheme == "az" else ""
    keys = 'account_key = "U0VDUkVU"\n' if scheme == "az" else 'service_account_path = "/nowhere.json"\n'
    text = f'[p]\n{account}{keys}endpoint = "http://127.0.0.1:9"\n[none]\n{account}endpoint = "{foreign.url}"\n'
    text += f'[anonymous]\n{account}anonymous = true\nendpoint = "{foreign.url}"\n'
    path = profiles(tmp_path, text)
    assert len(asyncio.run(used(Remote(f"{scheme}://b", profile="p"), path))) == 3
    assert not foreign.asked
    denied = asyncio.run(used(Remote(f"{scheme}://b", profile="none"), path))
    assert all(isinstance(one, RemoteDenied) for one in denied) and len(denied) == 3 and not foreign.asked
    asyncio.run(used(Remote(f"{scheme}://b", profile="anonymous"), path))
    assert foreign.asked and not [asked for asked in foreign.asked if is_secret(asked)]


def test_places_that_the_operator_names_receive_the_credentials(
    environment: pytest.MonkeyPatch, tmp_path: Path, foreign: DecidedServer
) -> None:
    text = f'[p]\n{KEYS}hosts = ["{foreign.url}"]\nbuckets = ["b*"]\n[web]\nbearer_token = "SECRET"\n'
    path = profiles(tmp_path, f'{text}hosts = ["{foreign.url}"]\n')
    environment.setenv("AWS_ENDPOINT_URL", foreign.url + "/")
    for remote in (
        Remote("s3://b"),
        Remote("s3://b", endpoint=foreign.url),
        Remote("s3://b", endpoint=foreign.url, profile="p"),
        Remote(foreign.url, profile="web"),
    ):
        foreign.asked.clear()
        asyncio.run(used(remote, path, hosts=()))
        assert foreign.asked and all(map(is_secret, foreign.asked))


@pytest.mark.parametrize("hosts", [LOOPBACK, (), ("any",)])
def test_nothing_follows_a_redirect_of_a_server_with_a_session_token(
    environment: pytest.MonkeyPatch,
    tmp_path: Path,
    foreign: DecidedServer,
    redirecting: DecidedServer,
    hosts: tuple[str],
) -> None:
    environment.setenv("AWS_ENDPOINT_URL", redirecting.url)
    path = profiles(tmp_path, f'[p]\n{KEYS}endpoint = "{redirecting.url}"\n')
    for remote in (Remote("s3://b"), Remote("s3://b", profile="p")):
        errors = asyncio.run(used(remote, path, hosts))
        assert len(errors) == 3 and all(isinstance(one, RemoteDenied) for one in errors)
    assert redirecting.asked and not foreign.asked


def test_a_redirect_of_a_listed_server_is_refused(
    tmp_path: Path, foreign: DecidedServer, redirecting: DecidedServer
) -> None:
    path = profiles(tmp_path, f'[web]\nbearer_token = "SECRET"\nhosts = ["{redirecting.url}"]\n')
    port = redirecting.url.rpartition(":")[2]
    for remote in (Remote(redirecting.url), Remote(redirecting.url, profile="web")):
        error = asyncio.run(used(remote, path, (f"127.0.0.1:{port}",)))[0]
        assert isinstance(error, RemoteDenied) and "a redirect to 127.0.0.1:" in str(error)
    assert redirecting.asked and not foreign.asked


@pytest.mark.slow
def test_servers_that_nobody_lists_are_not_reached(environment: pytest.MonkeyPatch, foreign: DecidedServer) -> None:
    port = foreign.url.rpartition(":")[2]
    for hosts in ((), ("127.0.0.1",), ("*.example.org:*",), ("*:*",), ("10.0.0.0/8:*", "[::1]:*")):
        for host in ("127.0.0.1", "localhost", "127.1", "0.0.0.0", "LOCALHOST.", "[::ffff:127.0.0.1]", "2130706433"):
            for remote in (Remote(f"http://{host}:{port}"), Remote("s3://b", endpoint=f"http://{host}:{port}")):
                errors = asyncio.run(used(remote, "", hosts))
                assert isinstance(errors[0], RemoteDenied), (hosts, host)
    assert not foreign.asked
    asyncio.run(used(Remote(f"http://localhost:{port}"), "", ("localhost:*", "127.0.0.0/8:*")))
    assert foreign.asked


def test_a_name_that_changes_its_address_is_refused(monkeypatch: pytest.MonkeyPatch, foreign: DecidedServer) -> None:
    looked_up, real = [0], socket.getaddrinfo

    def rebound(host: str, *arguments: object, **named: object) -> object:
        if host != "rebound.example":
            return real(host, *arguments, **named)  # type: ignore[arg-type]
        looked_up[0] += 1
        return real("198.41.0.4" if looked_up[0] == 1 else "127.0.0.1", *arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", rebound)
    port = foreign.url.rpartition(":")[2]
    for scheme, kind in (("http", RemoteDenied), ("https", RemoteUnavailable)):
        looked_up[0] = 0
        error = asyncio.run(used(Remote(f"{scheme}://rebound.example:{port}"), "", ("*:*",)))[0]
        assert isinstance(error, kind) and looked_up[0] > 1
    assert not foreign.asked


def test_a_listed_server_is_used_through_kept_connections(foreign: DecidedServer) -> None:
    async def run() -> None:
        async with OneBackend(Remote("s3://b", endpoint=foreign.url), hosts=LOOPBACK) as backend:
            for at in range(3):
                assert await read(backend, f"a b/é{at}") == b"data"
                await backend.put(f"{at}", chunked(bytes(300_000 * at)), 300_000 * at)
            await asyncio.gather(*(read(backend, f"{at}") for at in range(20)))

    asyncio.run(run())
    assert [len(asked.body) for asked in foreign.asked if asked.method == "PUT"] == [0, 300_000, 600_000]
    assert foreign.asked[0].path == "/b/a%20b/%C3%A90" and not any(map(is_secret, foreign.asked))


@pytest.mark.parametrize("method", ["CONNECT", "GET"])
def test_a_key_of_the_gate_is_for_one_server(foreign: DecidedServer, method: str) -> None:
    gate, own = Gate(), UrlOrigin.of("https://127.0.0.1:9" if method == "CONNECT" else "http://127.0.0.1:9")
    proxy = urlsplit(gate.url(Place(own, None)))
    key = base64.b64encode(f"{proxy.username}:{proxy.password}".encode()).decode()
    for basic in (key, "", "nonsense", base64.b64encode(b"gate:other").decode()):
        connection = http.client.HTTPConnection("127.0.0.1", proxy.port or 0, timeout=180)
        target = foreign.url.removeprefix("http://") if method == "CONNECT" else foreign.url + "/a"
        connection.request(method, target, headers={"Proxy-Authorization": f"Basic {basic}"} if basic else {})
        with contextlib.suppress(http.client.RemoteDisconnected):  # what is no key at all
            assert connection.getresponse().status == 403
        connection.close()
    gate.close()
    assert not foreign.asked


def test_tls_ends_at_the_server_itself(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, foreign: DecidedServer) -> None:
    """The gate only passes bytes on. A redirect within TLS, which it cannot see, is a connection that it refuses."""
    pytest.importorskip("cryptography")
    identity = IdentityFolder(tmp_path / "identity")
    identity.make()
    files = identity.node_files(b"n" * 16, ["localhost"])
    monkeypatch.setenv("SSL_CERT_FILE", files.ca_file)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            is_moved = self.path == "/moved"
            self.send_response(307 if is_moved else 200)
            self.send_header("Location", f"https://{foreign.url.removeprefix('http://')}/a")
            self.send_header("Content-Length", "0" if is_moved else "4")
            self.send_header("Last-Modified", "Tue, 01 Jan 2030 00:00:00 GMT")
            self.end_headers()
            self.wfile.write(b"" if is_moved else b"data")

        def log_message(self, *_: object) -> None:
            pass

    async def run(url: str) -> None:
        async with OneBackend(Remote(url), hosts=("localhost:*", "127.0.0.0/8:*"), retry_s=0.05) as backend:
            assert await read(backend, "a") == b"data"
            with pytest.raises(RemoteUnavailable):
                await read(backend, "moved")

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.cert_file, files.key_file)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        serving.start()
        try:
            asyncio.run(run(f"https://localhost:{server.server_port}"))
        finally:
            server.shutdown()
            serving.join()
    assert not foreign.asked
