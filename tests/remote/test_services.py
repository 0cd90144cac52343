"""Remote buckets of a node over every service that can be written: reads, listings, conditions, and what is evicted.

Azure and Google are emulators, which `make test-remote` installs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ais_loader import Entry, connect, errors
from ais_loader.objects.client import Client
from ais_loader.testing.node import NodeProcess
from tests.remote.backend_kit import ANY_HOST
from tests.remote.s3_server import S3Server
from tests.remote.services import EMULATED, Place, running


@pytest.fixture(scope="module", params=EMULATED)
def service(
    request: pytest.FixtureRequest, s3: S3Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[Path], Place]]:
    with running(request.param, s3, tmp_path_factory.mktemp("service")) as make:
        yield make


@pytest.fixture
def place(service: Callable[[Path], Place], tmp_path: Path) -> Place:
    return service(tmp_path)


@pytest.fixture
def connected(place: Place, tmp_path: Path) -> Iterator[Client]:
    arguments = [*ANY_HOST, "--set", f"remote_profiles={place.profiles}"]
    with NodeProcess(tmp_path / "drive", arguments=arguments) as node, connect(node.url) as client:
        yield client


def test_a_remote_bucket_over_an_emulated_cloud(place: Place, connected: Client) -> None:
    contents = {f"en/{at:03}": bytes([at]) * (1000 + at) for at in range(20)} | {"ä/日本 😀": b"x"}
    for name, data in contents.items():
        place.put(name, data)
    place.put("a//b", b"no name here")
    bucket = connected.create_bucket("train", remote=place.remote)
    cold = {info.name: info.version for info in bucket.objects()}
    assert list(cold) == sorted(contents) and not any(info.is_stored for info in bucket.objects())
    # Listings and requests agree about versions.
    assert {name: bucket.head(name).version for name in contents} == cold
    items = list(connected.get_batch([Entry("train", name) for name in contents]))
    assert [item.data.tobytes() for item in items] == list(contents.values())
    assert all(info.is_stored for info in bucket.objects())

    bucket.put("en/000", b"mine", if_version=cold["en/000"])
    with pytest.raises(errors.VersionConflict):
        bucket.put("en/000", b"late", if_version=cold["en/000"])
    with pytest.raises(errors.VersionConflict):
        bucket.put("en/001", b"late", if_absent=True)
    bucket.put("large", large := bytes(range(256)) * (90 << 10))
    bucket.evict()
    assert bucket.get("en/000") == b"mine" and bucket.get("large") == large
    bucket.delete("en/002", if_version=bucket.head("en/002").version)
    bucket.delete_many(["en/003", "large"])
    left = sorted(contents.keys() - {"en/002", "en/003"})
    assert [info.name for info in bucket.objects()] == left
    assert place.keys() == sorted([place.above + name for name in left] + [f"{place.above}a//b"])


@pytest.mark.parametrize("service", ["az"], indirect=True)  # that of Google accepts any credentials
def test_a_place_whose_credentials_are_wrong(place: Place, connected: Client) -> None:
    profiles = Path(place.profiles)
    text = profiles.read_text()
    key = text.partition('account_key = "')[2].partition('"')[0]
    wrong = "A" + key[1:]
    try:
        profiles.write_text(text.replace(key, wrong))
        bucket = connected.create_bucket("train", remote=place.remote)
        for call in (lambda: bucket.get("a"), lambda: list(bucket.objects()), lambda: bucket.put("a", b"1")):
            with pytest.raises(errors.RemoteDenied) as raised:
                call()
            assert wrong not in str(raised.value) and "credentials" in str(raised.value), raised.value
    finally:
        profiles.write_text(text)
