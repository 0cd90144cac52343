"""Listings of a store whose drive is missing: an error that says so, or exactly what is on the other drives."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest
from click.testing import CliRunner

from ais_loader import Bucket, connect, errors
from ais_loader.cli import main
from storage_node.server import NodeServer
from storage_node.settings.config import ServerConfig

pytestmark = pytest.mark.slow
OBJECTS = {f"{folder}/{at:03}": b"%d" % at for folder in ("a", "b") for at in range(40)}


class Degraded(NamedTuple):
    url: str
    bucket: Bucket
    names: list[str]
    """Those on the drive that is there, and the others."""
    missing: list[str]


@pytest.fixture(scope="module", params=["embedded", "node"])
def degraded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Degraded]:
    folder = tmp_path_factory.mktemp("store")
    drives = [folder / "drive-0", folder / "drive-1"]
    url = ",".join(map(str, drives))
    with connect(url) as client:
        client.create_bucket("b").put_many(OBJECTS.items())
    drives[1].rename(folder / "away")
    if request.param == "embedded":
        with connect(url, mode="r") as client:
            yield _degraded(url, client.bucket("b"))
        return
    with NodeServer(drives, ServerConfig(port=0)) as node, connect(node.url) as client:
        yield _degraded(node.url, client.bucket("b"))


def _degraded(url: str, bucket: Bucket) -> Degraded:
    found = bucket.get_batch(list(OBJECTS), on_error="placeholder").tobytes()
    names = [name for name, data in zip(OBJECTS, found, strict=True) if data is not None]
    assert 10 < len(names) < 70
    return Degraded(url, bucket, names, sorted(OBJECTS.keys() - set(names)))


def test_by_default_every_listing_says_which_drive_is_missing_and_how_to_list_the_others(degraded: Degraded) -> None:
    from ais_loader import MapDataset

    bucket = degraded.bucket
    for listing in (
        lambda: list(bucket.objects()),
        lambda: bucket.entries("a/"),
        lambda: bucket.summary(),
        lambda: len(MapDataset(degraded.url, "ais://b/a/")),
    ):
        with pytest.raises(errors.DriveFailed, match=r"drive.*on_missing_drive=\"skip\".*--skip-missing-drives"):
            listing()


def test_on_request_exactly_what_is_on_the_other_drives_is_listed(degraded: Degraded) -> None:
    from ais_loader import MapDataset

    bucket, names = degraded.bucket, degraded.names
    assert [info.name for info in bucket.objects(on_missing_drive="skip", page_size=7)] == names
    of_folder = [name for name in names if name.startswith("a/")]
    entries = bucket.entries("a/", on_missing_drive="skip")
    assert [entry.name for entry in entries] == of_folder
    dataset = MapDataset(degraded.url, entries)
    assert [bytes(dataset[at]) for at in range(len(dataset))] == [OBJECTS[name] for name in of_folder]


def test_another_choice_is_refused(degraded: Degraded) -> None:
    with pytest.raises(errors.InvalidRequest, match="on_missing_drive='ignore': one of"):
        degraded.bucket.objects(on_missing_drive="ignore")  # type: ignore[arg-type]


def test_ls_lists_the_other_drives_when_told_to(degraded: Degraded) -> None:
    def ls(*arguments: str) -> tuple[int, list[str], str]:
        result = CliRunner().invoke(main, ["ls", *arguments, "--store", degraded.url])
        return result.exit_code, result.stdout.splitlines(), result.stderr

    for arguments in (["b"], ["-r", "b"], ["--prefix", "b/a"]):
        code, lines, said = ls(*arguments)
        assert (code, lines) == (1, []) and "--skip-missing-drives" in said
    whole = [f"b/{name}" for name in degraded.names]
    assert ls("-r", "b", "--skip-missing-drives") == (0, whole, "")
    assert ls("b", "--skip-missing-drives") == (0, ["b/a/", "b/b/"], "")
    assert ls("b/a/", "--skip-missing-drives") == (0, [name for name in whole if name.startswith("b/a/")], "")
    assert ls("--prefix", "b/a", "--skip-missing-drives")[1] == [name for name in whole if name.startswith("b/a")]
    assert ls(f"b/{degraded.missing[0]}", "--skip-missing-drives")[:2] == (1, [])
