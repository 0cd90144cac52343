"""Packages that a transform requires: in an environment of its own, where the node has somebody who makes one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from ais_loader import connect
from ais_loader.errors import InvalidRequest, TransformFailed, TransformGone
from ais_loader.wire.backoff import Backoff
from ais_loader.wire.generated import ais_etl_pb2 as pb
from storage_node.etl.run.node_transforms import NodeTransforms
from storage_node.etl.values import Content
from storage_node.etl.worker import stage
from storage_node.etl.worker.environments import is_needed
from storage_node.settings.config import ServerConfig
from tests.etl import wheel_kit
from tests.etl.worker_kit import ORIGIN, call, of_function, run_one, transforms_of
from tests.node.loop_kit import settle

REQUIRED = [f"{wheel_kit.NAME}=={wheel_kit.VERSION}"]


class Made:
    """An `Environments` whose answers a test decides, and the `Environment` that it gives."""

    def __init__(self, python: Path | None, before: Callable[[], Awaitable[None]] | None = None) -> None:
        self.python = str(python)
        self.asked: list[list[str]] = []
        self.released = 0
        self._before = before

    async def make(self, requirements: Sequence[str], log: Callable[[bytes], None]) -> Made:
        self.asked.append(list(requirements))
        if self._before is not None:
            await self._before()
        if self.python == "None":
            log(b"ERROR: No matching distribution found\n")
            raise TransformFailed("the environment cannot be made: ERROR: No matching distribution found")
        return self

    def release(self) -> None:
        self.released += 1


def of_shouting(requirement: Sequence[str] = REQUIRED, **fields: Any) -> pb.Transform:
    return of_function(wheel_kit.shouting, requirement=requirement, **fields)


def with_environments(
    folder: Path, made: Made, work: Callable[[NodeTransforms], Awaitable[None]], transform: pb.Transform | None = None
) -> None:
    async def run() -> None:
        known = transform or of_shouting()
        async with transforms_of(folder, known, environments=made, etl_install=True, etl_workers=2) as transforms:
            await work(transforms)

    asyncio.run(asyncio.wait_for(run(), 180))


async def shout(transforms: NodeTransforms) -> bytes:
    made = await transforms.run(call(), ORIGIN, Content.of(b"abc"))
    return bytes(made.read(0, 99))


@pytest.mark.slow
def test_a_worker_has_the_packages_of_an_environment_that_lasts_as_long_as_its_transform(tmp_path: Path) -> None:
    made = Made(wheel_kit.interpreter(tmp_path))

    async def work(transforms: NodeTransforms) -> None:
        assert await asyncio.gather(*(shout(transforms) for _ in range(4))) == [b"ABC!"] * 4
        assert (made.asked, made.released) == ([REQUIRED], 0)  # once for all workers

    with_environments(tmp_path, made, work)
    assert made.released == 1


@pytest.mark.slow
def test_where_nobody_may_install_it_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(TransformFailed, match=rf"{wheel_kit.NAME}==1\.2 \(not installed\).*etl_install"):
        run_one(tmp_path, of_shouting(), b"")
    asked = Made(wheel_kit.interpreter(tmp_path))

    async def run() -> None:
        async with transforms_of(tmp_path, of_shouting(), environments=asked) as transforms:
            await shout(transforms)

    with pytest.raises(TransformFailed, match="not installed"):
        asyncio.run(run())
    assert not asked.asked


def test_nothing_is_installed_for_what_is_there(tmp_path: Path) -> None:
    assert not is_needed(["numpy>=1", "pip; python_version < '3'", "no-such-package; sys_platform == 'win32'"])
    assert is_needed(["numpy<1"]) and is_needed(["no-such-package"]) and is_needed(["numpy @ file:///numpy.whl"])
    made = Made(None)

    async def work(transforms: NodeTransforms) -> None:
        assert await shout(transforms) == b"abc"

    with_environments(tmp_path, made, work, of_function(bytes_of, requirement=["numpy>=1", "no; python_version<'3'"]))
    assert not made.asked


def bytes_of(data: memoryview) -> bytes:
    return bytes(data)


def test_what_cannot_be_installed_is_told_in_state_and_log_and_tried_again_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage, "_PAUSES", Backoff(600.0, 600.0))
    made = Made(None)
    transform = of_shouting()

    async def work(transforms: NodeTransforms) -> None:
        for _ in range(3):
            with pytest.raises(TransformFailed, match=r"does not start.*No matching distribution"):
                await shout(transforms)
        state = transforms.state(transform, with_log=True)
        assert state.state == pb.NodeTransform.FAILED and "No matching distribution" in state.problem
        assert state.log == "ERROR: No matching distribution found\n" and len(made.asked) == 1
        made.python = str(wheel_kit.interpreter(tmp_path))
        transforms._opened["f"].stage._not_before_s = 0.0  # type: ignore[attr-defined]
        assert await shout(transforms) == b"ABC!"
        assert transforms.state(transform, with_log=False).state == pb.NodeTransform.RUNNING

    with_environments(tmp_path, made, work)


def test_what_other_nodes_have_begun_with_is_prepared_before_anybody_asks(tmp_path: Path) -> None:
    made = Made(None)
    transform = of_shouting()

    async def work(transforms: NodeTransforms) -> None:
        for _ in range(3):
            transforms.prepare([transform, of_function(bytes_of, name="without")])
            await settle()
        assert made.asked == [REQUIRED]
        assert transforms.state(transform, with_log=False).state == pb.NodeTransform.FAILED

    with_environments(tmp_path, made, work)


@pytest.mark.parametrize("end", ["closed", "cancelled"])
def test_an_installation_that_hangs_is_ended_with_its_transform_alone(tmp_path: Path, end: str) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def hang() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def work(transforms: NodeTransforms) -> None:
        asking = asyncio.ensure_future(shout(transforms))
        await begun.wait()
        if end == "cancelled":  # whoever asked: the next one gets what is being made
            asking.cancel()
            await asyncio.wait([asking])
            assert asking.cancelled() and not ended.is_set()
            return
        await transforms.close()
        assert ended.is_set()
        with pytest.raises(TransformGone):
            await asking

    with_environments(tmp_path, Made(None, hang), work)
    assert ended.is_set()


def test_what_is_no_requirement_is_refused_before_anybody_installs_it(tmp_path: Path) -> None:
    with connect(tmp_path) as client:
        for wrong in ("-r /etc/passwd", "--index-url http://x", "numpy >= ", ""):
            with pytest.raises(InvalidRequest, match="is no requirement like"):
                client.etl.init("f", bytes_of, requirements=[wrong])
        assert client.etl.list() == []
        client.etl.init("f", bytes_of, requirements=["numpy[all]>=1; python_version >= '3'"])


def test_an_interpreter_of_the_operators_and_installing_exclude_each_other() -> None:
    with pytest.raises(ValueError, match="etl_install and etl_python=/bin/python"):
        ServerConfig(etl_install=True, etl_python="/bin/python")
