"""Registry of transforms. In a cluster they are in its map, elsewhere in the store record.

Changes of the list are pure functions (edits). A node that returns or joins receives all transforms with the map or the
record.
"""

from __future__ import annotations

import base64
import re
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias

from ais_loader.errors import (
    InvalidName,
    InvalidRequest,
    LoaderError,
    NodeUnavailable,
    TransformExists,
    TransformNotFound,
    TransformRefused,
)
from ais_loader.extras import needs
from ais_loader.wire.cluster_map import ClusterView
from ais_loader.wire.generated import ais_cluster_pb2 as cluster_pb
from ais_loader.wire.generated import ais_etl_pb2 as pb
from storage_node.cluster.consensus.change import change_map_async
from storage_node.cluster.consensus.effects import Edit as MapEdit
from storage_node.context.node import Node
from storage_node.store.store import Store

CHANGE_TIMEOUT_S = 20.0
MAX_TRANSFORMS = 256
MAX_CODE_BYTES = 1 << 20
MAX_ALL_BYTES = 16 << 20
"""Limit for all transforms together: every node has them, with every version of the map."""
MAX_WORDS, MAX_TEXT = 256, 4096
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
Edit: TypeAlias = Callable[[Sequence[pb.Transform]], list[pb.Transform]]
JobsEdit: TypeAlias = Callable[[Sequence[pb.TransformJob]], list[pb.TransformJob]]
_Known: TypeAlias = pb.EtlRecord | cluster_pb.ClusterMap


# -- edits


def check_transform(transform: pb.Transform) -> None:
    """Check a transform that a client sent. Raises InvalidName, InvalidRequest, TransformRefused."""
    if not _NAME.fullmatch(transform.name):
        raise InvalidName(
            f"transform {transform.name!r}: a name is 1 to 63 of A-Z a-z 0-9 . _ - and begins with one of the first 62"
        )
    source = transform.WhichOneof("source")
    if source is None:
        raise InvalidRequest(f"transform {transform.name!r}: need code, a command or a server")
    if len(transform.python.pickle) > MAX_CODE_BYTES:
        raise InvalidRequest(
            f"transform {transform.name!r}: {len(transform.python.pickle):,} bytes of code, of {MAX_CODE_BYTES:,} at "
            "most: load what is large, as a model, when it is set up"
        )
    command = transform.command
    words = [*command.argument, command.template, command.args, *transform.python.requirement, transform.server.address]
    if len(words) > MAX_WORDS or any(len(word) > MAX_TEXT for word in words):
        raise InvalidRequest(f"transform {transform.name!r}: more than {MAX_WORDS} words, or one too long")
    for text in transform.python.requirement:
        _check_requirement(transform.name, text)
    limits = transform.limits
    if not 0 <= limits.timeout_s < 1e9 or not 0 <= limits.inflation < 1e9:  # false for NaN
        raise InvalidRequest(f"transform {transform.name!r}: limits that there cannot be: {limits}")


def _check_requirement(name: str, text: str) -> None:
    """Check a requirement: a package in pip's syntax, and not one of pip's options. Raises InvalidRequest,
    TransformRefused."""
    with needs("packaging", "a transform with requirements", TransformRefused):
        from packaging.requirements import InvalidRequirement, Requirement
    try:
        Requirement(text)
    except InvalidRequirement as error:
        raise InvalidRequest(f"transform {name!r}: {text!r} is no requirement like 'numpy>=1.26': {error}") from error


def in_new_version(transform: pb.Transform) -> pb.Transform:
    """Return a copy with a new unique version."""
    new = pb.Transform()
    new.CopyFrom(transform)
    new.uuid, new.stopped, new.created_ns = uuid.uuid4().bytes, False, time.time_ns()
    return new


def initialized(new: pb.Transform, *, replace: bool) -> Edit:
    """Return an edit that adds this version of a transform. The edit raises TransformExists, InvalidRequest."""

    def edit(transforms: Sequence[pb.Transform]) -> list[pb.Transform]:
        if any(one.uuid == new.uuid for one in transforms):
            return list(transforms)
        if not replace and any(one.name == new.name for one in transforms):
            raise TransformExists(f"there is a transform {new.name!r}; pass replace=True to put this in its place")
        left = [one for one in transforms if one.name != new.name]
        if len(left) >= MAX_TRANSFORMS:
            raise InvalidRequest(f"there are {len(left)} transforms, as many as may be: delete one")
        if sum(one.ByteSize() for one in left) + new.ByteSize() > MAX_ALL_BYTES:
            raise InvalidRequest(
                f"transforms of more than {MAX_ALL_BYTES:,} bytes in all: delete one, or make it smaller"
            )
        return [*left, new]

    return edit


def set_stopped(name: str, *, stopped: bool) -> Edit:
    """Return an edit that stops or starts a transform. The edit raises TransformNotFound."""

    def edit(transforms: Sequence[pb.Transform]) -> list[pb.Transform]:
        changed = []
        for one in transforms:
            copy = pb.Transform()
            copy.CopyFrom(one)
            if one.name == name:
                copy.stopped = stopped
            changed.append(copy)
        _require(changed, name)
        return changed

    return edit


def deleted(name: str) -> Edit:
    """Return an edit that deletes a transform. The edit raises TransformNotFound."""

    def edit(transforms: Sequence[pb.Transform]) -> list[pb.Transform]:
        _require(transforms, name)
        return [one for one in transforms if one.name != name]

    return edit


def _require(transforms: Sequence[pb.Transform], name: str) -> None:
    if all(one.name != name for one in transforms):
        raise TransformNotFound(f"there is no transform {name!r}")


# -- storage


class Registry:
    """Transforms and jobs, stored in the map of a node's cluster, or else in the record of a store.

    Belongs to the event loop that stages run on.

    Args:
        on_thread: Runs a function that waits for drives.
        node: The node; None for an embedded store.
    """

    def __init__(self, store: Store, on_thread: Callable[..., Awaitable[Any]], node: Node | None = None) -> None:
        self._store, self._on_thread, self._node = store, on_thread, node
        self._parsed: tuple[str, pb.EtlRecord] = ("", pb.EtlRecord())
        self._named: tuple[_Known, dict[str, pb.Transform]] = (self._parsed[1], {})

    @property
    def view(self) -> ClusterView | None:
        """The newest map; None outside of a cluster."""
        return None if self._node is None else self._node.membership.view

    def _known(self) -> _Known:
        if (view := self.view) is not None:
            return view.map
        text = self._store.record.current.etl
        if self._parsed[0] != text:
            self._parsed = text, _record_of(text)
        return self._parsed[1]

    def all(self) -> Sequence[pb.Transform]:
        return self._known().transform

    def find(self, name: str) -> pb.Transform | None:
        known = self._known()
        if self._named[0] is not known:
            self._named = known, {one.name: one for one in known.transform}
        return self._named[1].get(name)

    def jobs(self) -> Sequence[pb.TransformJob]:
        return self._known().job

    async def change(self, edit: Edit = list, edit_jobs: JobsEdit = list) -> None:
        """Apply edits. Returns when the change is durable. Raises what the edits raise, and LoaderError."""
        view = self.view
        if self._node is None or view is None:
            await self._on_thread(self._change_record, edit, edit_jobs)
            return

        def of_map(map_: cluster_pb.ClusterMap | None) -> cluster_pb.ClusterMap:
            if map_ is None:
                raise NodeUnavailable("there is no cluster any more")
            new = cluster_pb.ClusterMap(transform=edit(map_.transform), job=edit_jobs(map_.job))
            del map_.transform[:]
            del map_.job[:]
            map_.MergeFrom(new)
            return map_

        await _change_map(self._node, view, of_map)

    def _change_record(self, edit: Edit, edit_jobs: JobsEdit) -> None:
        def changed(record: Any) -> Any:
            known = _record_of(record.etl)
            new = pb.EtlRecord(transform=edit(known.transform), job=edit_jobs(known.job))
            return record.changed(etl=base64.b64encode(new.SerializeToString()).decode())

        self._store.record.change(changed)


def _record_of(text: str) -> pb.EtlRecord:
    return pb.EtlRecord.FromString(base64.b64decode(text))


async def _change_map(node: Node, view: ClusterView, edit: MapEdit) -> None:
    """Change the map. When this returns, this node knows the new map.

    Raises ChangeFailed and what the edit raises; a ValueError of the edit is raised as InvalidRequest.
    """
    try:
        new_map = await change_map_async(view, edit, timeout_s=CHANGE_TIMEOUT_S, caller=node.caller)
    except LoaderError:
        raise  # many of them are ValueErrors as well
    except ValueError as error:
        raise InvalidRequest(str(error)) from error
    await node.learn(new_map)
