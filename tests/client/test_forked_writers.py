"""A client of an embedded store in a process that did not open it: it reads, and says why it does not write."""

from __future__ import annotations

import multiprocessing
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ais_loader import Client, connect

WRITES: dict[str, Callable[[Client], object]] = {
    "put": lambda client: client.bucket("b").put("c", b"3"),
    "put_many": lambda client: client.bucket("b").put_many([("c", b"3")]),
    "put_folder": lambda client: client.bucket("b").put_folder(Path(__file__).parent, include=["*.py"]),
    "delete": lambda client: client.bucket("b").delete("a"),
    "delete_many": lambda client: client.bucket("b").delete_many(["a"]),
    "set_metadata": lambda client: client.bucket("b").set_metadata("a", {"k": "v"}),
    "promote": lambda client: client.bucket("b").promote(__file__),
    "create_bucket": lambda client: client.create_bucket("c"),
    "set_bucket": lambda client: client.bucket("b").set(min_copies=1),
    "delete_bucket": lambda client: client.delete_bucket("b", force=True),
    "snapshot": lambda client: client.bucket("b").snapshot("s"),
    "etl": lambda client: client.etl.init("t", str.upper),
}


def refusals(client: Client) -> dict[str, str]:
    found = {}
    for name, write in WRITES.items():
        try:
            write(client)
            found[name] = "nothing"
        except Exception as error:  # noqa: BLE001 - compared by the caller
            found[name] = f"{type(error).__name__}: {error}"
    return found


def use_inherited(client: Client, answers: Any) -> None:
    answers.send((client.bucket("b").get("a"), refusals(client)))


def check(found: dict[str, str], how: str) -> None:
    for name, said in found.items():
        assert said.startswith(f"StoreReadOnly: this client {how}, and can only read: "), (name, said)
        assert 'connect(..., mode="a") here' in said and "ais-loader serve" in said


@pytest.mark.slow
@pytest.mark.fresh_process
def test_a_forked_writer_says_that_it_was_forked_and_what_to_do(tmp_path: Path) -> None:
    with connect(tmp_path / "store") as client:
        client.create_bucket("b").put("a", b"1")
        ours, theirs = multiprocessing.Pipe()
        child = multiprocessing.get_context("fork").Process(target=use_inherited, args=(client, theirs))
        child.start()
        assert ours.poll(60)
        data, found = ours.recv()
        child.join(180)
        assert (data, child.exitcode) == (b"1", 0)
        check(found, 'was opened with mode="a" by another process, which then forked this one')
        assert client.bucket("b").get("a") == b"1"
        assert [info.name for info in client.buckets()] == ["b"]


def test_an_unpickled_writer_says_that_it_was_unpickled(tmp_path: Path) -> None:
    with connect(tmp_path / "store") as client:
        client.create_bucket("b").put("a", b"1")
        with pickle.loads(pickle.dumps(client)) as copy, pickle.loads(pickle.dumps(copy)) as copy_of_copy:
            for one in (copy, copy_of_copy):
                check(refusals(one), 'is an unpickled copy of one that was opened with mode="a"')
            assert copy.bucket("b").get("a") == b"1"
    with connect(tmp_path / "store", mode="r") as reader, pickle.loads(pickle.dumps(reader)) as copy:
        assert "; connect with mode=" in refusals(copy)["put"]
