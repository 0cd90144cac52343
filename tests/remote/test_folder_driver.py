"""Folders as remote storage: nothing leads out of them, and unfinished puts stay hidden."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ais_loader.errors import InvalidName, ObjectNotFound, RemoteDenied
from ais_loader.testing import eventually
from ais_loader.wire.remote import Remote
from storage_node.remote.drivers import folder_driver
from tests.open_files import open_files
from tests.remote.backend_kit import MIB, OneBackend, chunked, names, read


def open_below(folder: Path) -> list[str]:
    return list(open_files(folder).values())


def test_links_and_names_do_not_lead_out(tmp_path: Path) -> None:
    (tmp_path / "in" / "folder").mkdir(parents=True)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "secret").write_bytes(b"secret")
    (tmp_path / "in" / "file").write_bytes(b"file")
    (tmp_path / "in" / "inner").symlink_to("file")
    (tmp_path / "in" / "outer").symlink_to(tmp_path / "out" / "secret")
    (tmp_path / "in" / "up").symlink_to("../out")
    (tmp_path / "in" / "broken").symlink_to("nothing")
    os.mkfifo(tmp_path / "in" / "pipe")

    async def run() -> None:
        async with OneBackend(Remote(f"file://{tmp_path}/in"), [tmp_path / "in"]) as backend:
            assert await names(backend) == ["file", "inner"]
            assert await read(backend, "inner") == b"file"
            for name in ("outer", "up/secret"):
                with pytest.raises(RemoteDenied, match="leads out of the folder"):
                    await backend.get(name)
            for asked in (backend.put("up/new", chunked(b"1"), 1), backend.delete("up/secret")):
                with pytest.raises(RemoteDenied, match="leads out of the folder"):
                    await asked
            for name in ("pipe", "folder", "file/more"):
                with pytest.raises(ObjectNotFound):
                    await backend.get(name)
            for name in ("../out/secret", "/etc/passwd", "a/../../out/secret"):
                with pytest.raises(InvalidName):
                    await backend.get(name)

    asyncio.run(run())
    assert os.listdir(tmp_path / "out") == ["secret"]


def test_only_allowed_folders_are_remote_storage(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "link").symlink_to("/")

    async def run() -> None:
        for roots in ([], [tmp_path / "other"], [tmp_path / "in" / "link" / "nothing"]):
            async with OneBackend(Remote(f"file://{tmp_path}/in"), roots) as backend:
                with pytest.raises(RemoteDenied, match="remote_file_roots"):
                    await names(backend)
        async with OneBackend(Remote(f"file://{tmp_path}/in/link/etc"), [tmp_path]) as backend:
            with pytest.raises(RemoteDenied, match="remote_file_roots"):
                await names(backend)
        async with OneBackend(Remote(f"file://{tmp_path}/none"), [tmp_path]) as backend:
            with pytest.raises(RemoteDenied, match="No such file"):
                await names(backend)

    asyncio.run(run())


def test_a_put_is_invisible_until_it_is_complete(tmp_path: Path) -> None:
    async def run() -> None:
        async with OneBackend(Remote(f"file://{tmp_path}")) as backend:

            async def chunks() -> AsyncIterator[bytes]:
                for _ in range(3):
                    assert await names(backend) == []
                    yield bytes(2 * MIB)

            await backend.put("a/b", chunks(), 6 * MIB)
            assert await names(backend) == ["a/b"]
            assert os.listdir(tmp_path / "a") == ["b"]

    asyncio.run(run())


def test_a_folder_is_created_and_a_name_that_is_no_text_is_skipped(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"bad\xff")).write_bytes(b"1")

    async def run() -> None:
        async with OneBackend(Remote(f"file://{tmp_path}")) as backend:
            await backend.put("x\ty/z", chunked(b"1"), 1)
            assert await names(backend) == ["x\ty/z"]
            assert (backend.skipped.count, backend.skipped.names) == (1, ["bad\\udcff"])

    asyncio.run(run())


def test_a_put_without_room_for_its_file_keeps_no_descriptor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_driver, "_UNFINISHED", "x" * 300)  # no file has such a name

    async def run() -> None:
        async with OneBackend(Remote(f"file://{tmp_path}")) as backend:
            for at in range(3):
                with pytest.raises(RemoteDenied, match="File name too long"):
                    await backend.put(f"a/{at}", chunked(b"1"), 1)
        assert open_below(tmp_path) == []

    asyncio.run(run())


@pytest.mark.parametrize("step", ["open", "write", "rename"])
def test_a_put_that_is_cancelled_closes_its_file_when_the_thread_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    begun, go, call = threading.Event(), threading.Event(), getattr(os, step)
    outcome: list[object] = []

    def held(*arguments: object, **named: object) -> object:
        if step == "open" and "ais-loader-put" not in str(arguments[0]):
            return call(*arguments, **named)
        begun.set()
        assert go.wait(180)
        try:
            outcome.append(call(*arguments, **named))
        except OSError as error:
            outcome.append(error)
            raise
        return outcome[0]

    async def run() -> None:
        async with OneBackend(Remote(f"file://{tmp_path}")) as backend:
            with monkeypatch.context() as patch:
                patch.setattr(os, step, held)
                put = asyncio.create_task(backend.put("a/b", chunked(b"1"), 1))
                assert await asyncio.to_thread(begun.wait, 180)
                put.cancel()
                await asyncio.wait([put], timeout=0.2)  # a number of a closed descriptor may be that of another file
                go.set()
                with pytest.raises(asyncio.CancelledError):
                    await put
        eventually(lambda: outcome, 180)

    asyncio.run(run())
    assert not isinstance(outcome[0], OSError)
    assert open_below(tmp_path) == []
    assert os.listdir(tmp_path / "a") == (["b"] if step == "rename" else [])
