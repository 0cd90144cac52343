"""Transforms run by workers of this process, without a node."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import cloudpickle

from ais_loader.wire.generated import ais_batch_pb2 as batch_pb
from ais_loader.wire.generated import ais_etl_pb2 as pb
from storage_node.etl.run.node_transforms import NodeTransforms
from storage_node.etl.transform_http import TransformHttp
from storage_node.etl.values import Content, Origin, Spool
from storage_node.etl.worker.environments import Environments
from storage_node.etl.worker.stage_context import StageContext
from storage_node.settings.config import ServerConfig


async def on_default_threads(function: Callable[..., Any], *arguments: Any) -> Any:
    """`on_thread` where there is no node: threads of the loop's own."""
    return await asyncio.get_running_loop().run_in_executor(None, function, *arguments)


ORIGIN = Origin("b", "en/a.wav", "1.1.0")
PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"


def of_function(function: object, name: str = "f", *, uuid: bytes = b"1" * 16, **fields: Any) -> pb.Transform:
    python = {key: fields.pop(key) for key in ("streaming", "path", "requirement", "python") if key in fields}
    # By value: the tests' modules are nothing that a worker can import.
    module = sys.modules[function.__module__]
    cloudpickle.register_pickle_by_value(module)
    try:
        code = cloudpickle.dumps(function)
    finally:
        cloudpickle.unregister_pickle_by_value(module)
    return pb.Transform(name=name, uuid=uuid, python={"pickle": code, "python": PYTHON, **python}, limits=fields)


def of_command(*argument: str, name: str = "f", **fields: Any) -> pb.Transform:
    return pb.Transform(name=name, uuid=b"2" * 16, command={"argument": argument, **fields})


def of_template(template: str, *, name: str = "f", **args: Any) -> pb.Transform:
    """A command of the operator's."""
    return pb.Transform(name=name, uuid=b"2" * 16, command={"template": template, "args": json.dumps(args)})


@contextlib.asynccontextmanager
async def transforms_of(
    folder: Path, *known: pb.Transform, environments: Environments | None = None, **config: Any
) -> AsyncIterator[NodeTransforms]:
    by_name = {transform.name: transform for transform in known}
    settings = ServerConfig(**{"etl_code": True, **config})
    context = StageContext(settings, Spool(folder / "spool"), on_default_threads, TransformHttp(), environments)
    transforms = NodeTransforms(by_name.get, context)
    try:
        yield transforms
    finally:
        await transforms.close()


def call(*names: str, **args: Any) -> batch_pb.TransformCall:
    text = json.dumps(args) if args else ""
    return batch_pb.TransformCall(stage=[batch_pb.TransformStage(name=name, args=text) for name in names or ("f",)])


def run_one(
    folder: Path, transform: pb.Transform, data: bytes, config: dict[str, Any] | None = None, **args: Any
) -> bytes:
    """One object through one transform."""

    async def run() -> bytes:
        async with transforms_of(folder, transform, **(config or {})) as transforms:
            made = await transforms.run(call(transform.name, **args), ORIGIN, Content.of(data))
            found = bytes(made.read(0, made.size_bytes))
            made.close()
            return found

    return asyncio.run(asyncio.wait_for(run(), 180))
