"""Registry of transforms: its edits alone, and a store's record that has them when it is opened again."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ais_loader import Command, connect, errors
from ais_loader.testing import eventually
from ais_loader.wire.generated import ais_etl_pb2 as pb
from storage_node.etl.local_etl import LocalEtl
from storage_node.etl.registry import registry
from storage_node.etl.registry.registry import check_transform, deleted, in_new_version, initialized, set_stopped
from storage_node.etl.run.transformed_run import TransformedRun
from tests.table import table


def command(name: str, *words: str) -> pb.Transform:
    return pb.Transform(name=name, command=pb.Command(argument=words or ("cat",)))


def version(name: str, *words: str) -> pb.Transform:
    return in_new_version(command(name, *words))


def test_a_transform_is_made_once_and_replaced_in_another_version_only_when_asked() -> None:
    edit = initialized(version("a"), replace=False)
    (first,) = edit([])
    assert len(first.uuid) == 16 and first.created_ns > 0
    assert edit([first]) == [first]  # the same edit again, after an answer that was lost
    with pytest.raises(errors.TransformExists, match="'a'"):
        initialized(version("a"), replace=False)([first])
    (other, second) = initialized(version("a", "tr"), replace=True)([first, version("b")])
    assert (other.name, second.name, list(second.command.argument)) == ("b", "a", ["tr"])
    assert second.uuid != first.uuid


def test_stopping_keeps_the_version_and_changes_nothing_that_was_given() -> None:
    given = initialized(version("a"), replace=False)([])
    (stopped,) = set_stopped("a", stopped=True)(given)
    assert (stopped.stopped, stopped.uuid, given[0].stopped) == (True, given[0].uuid, False)
    assert set_stopped("a", stopped=False)([stopped]) == given
    assert deleted("a")(given) == []
    for edit in (set_stopped("x", stopped=True), deleted("x")):
        with pytest.raises(errors.TransformNotFound, match="no transform 'x'"):
            edit(given)


def test_there_are_only_so_many_and_so_large_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "MAX_TRANSFORMS", 2)
    two = [version("a"), version("b")]
    with pytest.raises(errors.InvalidRequest, match="2 transforms"):
        initialized(version("c"), replace=False)(two)
    assert len(initialized(version("b"), replace=True)(two)) == 2
    monkeypatch.setattr(registry, "MAX_ALL_BYTES", 1000)
    with pytest.raises(errors.InvalidRequest, match="1,000 bytes in all"):
        initialized(version("b", "x" * 1000), replace=True)(two)


@table("name", ["", ".a", "a/b", "a" * 64, "ä", "a\n", "../a"])
def test_a_name_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(errors.InvalidName):
        check_transform(command(name))


def test_what_comes_from_the_wire_has_bounds() -> None:
    check_transform(pb.Transform(name="a", python=pb.PythonCode(pickle=b"x" * registry.MAX_CODE_BYTES)))
    wrong = [
        pb.Transform(name="a"),
        pb.Transform(name="a", python=pb.PythonCode(pickle=b"x" * (registry.MAX_CODE_BYTES + 1))),
        command("a", *["x"] * (registry.MAX_WORDS + 1)),
        command("a", "x" * (registry.MAX_TEXT + 1)),
        *(
            pb.Transform(name="a", command=pb.Command(argument=["cat"]), limits=limits)
            for limits in (
                pb.TransformLimits(timeout_s=-1),
                pb.TransformLimits(timeout_s=float("nan")),
                pb.TransformLimits(inflation=float("inf")),
            )
        ),
    ]
    for one in wrong:
        with pytest.raises(errors.InvalidRequest):
            check_transform(one)


@pytest.mark.slow
def test_a_store_that_is_opened_again_has_its_transforms_and_a_reader_runs_but_does_not_make_them(
    tmp_path: Path,
) -> None:
    with connect(tmp_path / "s") as client:
        client.create_bucket("b").put("a", b"abc")
        made = client.etl.init("up", Command(["tr", "a-z", "A-Z"]))
        client.etl.init("off", Command(["cat"]))
        client.etl.stop("off")
    with connect(tmp_path / "s") as client:
        assert [(one.name, one.stopped) for one in client.etl.list()] == [("up", False), ("off", True)]
        assert client.etl.get("up").version == made.version
        assert client.bucket("b").get("a", etl="up") == b"ABC"
        with pytest.raises(errors.TransformGone):
            client.bucket("b").get("a", etl="off")
    with connect(tmp_path / "s", mode="r") as client:
        assert client.bucket("b").get("a", etl="up") == b"ABC"
        with pytest.raises(errors.LoaderError):
            client.etl.init("new", Command(["cat"]))


WORDS = [["tr", "a-z", "A-Z"], ["tr", "a-z", "b-za"]]


@pytest.mark.parametrize("change", ["replaced", "deleted", "stopped"])
def test_what_was_taken_on_is_made_by_the_version_that_there_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """The change comes between the moment in which a request is taken on and that in which a worker has it."""
    changed = threading.Event()
    read = TransformedRun._inputs

    async def read_late(run: Any, positions: Any) -> Any:
        contents = await read(run, positions)
        transforms = run._settings.transforms
        if not changed.is_set():
            changed.set()
            registry = etls[0].registry
            edit = {
                "replaced": initialized(version("t", *WORDS[1]), replace=True),
                "deleted": deleted("t"),
                "stopped": set_stopped("t", stopped=True),
            }[change]
            await registry.change(edit)
            transforms.follow()
        return contents

    etls: list[LocalEtl] = []
    begin = LocalEtl.__init__

    def noted(self: LocalEtl, *arguments: Any) -> None:
        begin(self, *arguments)
        etls.append(self)

    monkeypatch.setattr(LocalEtl, "__init__", noted)
    monkeypatch.setattr(TransformedRun, "_inputs", read_late)
    with connect(tmp_path / "s") as client:
        bucket = client.create_bucket("b")
        bucket.put("x", b"abc")
        bucket.put("y", b"abc")
        client.etl.init("t", Command(WORDS[0]))
        assert bucket.get("x", etl="t") == b"ABC"
        assert changed.is_set()
        if change == "replaced":
            assert bucket.get("y", etl="t") == b"bcd"
            assert bucket.get("x", etl="t") == b"bcd"
        else:
            with pytest.raises(errors.TransformNotFound if change == "deleted" else errors.TransformGone):
                bucket.get("y", etl="t")
        (etl,) = etls
        assert eventually(lambda: not etl.transforms._closing)  # the version before is closed by now


@pytest.mark.slow
def test_replacing_while_it_is_asked_gives_the_result_of_a_version_there_was(tmp_path: Path) -> None:
    with connect(tmp_path / "s") as client:
        bucket = client.create_bucket("b")
        for at in range(40):
            bucket.put(f"{at}", b"abc%d" % at)
        client.etl.init("t", Command(WORDS[0]))
        with ThreadPoolExecutor(1) as pool:
            replaced = threading.Event()

            def ask() -> list[bytes]:
                made = [bucket.get(f"{at}", etl="t") for at in range(40)]
                while not replaced.is_set():
                    made = [bucket.get(f"{at}", etl="t") for at in range(40)]
                return made

            asked = pool.submit(ask)
            try:
                for number in range(1, 6):
                    client.etl.init("t", Command(WORDS[number % 2]), replace=True)
            finally:
                replaced.set()
            made = asked.result(180)
        for at, one in enumerate(made):
            assert one in (b"ABC%d" % at, b"bcd%d" % at)
        assert len(made) == 40
