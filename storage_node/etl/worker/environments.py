"""Environments: interpreters that have the packages which a transform requires, made by what the node runs on.

A node on Ray has Ray make them (`storage_node.ops.ray_environments`); any other has none, and its operator names an
interpreter that has what is needed (`etl_python`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from ais_loader.errors import TransformRefused
from ais_loader.extras import needs
from storage_node.etl.worker.program import missing_of


class Environment(Protocol):
    """One that is there until it is released."""

    @property
    def python(self) -> str:
        """Path of its interpreter, on this machine."""

    def release(self) -> None:
        """Nobody uses it any more; it may be taken away. May be called again."""


class Environments(Protocol):
    """Belongs to the event loop that stages run on."""

    async def make(self, requirements: Sequence[str], log: Callable[[bytes], None]) -> Environment:
        """One with these packages, on this machine, beside those of the node's own interpreter.

        The same ones are made once, and kept for a while after. It may take minutes; there is a limit to it. Cancelled,
        nothing is left that uses it.

        Args:
            log: takes what the installer says where it fails.

        Raises TransformFailed.
        """


def is_needed(requirements: Sequence[str]) -> bool:
    """Whether this process's own interpreter would not do: what is required by an address may be another build."""
    if not requirements:
        return False
    with needs("packaging", "a transform with requirements", TransformRefused):
        from packaging.requirements import Requirement

    return any(Requirement(text).url for text in requirements) or bool(missing_of(requirements))
