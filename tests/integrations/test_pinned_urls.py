"""`ais://bucket@snapshot/name` in other libraries, through fsspec."""

from __future__ import annotations

import io
import tarfile
from urllib.parse import urlsplit

import fsspec
import pytest

from ais_loader import connect
from ais_loader.integrations.fsspec import AISFileSystem
from ais_loader.testing import throwaway_folder
from tests.tar_kit import packed_tar


def test_other_libraries_read_a_snapshot_by_its_url() -> None:
    with throwaway_folder() as folder:
        store = str(folder / "store")
        with connect(store) as client:
            bucket = client.create_bucket("speech")
            bucket.put("en/a.wav", b"before")
            bucket.put("s.tar", packed_tar({"m.wav": b"member"}))
            bucket.snapshot("run-1")
            bucket.put("en/a.wav", b"after")
            bucket.delete("s.tar")
        with fsspec.open("ais://speech@run-1/en/a.wav", store=store) as file:
            assert file.read() == b"before"
        with fsspec.open("ais://speech/en/a.wav", store=store) as file:
            assert file.read() == b"after"
        files = fsspec.filesystem("ais", store=store)
        assert files.ls("speech@run-1", detail=False) == ["speech@run-1/en", "speech@run-1/s.tar"]
        assert files.find("ais://speech@run-1") == ["speech@run-1/en/a.wav", "speech@run-1/s.tar"]
        assert files.glob("speech@run-1/en/*.wav") == ["speech@run-1/en/a.wav"]
        with tarfile.open(fileobj=io.BytesIO(files.cat("ais://speech@run-1/s.tar"))) as tar:
            assert tar.getnames() == ["m.wav"]
        with pytest.raises(FileNotFoundError):
            files.cat("speech@run-2/en/a.wav")
        assert not files.exists("speech@run-2")
        files._client.close()
        AISFileSystem.clear_instance_cache()
    # What takes a URL apart finds the pinned name where it looks for the bucket.
    parts = urlsplit("ais://speech@run-1/en/a.wav")
    assert (parts.netloc, parts.path) == ("speech@run-1", "/en/a.wav")
