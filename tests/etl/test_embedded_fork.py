"""An embedded store's transforms in a process that forks: the child has its own, and takes nothing from its parent."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from ais_loader import Command, Entry, connect, errors
from ais_loader.testing import eventually

pytestmark = [pytest.mark.slow, pytest.mark.fresh_process]


def in_child(work: Callable[[], None]) -> None:
    pid = os.fork()
    if not pid:
        try:
            work()
            os._exit(0)
        except BaseException:  # noqa: BLE001 - told by the exit code, and on stderr
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(1)
    ended: list[int] = []

    def has_ended() -> bool:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            ended.append(os.waitstatus_to_exitcode(status))
        return bool(found)

    eventually(has_ended)
    assert ended == [0]


def test_a_child_transforms_and_its_parent_goes_on(tmp_path: Path) -> None:
    names = [f"{at}" for at in range(20)]
    with connect(tmp_path / "s") as client:
        bucket = client.create_bucket("b")
        bucket.put_many([(name, b"abc" + name.encode()) for name in names])
        client.etl.init("up", lambda data: bytes(data).upper())
        client.etl.init("tr", Command(["tr", "a-z", "A-Z"]))
        assert bucket.get("1", etl="up") == b"ABC1"
        items = iter(client.get_batch([Entry("b", name, etl="tr") for name in names]))
        assert next(items).tobytes() == b"ABC0"  # workers of it are at work when the process forks

        def child() -> None:
            assert bucket.get("1", etl="up") == b"ABC1"  # the parent keeps it
            assert bucket.get("2", etl="up") == b"ABC2"
            made = client.get_batch([Entry("b", name, etl="tr") for name in names]).tobytes()
            assert made == [b"ABC" + name.encode() for name in names]
            with pytest.raises(errors.StoreReadOnly):
                client.etl.init("more", Command(["cat"]))
            client.close()

        in_child(child)
        in_child(lambda: None)  # one that does nothing leaves what it has inherited alone, too
        assert [item.tobytes() for item in items] == [b"ABC" + name.encode() for name in names[1:]]
        assert bucket.get("3", etl="up") == b"ABC3"
        client.etl.init("up", lambda data: b"new", replace=True)
        assert bucket.get("3", etl="up") == b"new"
