"""Environments: Python interpreters with the packages that a transform requires, created by the node's platform.

A node on Ray has Ray create them (`storage_node.ops.ray_environments`). Any other node has none; there, the operator
names an interpreter that has the packages (`etl_python`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from ais_loader.errors import TransformRefused
from ais_loader.extras import needs
from storage_node.etl.worker.program import missing_of


class Environment(Protocol):
    """An environment that exists until it is released."""

    @property
    def python(self) -> str:
        """Path of its interpreter on this machine."""

    def release(self) -> None:
        """Release the environment; it may be removed from then on. May be called again."""


class Environments(Protocol):
    """Creates environments. Belongs to the event loop that stages run on."""

    async def make(self, requirements: Sequence[str], log: Callable[[bytes], None]) -> Environment:
        """Return an environment on this machine with these packages, in addition to those of the node's own
        interpreter.

        Equal requirements share one environment, which is kept for a while after its last use. Creating one may take
        minutes; there is a time limit. If the call is cancelled, it holds no environment.

        Args:
            log: Receives the output of the installer if it fails.

        Raises TransformFailed.
        """


def is_needed(requirements: Sequence[str]) -> bool:
    """Return whether this process's own interpreter does not suffice. A requirement given by URL always needs an
    environment, because the installed package may be another build."""
    if not requirements:
        return False
    with needs("packaging", "a transform with requirements", TransformRefused):
        from packaging.requirements import Requirement

    return any(Requirement(text).url for text in requirements) or bool(missing_of(requirements))
