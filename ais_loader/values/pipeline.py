"""Pipelines: the transforms that an entry passes through, in order, with their arguments. Plain values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from ais_loader.errors import InvalidRequest

MAX_STAGES = 16


@dataclass(frozen=True, slots=True)
class Stage:
    """A transform by name, with its arguments: `Stage("resize", {"width": 64}) >> Stage("jpeg")`.

    Raises InvalidRequest for arguments that JSON cannot represent.
    """

    name: str
    """The name of the transform."""
    args: Mapping[str, Any] | None = None
    """The arguments that the transform gets. None for a transform without any."""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise InvalidRequest(f"a transform's name is a str, got {self.name!r}")
        args_text(self.args)

    def __rshift__(self, other: Etl) -> Pipeline:
        return Pipeline((self,)) >> other

    def __hash__(self) -> int:
        return hash((self.name, args_text(self.args)))


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A sequence of stages. The output of each is the input of the next, and the bytes do not leave the node."""

    stages: tuple[Stage, ...]

    def __post_init__(self) -> None:
        if not 0 < len(self.stages) <= MAX_STAGES:
            raise InvalidRequest(f"a pipeline of {len(self.stages)} stages: need 1 to {MAX_STAGES}")

    def __rshift__(self, other: Etl) -> Pipeline:
        return Pipeline(self.stages + to_pipeline(other).stages)


Etl: TypeAlias = str | Stage | Pipeline
"""A transform's name stands for a stage without arguments."""


def args_text(args: Mapping[str, Any] | None) -> str:
    """Return the arguments as they are sent: equal arguments give the same text. Raises InvalidRequest."""
    if args is None:
        return ""
    if not isinstance(args, Mapping) or not all(isinstance(name, str) for name in args):
        raise InvalidRequest(f"args={args!r}: need a mapping of names and values")
    try:
        return json.dumps(dict(args), sort_keys=True, separators=(",", ":"), allow_nan=False) if args else ""
    except (TypeError, ValueError) as error:
        refusal = InvalidRequest(
            f"args={args!r}: a transform's arguments must be values that JSON can represent: {error}"
        )
        raise refusal.caused_by(error) from None


def to_pipeline(etl: Etl, args: Mapping[str, Any] | None = None) -> Pipeline:
    """Return a Pipeline. `args` are for a single stage that has none. Raises InvalidRequest, TypeError."""
    if isinstance(etl, str):
        return Pipeline((Stage(etl, args),))
    if not isinstance(etl, Stage | Pipeline):
        raise TypeError(f"etl is a transform's name, a Stage or a Pipeline, got {type(etl).__name__}")
    pipeline = Pipeline((etl,)) if isinstance(etl, Stage) else etl
    if args is None:
        return pipeline
    if len(pipeline.stages) != 1 or pipeline.stages[0].args is not None:
        raise InvalidRequest(
            "args cannot be given beside a Pipeline, or beside a Stage that has its own: give them to the stages"
        )
    return Pipeline((Stage(pipeline.stages[0].name, args),))
