"""Stages of a job, from what a caller says of its transforms: a name, a stage with arguments, or several in a row."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

from ais_loader.errors import InvalidRequest
from ais_loader.wire.generated import ais_etl_pb2 as pb


@runtime_checkable
class StageLike(Protocol):
    """A transform by its name, and its arguments."""

    @property
    def name(self) -> str: ...
    @property
    def args(self) -> Mapping[str, Any]: ...


class PipelineLike(Protocol):
    @property
    def stages(self) -> Sequence[StageLike]: ...


EtlLike: TypeAlias = str | StageLike | PipelineLike


def job_stages(etl: EtlLike) -> list[pb.JobStage]:
    """Raises InvalidRequest for none, and for arguments that JSON has no form for."""
    if isinstance(etl, str):
        return [pb.JobStage(name=_checked(etl))]
    found: list[StageLike] = [etl] if isinstance(etl, StageLike) else list(etl.stages)
    if not found:
        raise InvalidRequest("a pipeline without a stage: need at least one transform")
    return [pb.JobStage(name=_checked(one.name), args=_json(one.name, one.args)) for one in found]


def _checked(name: object) -> str:
    if not isinstance(name, str) or not name:
        raise InvalidRequest(f"etl={name!r}: need a transform's name, a Stage, or a pipeline of them")
    return name


def _json(name: str, args: Mapping[str, Any]) -> str:
    """The same text for the same arguments: results are known again by it."""
    if not args:
        return ""
    try:
        return json.dumps(dict(args), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"arguments of transform {name!r}: {error}; need what JSON can say") from error
