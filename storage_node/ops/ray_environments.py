"""Ray's runtime environments for transforms: Ray makes them on this host, keeps them, and takes them away.

An environment lives as long as something of Ray runs in it. That is an actor which does nothing, one for each transform
that has begun here; it is this node's, and ends with it. Whatever else has the same requirements gets the same one, and
Ray keeps what nobody uses while it has room (RAY_RUNTIME_ENV_PIP_CACHE_SIZE_GB).
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable, Sequence
from typing import Any

from ais_loader.errors import TransformFailed
from storage_node.ops.ray_hosts import pinned_to

MAKE_TIMEOUT_S = 300.0
"""For Ray to install the packages."""
_BEGIN_S = 60.0
"""And to start a process in it, on a host that is busy."""
_VERSIONS = re.compile(r" \(from versions: [^)]*\)")
_ERRORS_TOLD = 3
_TOLD = 500


class RayEnvironments:
    """An `Environments`, of a process that is a Ray actor.

    Args:
        host: the address that Ray has for this host.
    """

    def __init__(self, host: str) -> None:
        self._host = host

    async def make(self, requirements: Sequence[str], log: Callable[[bytes], None]) -> RayEnvironment:
        """See `Environments`."""
        import ray

        packages = sorted(set(requirements))
        made = (
            ray.remote(_Inhabitant)
            .options(
                num_cpus=0,
                resources=pinned_to(self._host),
                runtime_env={"pip": {"packages": packages}, "config": {"setup_timeout_seconds": int(MAKE_TIMEOUT_S)}},
            )
            .remote()
        )
        try:
            async with asyncio.timeout(MAKE_TIMEOUT_S + _BEGIN_S):
                python = await asyncio.wrap_future(made.python.remote().future())
        except BaseException as error:
            _end(made)
            needs = f"the environment with {', '.join(packages)} cannot be made"
            if isinstance(error, TimeoutError):
                raise TransformFailed(f"{needs}: Ray has not done it within {MAKE_TIMEOUT_S:g} s") from error
            if isinstance(error, ray.exceptions.RayError):
                said = str(error)
                log(f"{said}\n".encode(errors="replace"))
                raise TransformFailed(f"{needs}: {_why(said)}") from error
            raise
        return RayEnvironment(python, made)


class RayEnvironment:
    """An `Environment`."""

    def __init__(self, python: str, inhabitant: Any) -> None:
        self.python, self._inhabitant = python, inhabitant

    def release(self) -> None:
        inhabitant, self._inhabitant = self._inhabitant, None
        if inhabitant is not None:
            _end(inhabitant)


class _Inhabitant:
    """For whose sake Ray keeps an environment."""

    def python(self) -> str:
        import sys

        return sys.executable


def _end(actor: Any) -> None:
    import ray

    with contextlib.suppress(Exception):  # Ray itself may have gone, and all actors with it
        ray.kill(actor)


def _why(said: str) -> str:
    """What of Ray's account of a failure tells why: what the installer calls errors, else its last line."""
    lines = [_VERSIONS.sub("", line.strip()) for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith(("ERROR:", "error:"))] or [
        line for line in lines if "No module named" in line or "Error:" in line
    ]
    return "; ".join((errors or lines or ["Ray does not say why"])[-_ERRORS_TOLD:])[:_TOLD]
