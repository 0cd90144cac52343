"""Services: remote storage of each kind for the tests of backends, and new, empty places in it.

S3 is moto's; web servers and folders are the tests' own. Azure and Google are emulators, which `make test-remote`
installs; elsewhere their tests are skipped.
"""

from __future__ import annotations

import contextlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from ais_loader.wire.remote import Remote
from tests.remote import azurite
from tests.remote.azurite import Azurite
from tests.remote.backend_kit import Asked, DecidedServer, OneBackend, Reply, content
from tests.remote.emulator import FOLDER_VARIABLE, emulators
from tests.remote.gcs_server import GcsServer
from tests.remote.s3_server import S3Server

WRITABLE = ("s3", "file", "gs", "az")
KINDS = (*WRITABLE, "http")
EMULATED = ("gs", "az")
PREFIX = "pre fix"


class Place(ABC):
    """An empty place. Tests put and list beside the backend, by keys that follow `above`."""

    above = f"{PREFIX}/"

    def __init__(self, remote: Remote, profiles: str = "") -> None:
        self.remote = remote
        self.profiles = profiles

    def backend(self, **changed: object) -> OneBackend:
        return OneBackend(self.remote, **({"profiles": self.profiles} | changed))

    @abstractmethod
    def put(self, name: str, data: bytes, headers: Mapping[str, str] | None = None) -> None: ...

    @abstractmethod
    def keys(self) -> list[str]: ...

    def uploads(self) -> int:
        """Number of uploads in parts that are neither complete nor aborted."""
        return 0


class S3Place(Place):
    def __init__(self, server: S3Server) -> None:
        self._server, self._bucket = server, server.bucket()
        super().__init__(Remote(f"s3://{self._bucket}/{PREFIX}", endpoint=server.endpoint))

    def put(self, name: str, data: bytes, headers: Mapping[str, str] | None = None) -> None:
        self._server.put(self._bucket, self.above + name, data, headers=headers)

    def keys(self) -> list[str]:
        return self._server.keys(self._bucket)

    def uploads(self) -> int:
        return self._server.uploads(self._bucket)


class GcsPlace(Place):
    def __init__(self, server: GcsServer, profiles: str) -> None:
        self._server, self._bucket = server, server.bucket()
        super().__init__(Remote(f"gs://{self._bucket}/{PREFIX}", profile="gs"), profiles)

    def put(self, name: str, data: bytes, headers: Mapping[str, str] | None = None) -> None:
        status, about = self._server.put(self._bucket, self.above + name, data, headers)
        assert status == 200, about

    def keys(self) -> list[str]:
        return self._server.keys(self._bucket)

    def uploads(self) -> int:
        return len(self._server.uploads)


class AzurePlace(Place):
    def __init__(self, server: Azurite, profiles: str) -> None:
        self._server, self._container = server, server.container()
        super().__init__(Remote(f"az://{self._container}/{PREFIX}", profile="az"), profiles)

    def put(self, name: str, data: bytes, headers: Mapping[str, str] | None = None) -> None:
        self._server.put(self._container, self.above + name, data, headers)

    def keys(self) -> list[str]:
        return self._server.keys(self._container)


class FolderPlace(Place):
    above = ""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder
        super().__init__(Remote(f"file://{folder}"))

    def put(self, name: str, data: bytes, headers: Mapping[str, str] | None = None) -> None:
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def keys(self) -> list[str]:
        return sorted(str(path.relative_to(self._folder)) for path in self._folder.rglob("*") if path.is_file())


class WebPlace(Place):
    def __init__(self, server: DecidedServer, objects: dict[str, tuple[bytes, Mapping[str, str]]]) -> None:
        self._objects = objects
        objects.clear()
        super().__init__(Remote(f"{server.url}/{PREFIX.replace(' ', '%20')}"))

    def put(self, name: str, data: bytes, headers: Mapping[str, str] | None = None) -> None:
        self._objects[f"/{PREFIX}/{name}"] = data, headers or {}

    def keys(self) -> list[str]:
        return [key.removeprefix("/") for key in sorted(self._objects)]


@contextlib.contextmanager
def web_server() -> Iterator[Callable[[], WebPlace]]:
    """Run a web server with ranges and tags. Yields what makes its only place empty, and returns it."""
    objects: dict[str, tuple[bytes, Mapping[str, str]]] = {}

    def decide(asked: Asked) -> Reply:
        found = objects.get(unquote(urlsplit(asked.path).path))
        if found is None:
            return Reply(404)
        etag = f'"{hash(found[0]):x}"'
        if asked.headers.get("if-none-match") == etag:
            return Reply(304, headers={"ETag": etag})
        reply = content(asked, found[0], etag)
        reply.headers.update(found[1])
        return reply

    with DecidedServer(decide) as server:
        yield lambda: WebPlace(server, objects)


@contextlib.contextmanager
def running(kind: str, s3: S3Server, folder: Path) -> Iterator[Callable[[Path], Place]]:
    """Run a service of this kind. Yields what makes a new place; its argument is a folder of the test."""
    if kind in EMULATED and emulators() is None:
        pytest.skip(f"the emulator for {kind}:// is not installed: `make test-remote` does, and sets {FOLDER_VARIABLE}")
    profiles = folder / f"{kind}.toml"
    profiles.touch(0o600)
    match kind:
        case "s3":
            yield lambda _: S3Place(s3)
        case "file":
            yield lambda own: FolderPlace(own / "objects")
        case "http":
            with web_server() as make:
                yield lambda _: make()
        case "gs":
            with GcsServer(_folder()) as gcs:
                account = folder / "account.json"
                account.write_text(json.dumps(_google_account()))
                profiles.write_text(f'[gs]\nservice_account_path = "{account}"\nendpoint = "{gcs.endpoint}"\n')
                yield lambda _: GcsPlace(gcs, str(profiles))
        case "az":
            with Azurite(_folder()) as azure:
                profiles.write_text(
                    f'[az]\naccount_name = "{azurite.ACCOUNT}"\naccount_key = "{azurite.KEY}"\n'
                    f'endpoint = "{azure.endpoint}"\n'
                )
                yield lambda _: AzurePlace(azure, str(profiles))
        case _:
            raise AssertionError(kind)


def _folder() -> Path:
    folder = emulators()
    assert folder is not None
    return folder.absolute()


def _google_account() -> dict[str, str]:
    """A new account, which signs its own tokens and URLs. The emulator accepts any."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    text = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
    return {"client_email": "a@b", "private_key": text, "private_key_id": "k"}
