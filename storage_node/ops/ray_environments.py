"""Ray's runtime environments for transforms: Ray creates them on this host, caches them, and deletes them.

An environment exists as long as something of Ray runs in it. Here that is an idle actor, one for each transform started
here; it belongs to this node and ends with it. Other users of the same requirements share the environment, and Ray
keeps unused ones while it has space (RAY_RUNTIME_ENV_PIP_CACHE_SIZE_GB).
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable, Sequence
from typing import Any

from ais_loader.errors import TransformFailed

MAKE_TIMEOUT_S = 300.0
"""Time for Ray to install the packages."""
_BEGIN_S = 60.0
"""Additional time to start a process in it, on a busy host."""
_VERSIONS = re.compile(r" \(from versions: [^)]*\)")
_MAX_ERRORS = 3
_MAX_TEXT = 500
_HOST_SHARE = 0.001
"""Share of a host's resource that an actor or a task takes: up to 1,000 of them at once."""


def pinned_to(address: str) -> dict[str, float]:
    """Return the `resources` with which an actor or a task runs on that host only.

    Ray creates such a resource for the address of each host, and it survives the host's restarts.
    """
    return {f"node:{address}": _HOST_SHARE}


class RayEnvironments:
    """An `Environments` for a process that is a Ray actor.

    Args:
        host: the address of this host in Ray.
    """

    def __init__(self, host: str) -> None:
        self._host = host

    async def make(self, requirements: Sequence[str], log: Callable[[bytes], None]) -> RayEnvironment:
        """Create an environment. See `Environments`."""
        import ray

        packages = sorted(set(requirements))
        actor = (
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
                python = await asyncio.wrap_future(actor.python.remote().future())
        except BaseException as error:
            _end(actor)
            needs = f"the environment with {', '.join(packages)} cannot be made"
            if isinstance(error, TimeoutError):
                raise TransformFailed(f"{needs}: Ray has not done it within {MAKE_TIMEOUT_S:g} s") from error
            if isinstance(error, ray.exceptions.RayError):
                message = str(error)
                log(f"{message}\n".encode(errors="replace"))
                raise TransformFailed(f"{needs}: {_why(message)}") from error
            raise
        return RayEnvironment(python, actor)


class RayEnvironment:
    """An `Environment`."""

    def __init__(self, python: str, inhabitant: Any) -> None:
        self.python, self._inhabitant = python, inhabitant

    def release(self) -> None:
        inhabitant, self._inhabitant = self._inhabitant, None
        if inhabitant is not None:
            _end(inhabitant)


class _Inhabitant:
    """An idle actor that keeps Ray from deleting an environment."""

    def python(self) -> str:
        import sys

        return sys.executable


def _end(actor: Any) -> None:
    import ray

    with contextlib.suppress(Exception):  # Ray itself may be gone, with all actors
        ray.kill(actor)


def _why(message: str) -> str:
    """Extract the reason from Ray's report of a failure: the installer's errors, or else the last line."""
    lines = [_VERSIONS.sub("", line.strip()) for line in message.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith(("ERROR:", "error:"))] or [
        line for line in lines if "No module named" in line or "Error:" in line
    ]
    return "; ".join((errors or lines or ["Ray does not say why"])[-_MAX_ERRORS:])[:_MAX_TEXT]
