"""Groups of steps: G successive steps form one update, whatever number of ranks takes turns in them."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from ais_loader.errors import InvalidRequest

Tail: TypeAlias = Literal["repeat", "drop", "uneven"]
"""Choice of what ranks do at the end of an epoch whose steps they cannot divide equally."""
TAILS = ("repeat", "drop", "uneven")


def check_world_size(group: int, world_size: int, step: int = 0) -> None:
    """Raise InvalidRequest if these ranks cannot take equal turns in every group of `group` steps from a step on."""
    if group % world_size:
        possible = ", ".join(str(size) for size in range(1, group + 1) if not group % size)
        raise InvalidRequest(
            f"world_size={world_size}: {group} steps of the plan form one update, which these ranks cannot divide "
            f"equally; possible world sizes are {possible}"
        )
    if step % group % world_size:
        raise InvalidRequest(
            f"world_size={world_size}: the position, step {step}, is inside an update of {group} steps, and its rest "
            "cannot be divided equally; resume with the former world size, or from the end of an update"
        )


def whole_number(owner: str, name: str, value: Any, least: int, most: int = 2**62) -> int:
    """Return an argument as an int. Raises TypeError, and InvalidRequest if it is not `least` to `most`."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{owner}: {name} is a {type(value).__name__}; need an int")
    number = int(value.__index__())
    if not least <= number <= most:
        raise InvalidRequest(
            f"{owner}: {name}={number}: need "
            + (f"at least {least}" if number < least and most == 2**62 else f"{least} to {most}")
        )
    return number
