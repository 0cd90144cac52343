"""Paths of `ais://` with characters of patterns: every call of fsspec takes a name that exists for that name."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.dirfs import DirFileSystem

from ais_loader import errors
from ais_loader.integrations.fsspec import AISFileSystem
from ais_loader.testing import throwaway_folder
from tests.every_value import every_value_once, product_of
from tests.table import table

NAMES = {  # with a sibling that the name would match as a pattern
    "a[1].txt": "a1.txt",
    "a[!1].txt": "a2.txt",
    "a?.txt": "ab.txt",
    "a*.txt": "a-long.txt",
    "*": "everything",
    "a[*?].txt": "a?.txt",
    "a{1}.txt": "a1.txt",
    "a].txt": "a.txt",
    "f[1]/x": "f1/x",
    "**/x": "deep/below/x",
}
MINE, SIBLING = b"mine", b"the sibling's"
State = dict[str, bytes]


_numbers = itertools.count()


@pytest.fixture(scope="module")
def files() -> Iterator[AISFileSystem]:
    with throwaway_folder() as folder:
        AISFileSystem.clear_instance_cache()
        files = fsspec.filesystem("ais", store=str(folder / "store"))
        files.mkdir("b")
        files.mkdir("other")
        yield files
        files._client.close()


def fill(files: AISFileSystem, *names: str) -> tuple[str, str]:
    """Make a folder with these objects, of which the first is MINE. Returns it, and one that is empty."""
    folder = f"t{next(_numbers)}"
    files.pipe({f"b/{folder}/{name}": SIBLING if at else MINE for at, name in enumerate(names)})
    return f"b/{folder}", f"other/{folder}"


def state(files: AISFileSystem, folder: str) -> State:
    if not (found := files.find(folder)):
        return {}
    return {name.removeprefix(f"{folder}/"): files.cat_file(name) for name in found}


def local(folder: Path) -> State:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def read_mapping(files: AISFileSystem, path: str) -> Any:
    folder, _, name = path.rpartition("/")
    return files.get_mapper(folder)[name]


def open_file(files: AISFileSystem, path: str) -> bytes:
    with fsspec.open(f"ais://{path}", store=files.storage_options["store"]) as file:
        found: bytes = file.read()
        return found


READS: dict[str, tuple[Callable[[AISFileSystem, str], Any], Callable[[str], Any]]] = {
    "cat": (lambda fs, path: fs.cat(path), lambda _: MINE),
    "cat list": (lambda fs, path: fs.cat([path]), lambda path: {path: MINE}),
    "cat found": (lambda fs, path: fs.cat(fs.find(path)), lambda path: {path: MINE}),
    "cat recursive": (lambda fs, path: fs.cat(path, recursive=True), lambda _: MINE),
    "cat_file": (lambda fs, path: fs.cat_file(path), lambda _: MINE),
    "cat_ranges": (lambda fs, path: fs.cat_ranges([path], 0, 2), lambda _: [MINE[:2]]),
    "read_block": (lambda fs, path: fs.read_block(path, 1, 2), lambda _: MINE[1:3]),
    "head": (lambda fs, path: fs.head(path, 3), lambda _: MINE[:3]),
    "tail": (lambda fs, path: fs.tail(path, 3), lambda _: MINE[-3:]),
    "read_text": (lambda fs, path: fs.read_text(path), lambda _: MINE.decode()),
    "expand_path": (lambda fs, path: fs.expand_path(path), lambda path: [path]),
    "expand_path list": (lambda fs, path: fs.expand_path([path]), lambda path: [path]),
    "expand_path literal": (lambda fs, path: fs.expand_path(path, assume_literal=True), lambda path: [path]),
    "expand_path recursive": (lambda fs, path: fs.expand_path(path, recursive=True), lambda path: [path]),
    "glob": (lambda fs, path: fs.glob(path), lambda path: [path]),
    "glob detail": (lambda fs, path: fs.glob(f"ais://{path}", detail=True), lambda path: [path]),
    "find": (lambda fs, path: fs.find(path), lambda path: [path]),
    "find levels": (lambda fs, path: fs.find(path, maxdepth=1, withdirs=True), lambda path: [path]),
    "walk": (lambda fs, path: list(fs.walk(path)), lambda path: [(path, [], [""])]),
    "ls": (lambda fs, path: fs.ls(path, detail=False), lambda path: [path]),
    "du": (lambda fs, path: fs.du(path, total=False), lambda path: {path: len(MINE)}),
    "info": (lambda fs, path: (fs.info(path)["name"], fs.size(path)), lambda path: (path, len(MINE))),
    "sizes": (lambda fs, path: fs.sizes([path]), lambda _: [len(MINE)]),
    "exists": (lambda fs, path: (fs.exists(path), fs.isfile(path), fs.isdir(path)), lambda _: (True, True, False)),
    "mapping": (read_mapping, lambda _: MINE),
    "open": (open_file, lambda _: MINE),
}


@pytest.mark.parametrize(
    ("name", "beside"),
    product_of(list(NAMES), [False, True], quick=[("a[1].txt", True), ("*", False), ("f[1]/x", True)]),
)
def test_reading_concerns_the_object_that_is_named(files: AISFileSystem, name: str, beside: bool) -> None:
    folder, _ = fill(files, name, *[NAMES[name]][: int(beside)])
    path = f"{folder}/{name}"
    found = {call: read(files, path) for call, (read, _) in READS.items()}
    found["glob detail"] = list(found["glob detail"])
    assert found == {call: wanted(path) for call, (_, wanted) in READS.items()}


def remove_from_mapping(files: AISFileSystem, path: str) -> None:
    folder, _, name = path.rpartition("/")
    files.get_mapper(folder).delitems([name])


def remove_without_waiting(files: AISFileSystem, path: str) -> None:
    wrapper = pytest.importorskip("fsspec.implementations.asyn_wrapper")

    async def run() -> None:
        await wrapper.AsyncFileSystemWrapper(files, asynchronous=True)._rm(path)

    asyncio.run(run())


REMOVALS: dict[str, Callable[[AISFileSystem, str, str], object]] = {
    "rm": lambda fs, path, _: fs.rm(path),
    "rm list": lambda fs, path, _: fs.rm([path]),
    "rm found": lambda fs, path, _: fs.rm(fs.find(path)),
    "rm recursive": lambda fs, path, _: fs.rm(path, recursive=True),
    "rm levels": lambda fs, path, _: fs.rm(f"ais://{path}", recursive=True, maxdepth=1),
    "rm_file": lambda fs, path, _: fs.rm_file(path),
    "delete": lambda fs, path, _: fs.delete(path),
    "below": lambda fs, path, _: DirFileSystem("b", fs).rm(path.removeprefix("b/")),
    "mapping": lambda fs, path, _: remove_from_mapping(fs, path),
    "async": lambda fs, path, _: remove_without_waiting(fs, path),
    "mv": lambda fs, path, to: fs.mv(path, f"{to}/there"),
    "mv list": lambda fs, path, to: fs.mv([path], [f"{to}/there"]),
    "mv found": lambda fs, path, to: fs.move(fs.find(path), f"{to}/"),
    "mv recursive": lambda fs, path, to: fs.rename(path, f"{to}/there", recursive=True),
    "mv folder": lambda fs, path, to: fs.mv(path, f"{to}/"),
}
CHANGED = ["a[1].txt", "a?.txt", "*", "a{1}.txt", "f[1]/x"]


def removal(files: AISFileSystem, call: str, name: str) -> None:
    folder, to = fill(files, name, NAMES[name])
    REMOVALS[call](files, f"{folder}/{name}", to)
    assert state(files, folder) == {NAMES[name]: SIBLING}
    last = name.rpartition("/")[2]
    there = {"mv found": last, "mv folder": last}.get(call, "there")
    assert state(files, to) == ({there: MINE} if call.startswith("mv") else {})


@table(("call", "name"), every_value_once(REMOVALS, CHANGED))
def test_removing_and_moving_concern_the_object_that_is_named(files: AISFileSystem, call: str, name: str) -> None:
    removal(files, call, name)


@pytest.mark.slow
@table("call", list(REMOVALS))
@table("name", list(NAMES))
def test_removing_and_moving_any_name(files: AISFileSystem, call: str, name: str) -> None:
    removal(files, call, name)


COPIES: dict[str, tuple[Callable[[Any, str, str], object], str]] = {
    "file": (lambda copy, path, to: copy(path, f"{to}/there"), "there"),
    "slash": (lambda copy, path, to: copy(path, f"{to}/new/"), "new/LAST"),
    "folder": (lambda copy, path, to: copy(path, f"{to}/"), "LAST"),
    "recursive": (lambda copy, path, to: copy(path, f"{to}/there", recursive=True), "there"),
    "list": (lambda copy, path, to: copy([path], to), "LAST"),
    "lists": (lambda copy, path, to: copy([path], [f"{to}/there"]), "there"),
}


@table(("call", "name"), every_value_once(COPIES, CHANGED))
def test_copies_concern_the_file_that_is_named(files: AISFileSystem, tmp_path: Path, call: str, name: str) -> None:
    folder, to = fill(files, name, NAMES[name])
    copy, there = COPIES[call]
    wanted = {there.replace("LAST", name.rpartition("/")[2]): MINE}
    copy(files.copy, f"{folder}/{name}", to)
    assert state(files, to) == wanted
    copy(files.get, f"{folder}/{name}", str(tmp_path / "got"))
    assert local(tmp_path / "got") == wanted
    for one, data in ((name, MINE), (NAMES[name], SIBLING)):
        (tmp_path / "mine" / one).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "mine" / one).write_bytes(data)
    copy(files.put, str(tmp_path / "mine" / name), f"{to}/put")
    assert state(files, f"{to}/put") == wanted


def test_folders_of_such_names_are_whole(files: AISFileSystem, tmp_path: Path) -> None:
    folder, to = fill(files, "d[1]/x", "d[1]/e?/y", "d[1]", "d1/x")
    assert files.cat(f"{folder}/d[1]/e?", recursive=True) == {f"{folder}/d[1]/e?/y": SIBLING}
    files.copy(f"{folder}/d[1]", f"{to}/new", recursive=True)
    assert state(files, to) == {"new": SIBLING, "new/e?/y": SIBLING, "new/x": MINE}
    files.get(f"{folder}/d[1]/e?", str(tmp_path / "new"), recursive=True)
    assert local(tmp_path) == {"new/y": SIBLING}
    files.put(str(tmp_path), f"{to}/put[1]", recursive=True)
    assert state(files, f"{to}/put[1]") == {"new/y": SIBLING}
    files.mv(f"{folder}/d[1]", f"{folder}/moved", recursive=True)
    moved = {"moved": SIBLING, "moved/e?/y": SIBLING, "moved/x": MINE}
    assert state(files, folder) == moved | {"d1/x": SIBLING}
    files.pipe_file(f"{folder}/d[1]/x", MINE)
    files.rm(f"{folder}/d[1]", recursive=True)
    assert state(files, folder) == moved | {"d1/x": SIBLING}


def test_patterns_that_are_no_names_still_match(files: AISFileSystem, tmp_path: Path) -> None:
    folder, to = fill(files, "a1", "a2", "b1", "f/a1/y", "f/a3/z")
    names = [f"{folder}/a1", f"{folder}/a2"]
    assert files.glob(f"{folder}/a[12]") == files.expand_path(f"{folder}/a?") == names
    assert files.cat(f"{folder}/a*") == dict(zip(names, (MINE, SIBLING), strict=True))
    files.get(f"{folder}/f/*", str(tmp_path / "got"), recursive=True)
    assert local(tmp_path / "got") == {"a1/y": SIBLING, "a3/z": SIBLING}
    files.rm(f"{folder}/f/a*", recursive=True, maxdepth=1)  # folders are no files, and the pattern is the first level
    files.mv(f"{folder}/a[2-9]", to)
    assert state(files, to) == {"a2": SIBLING}
    files.rm(f"{folder}/a*")
    assert list(state(files, folder)) == ["b1", "f/a1/y", "f/a3/z"]
    files.pipe({f"{folder}/a[1]": MINE, f"{folder}/a1": SIBLING})
    assert files.glob(f"{folder}/a[[]1]") == [f"{folder}/a[1]"]


MISSING: dict[str, Callable[[AISFileSystem, str, str], object]] = {
    "rm": lambda fs, path, _: fs.rm(path),
    "rm list": lambda fs, path, _: fs.rm([path]),
    "rm recursive": lambda fs, path, _: fs.rm(path, recursive=True),
    "cat": lambda fs, path, _: fs.cat(path),
    "cat list": lambda fs, path, _: fs.cat([path]),
    "get": lambda fs, path, _: fs.get(path, "/dev/null/nowhere"),
    "copy": lambda fs, path, to: fs.copy(path, f"{to}/there"),
    "mv": lambda fs, path, to: fs.mv(path, f"{to}/there"),
    "mv list": lambda fs, path, to: fs.mv([path], [f"{to}/there"]),
    "mv recursive": lambda fs, path, to: fs.mv(path, f"{to}/there", recursive=True),
}


@table("name", ["nothing", "no[1]", "a[2]"])
def test_a_path_that_is_missing_is_a_file_that_is_not_found(files: AISFileSystem, name: str) -> None:
    folder, to = fill(files, "a1", "a[1]")
    for call, run in MISSING.items():
        with pytest.raises(FileNotFoundError):
            run(files, f"{folder}/{name}", to)
        assert files.find(folder) == [f"{folder}/a1", f"{folder}/a[1]"], call


def test_lists_are_literal_even_if_their_paths_are_gone(files: AISFileSystem) -> None:
    folder, _ = fill(files, "a1", "a[1]")
    found = files.find(f"{folder}/a[1]")
    files.rm_file(f"{folder}/a[1]")
    for call in (files.rm, files.cat):
        with pytest.raises(FileNotFoundError):
            call(found)
    assert state(files, folder) == {"a1": MINE}


def test_files_that_are_moved_to_themselves_stay(files: AISFileSystem) -> None:
    folder, to = fill(files, "f/a")
    for target in (f"{folder}/f/a", f"ais://{folder}/f/a", f"{folder}/f/"):
        files.mv(f"{folder}/f/a", target)
    with pytest.raises(IsADirectoryError):
        files.mv(f"{folder}/f", f"{to}/f")
    assert (state(files, folder), state(files, to)) == ({"f/a": MINE}, {})


def test_a_question_without_an_answer_is_not_a_no(files: AISFileSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that does not answer may have the name, so that nothing matches it as a pattern."""
    folder, _ = fill(files, "a1", "a[1]")

    def silent(*_: object, **__: object) -> None:
        raise errors.NodeUnavailable("no answer")

    monkeypatch.setattr(AISFileSystem, "info", silent)
    for call in (files.exists, files.isfile, files.isdir, files.rm, files.glob, files.expand_path):
        with pytest.raises(errors.NodeUnavailable):
            call(f"{folder}/a[1]")
    monkeypatch.undo()
    assert state(files, folder) == {"a1": MINE, "a[1]": SIBLING}
