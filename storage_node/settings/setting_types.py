"""Declaration of one setting, and the kinds of values that settings have.

A kind is a type with the checks of its values, which stand beside the field: `max_lanes: Positive = 8192`.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from ais_loader.wire.field_help import field_docs
from storage_node.settings.command_template import WrongCommand, check_commands

_LEAST, _MOST = math.nextafter(0, 1), sys.float_info.max


class Range(NamedTuple):
    """Range of a number, with its bounds; None is in every range. Callable as the check of a value."""

    need: str
    low: float
    high: float = math.inf

    def __call__(self, name: str, value: float | None) -> None:
        if value is not None and not self.low <= value <= self.high:
            raise ValueError(f"{name}={value}: need {self.need}")


def split_advertised(name: str, advertise: str) -> tuple[str, int]:
    """Split into host and port, 0 if there is none; a bare IPv6 address is put in brackets. Raises ValueError."""
    host, colon, port = advertise.rpartition(":")
    if not colon or advertise.endswith("]"):
        host, port = advertise, "0"
    elif ":" in host and not (host.startswith("[") and host.endswith("]")):
        host, port = f"[{advertise}]", "0"
    elif not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f"{name}={advertise!r}: need HOST or HOST:PORT, as in 10.0.0.5 or proxy.example.org:7480")
    if "/" in host or any(letter.isspace() for letter in host):
        raise ValueError(f"{name}={advertise!r}: need HOST or HOST:PORT, without grpc:// and spaces")
    return host, int(port)


def absolute_paths(need: str) -> Callable[[str, tuple[str, ...]], None]:
    """Return a check that each path is absolute."""

    def check(name: str, paths: tuple[str, ...]) -> None:
        for path in paths:
            if not path.startswith("/") or "\0" in path or ".." in path.split("/"):
                raise ValueError(f"{name}: {path!r}: need {need}, without '..'")

    return check


def _check_address(name: str, address: str) -> None:
    if not address:
        raise ValueError(f"{name}: need an address of this machine, as 127.0.0.1")


def _check_weights(name: str, weights: Mapping[str, float]) -> None:
    for tenant, weight in weights.items():
        if not 1e-6 <= weight <= 1e6:
            raise ValueError(f"{name}: {tenant!r} has {weight}, need 0.000001 to 1000000")


def _check_commands(name: str, commands: Mapping[str, str]) -> None:
    try:
        check_commands(commands)
    except WrongCommand as error:
        raise ValueError(f"{name}: {error}") from None


Positive = Annotated[int, Range("at least 1", 1)]
NotNegative = Annotated[int, Range("at least 0", 0)]
Port = Annotated[int, Range("0 to 65535", 0, 65535)]
Finite = Annotated[float, Range("a finite number above 0", _LEAST, _MOST)]
Seconds = Annotated[float, Range("a number of seconds, at least 0", 0, _MOST)]
Share = Annotated[float, Range("a share, 0 to 1", 0, 1)]
Address = Annotated[str, _check_address]
Advertised = Annotated[str, split_advertised]
Weights = Annotated[Mapping[str, float], _check_weights]
Commands = Annotated[Mapping[str, str], _check_commands]


_meanings = functools.cache(field_docs)


class Setting(NamedTuple):
    """Declaration of one setting: a field of a group."""

    name: str
    """The name that users write: the field's, behind the prefix of its group."""
    group: Any
    field: str
    type: Any
    """The field's type without checks."""
    checks: tuple[Callable[[str, Any], object], ...]
    default: Any

    @property
    def meaning(self) -> str:
        """The string below the field; empty if the source is not installed."""
        try:
            return _meanings(self.group).get(self.field, "")
        except OSError:
            return ""

    @property
    def range(self) -> Range | None:
        """The range of a number that has one."""
        return next((check for check in self.checks if isinstance(check, Range)), None)

    def checked(self, value: Any) -> Any:
        """Return the value, copied if its owner may change it. Raises ValueError."""
        kind = get_origin(self.type)
        if kind is Literal and value not in (choices := get_args(self.type)):
            raise ValueError(f"{self.name}={value!r}: need {', '.join(choices[:-1])} or {choices[-1]}")
        if kind in (tuple, Mapping):
            value = tuple(value) if kind is tuple else dict(value)
        for check in self.checks:
            check(self.name, value)
        return value


_declared: dict[type, tuple[Setting, ...]] = {}


def declared(group: Any) -> tuple[Setting, ...]:
    """Return the settings that a group declares."""
    if group not in _declared:
        hints, found = get_type_hints(group, include_extras=True), []
        for one in fields(group):
            kind, checks = hints[one.name], ()
            if get_origin(kind) is Annotated:
                kind, checks = kind.__origin__, kind.__metadata__
            default = one.default if one.default_factory is MISSING else one.default_factory()
            found.append(Setting(group.prefix + one.name, group, one.name, kind, checks, default))
        _declared[group] = tuple(found)
    return _declared[group]
