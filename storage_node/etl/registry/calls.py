"""RPC calls about transforms: create, list, show, stop and delete, for a cluster or for an embedded store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from ais_loader.wire.generated import ais_etl_pb2 as pb
from storage_node.etl.jobs.manager import JobManager
from storage_node.etl.local_etl import LocalEtl
from storage_node.etl.registry.registry import check_transform, deleted, in_new_version, initialized, set_stopped
from storage_node.store.names import transform_not_found


def etl_calls(transforms: TransformCalls, jobs: JobManager) -> dict[str, Callable[[Any], Coroutine[Any, Any, Any]]]:
    """Return the calls of the Etl service that have one answer, by name."""

    async def delete_job(request: pb.DeleteJobRequest) -> pb.DeleteJobResponse:
        await jobs.delete(request.name)
        return pb.DeleteJobResponse()

    return {
        "InitTransform": transforms.init,
        "ListTransforms": transforms.list,
        "GetTransform": lambda request: transforms.get(request.name),
        "SetTransform": transforms.set,
        "DeleteTransform": transforms.delete,
        "StartJob": jobs.start,
        "ListJobs": lambda request: jobs.list(),
        "ListJobFailures": lambda request: jobs.failures(request.name),
        "StopJob": lambda request: jobs.stop(request.name),
        "DeleteJob": delete_job,
        "CopyObject": jobs.copy,
    }


class TransformCalls:
    """Answers clients' requests about transforms, on a node or in an embedded store.

    Args:
        elsewhere: Asks the other nodes for the states of these transforms. Returns their answers by uuid; None for a
            node that does not answer.
    """

    def __init__(
        self,
        etl: LocalEtl,
        node_uuid: bytes,
        elsewhere: Callable[[pb.TransformStateRequest], Awaitable[dict[bytes, pb.TransformStateResponse | None]]]
        | None = None,
    ) -> None:
        self._etl, self._node_uuid, self._elsewhere = etl, node_uuid, elsewhere

    async def init(self, request: pb.InitTransformRequest) -> pb.TransformInfo:
        """Create or replace a transform. Raises InvalidRequest, TransformRefused, TransformFailed, TransformExists."""
        check_transform(request.transform)
        transform = in_new_version(request.transform)
        async with self._etl.transforms.tried(transform):
            await self._etl.registry.change(initialized(transform, replace=request.replace))
            self._etl.transforms.follow()
        return await self._info(request.transform.name)

    async def list(self, request: pb.ListTransformsRequest) -> pb.ListTransformsResponse:
        return pb.ListTransformsResponse(transform=await self._infos(list(self._etl.registry.all()), with_log=False))

    async def get(self, name: str, *, with_code: bool = False) -> pb.TransformInfo:
        """Return one transform with its log. Raises TransformNotFound."""
        return await self._info(name, with_log=True, with_code=with_code)

    async def set(self, request: pb.SetTransformRequest) -> pb.TransformInfo:
        """Stop or start a transform. Raises TransformNotFound."""
        self._found(request.name)
        await self._etl.registry.change(set_stopped(request.name, stopped=request.stopped))
        self._etl.transforms.follow()
        return await self._info(request.name)

    async def delete(self, request: pb.DeleteTransformRequest) -> pb.DeleteTransformResponse:
        """Delete a transform. Raises TransformNotFound."""
        self._found(request.name)
        await self._etl.registry.change(deleted(request.name))
        self._etl.transforms.follow()
        return pb.DeleteTransformResponse()

    def state(self, request: pb.TransformStateRequest) -> pb.TransformStateResponse:
        wanted = set(request.name)
        found = [one for one in self._etl.registry.all() if not wanted or one.name in wanted]
        states = {one.name: self._etl.transforms.state(one, with_log=request.with_log) for one in found}
        for state in states.values():
            state.node_uuid = self._node_uuid
        return pb.TransformStateResponse(transform=states)

    def _found(self, name: str) -> pb.Transform:
        """Return a transform. Raises TransformNotFound, here and not on a thread: it depends on the client's rights."""
        found = self._etl.registry.find(name)
        if found is None:
            raise transform_not_found(name, (one.name for one in self._etl.registry.all()))
        return found

    async def _info(self, name: str, *, with_log: bool = False, with_code: bool = False) -> pb.TransformInfo:
        return (await self._infos([self._found(name)], with_log=with_log, with_code=with_code))[0]

    async def _infos(
        self, transforms: Sequence[pb.Transform], *, with_log: bool, with_code: bool = False
    ) -> Sequence[pb.TransformInfo]:
        request = pb.TransformStateRequest(name=[one.name for one in transforms], with_log=with_log)
        answers: dict[bytes, pb.TransformStateResponse | None] = {self._node_uuid: self.state(request)}
        if self._elsewhere is not None and transforms:
            answers |= await self._elsewhere(request)
        infos = []
        for one in transforms:
            info = pb.TransformInfo(transform=one)
            for node_uuid, answer in answers.items():
                state = pb.NodeTransform(node_uuid=node_uuid, state=pb.NodeTransform.UNKNOWN)
                if answer is not None and one.name in answer.transform:
                    state = answer.transform[one.name]
                info.node.append(state)
            if not with_code and info.transform.HasField("python"):
                info.transform.python.ClearField("pickle")
            infos.append(info)
        return infos
