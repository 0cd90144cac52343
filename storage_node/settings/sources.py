"""Settings in an operator's notation, in a file or behind `--set`, parsed into fields of `ServerConfig`.

memory_bytes = "512 MiB"        the fields' names; a number has the unit that the name ends with
peer_timeout_s = "500 ms"
[tenant_weights]
asr-team = 2
[etl_commands]
wav = "sox {input} -r {rate:int} {output}.wav"
[nodes.node-2]                  in a cluster: for this node alone, by its folder's name or its uuid
memory_bytes = "1 GiB"

Settings are a mapping of such names to numbers and texts in the fields' own units, as in JSON. They contain only what
was set: other fields keep the default of the running version.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
import types
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from ais_loader.name_matching import nearest
from storage_node.settings.config import DEFAULT, ServerConfig
from storage_node.settings.declarations import SETTINGS
from storage_node.store.permissions import trusted_bytes

Settings = dict[str, Any]
NODES = "nodes"
_BYTES = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
    "tib": 1 << 40,
}
_SECONDS = {"ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
_MEASURE = re.compile(r"\s*([0-9.]+(?:e[+-]?[0-9]+)?)\s*([a-z]*)(/s)?\s*", re.IGNORECASE)


class WrongSetting(ValueError):
    """A wrong setting; the message names it and what is needed."""


def read_file(path: Path) -> Settings:
    """Read a file of settings. Raises WrongSetting, OSError."""
    try:
        given = tomllib.loads(trusted_bytes(path).decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise WrongSetting(f"{path} is not TOML: {error}") from None
    try:
        return _checked(given)
    except WrongSetting as error:
        raise WrongSetting(f"{path}: {error}") from None


def read_assignments(given: Iterable[str]) -> Settings:
    """Read assignments NAME=VALUE, in which NAME may be `tenant_weights.TENANT`, `etl_commands.COMMAND` or
    `nodes.NODE.NAME`.

    Raises WrongSetting.
    """
    read: Settings = {}
    for one in given:
        name, equals, value = (part.strip() for part in one.partition("="))
        if not name or not equals or not value:
            raise WrongSetting(f"{one!r}: need NAME=VALUE, as in memory_bytes=512MiB")
        read = merged(read, _checked(_assignment(name, value)), keep_resets=True)
    return read


def merged(old: Mapping[str, Any], new: Mapping[str, Any], *, keep_resets: bool = False) -> Settings:
    """Merge `new` into `old`; "default" in `new` removes a setting."""
    result = dict(old)
    for name, value in new.items():
        if isinstance(value, Mapping):
            before = result.get(name)
            value = merged(before if isinstance(before, Mapping) else {}, value, keep_resets=keep_resets)
        if (value == DEFAULT and not keep_resets) or value == {}:
            result.pop(name, None)
        else:
            result[name] = value
    return result


def for_node(settings: Mapping[str, Any], *names: str) -> Settings:
    """Return the settings of one node, known by these names."""
    result = {name: value for name, value in settings.items() if name != NODES}
    for name in names:
        result = merged(result, settings.get(NODES, {}).get(name, {}))
    return result


def configured(base: ServerConfig, settings: Mapping[str, Any]) -> ServerConfig:
    """Apply settings to a configuration. Raises WrongSetting if values contradict each other, are out of range, or
    belong to another version."""
    chosen = {name: value for name, value in settings.items() if value != DEFAULT and name != NODES}
    if unknown := sorted(set(chosen) - set(SETTINGS)):
        raise WrongSetting(f"{unknown[0]}: no such setting{_near(unknown[0], SETTINGS)}")
    try:
        return base.replace(**chosen)
    except ValueError as error:
        raise WrongSetting(str(error)) from None


def require_cluster(settings: Mapping[str, Any]) -> None:
    """Reject settings that each node of a cluster determines by itself. Raises WrongSetting."""
    for where, one in (("", settings), *((f"{NODES}.{name}.", its) for name, its in settings.get(NODES, {}).items())):
        for name in ("host", "port", "peer_port"):
            if name in one:
                raise WrongSetting(f"{where}{name}: nodes of a cluster choose it by themselves, and keep it")
        if "idle_exit_s" in one:
            raise WrongSetting(f"{where}idle_exit_s: nodes of a cluster keep running")
    for name in ("advertise", "peer_advertise", "lane_port", "peer_lane_port"):
        if name in settings:
            raise WrongSetting(f"{name}: not the same for all nodes; set {NODES}.NODE.{name}")


def require_nodes(settings: Mapping[str, Any], known: Collection[str]) -> None:
    """Reject settings of nodes that do not exist. Raises WrongSetting."""
    for name in settings.get(NODES, {}):
        if name not in known:
            names = ", ".join(sorted(one for one in known if len(one) < 32))
            raise WrongSetting(f"{NODES}.{name}: no such node{_near(name, known)}; there are {names}")


# -- reading


def _assignment(name: str, value: str) -> dict[str, Any]:
    for right in (value, json.dumps(value)):  # 512MiB is not TOML, and needs no quotes here
        try:
            return tomllib.loads(f"{name} = {right}")
        except tomllib.TOMLDecodeError:
            continue
    raise WrongSetting(f"{name!r} is no name of a setting; quote what has dots: tenant_weights.'a.b'=2")


def _checked(given: Mapping[str, Any], where: str = "") -> Settings:
    """Convert settings to the fields' own units, and check each value's range."""
    read: Settings = {}
    for name, value in given.items():
        if name == NODES and not where:
            if not isinstance(value, Mapping) or not all(isinstance(one, Mapping) for one in value.values()):
                raise WrongSetting(f"{NODES}: need a table for each node, as in [{NODES}.node-1]")
            read[NODES] = {node: _checked(its, f"{NODES}.{node}.") for node, its in value.items()}
            continue
        if name not in SETTINGS:
            raise WrongSetting(f"{where}{name}: no such setting{_near(name, SETTINGS)}")
        try:
            read[name] = DEFAULT if value == DEFAULT else _value(name, value)
            configured(ServerConfig(), {name: _without_resets(read[name])})
        except WrongSetting as error:
            raise WrongSetting(f"{where}{error}") from None
    return read


def _without_resets(value: Any) -> Any:
    return {k: v for k, v in value.items() if v != DEFAULT} if isinstance(value, Mapping) else value


def _value(name: str, value: Any) -> Any:
    hint = SETTINGS[name].type
    if get_origin(hint) in (Union, types.UnionType):  # the only union is `X | None`
        if value == "none":
            return None
        hint = next(one for one in get_args(hint) if one is not types.NoneType)
    if get_origin(hint) is Literal:
        if value not in get_args(hint):
            raise WrongSetting(f"{name} = {value!r}: need {' or '.join(map(repr, get_args(hint)))}")
        return value
    if hint is str:
        if not isinstance(value, str):
            raise WrongSetting(f"{name} = {value!r}: need a text")
        return value
    if get_origin(hint) is tuple:
        between = None if name in ("etl_servers", "remote_hosts") else ":"  # addresses contain colons themselves
        several = value.split(between) if isinstance(value, str) else value
        if not isinstance(several, list) or not all(isinstance(one, str) for one in several):
            how = f"{between!r}" if between else "spaces"
            raise WrongSetting(f"{name} = {value!r}: need a list of texts, or one text with {how} between them")
        return several
    if hint is bool:
        known = {"true": True, "false": False}
        if not isinstance(value, bool) and str(value).lower() not in known:
            raise WrongSetting(f"{name} = {value!r}: need true or false")
        return value if isinstance(value, bool) else known[str(value).lower()]
    if hint in (int, float):
        return _number(name, value, hint)
    if get_args(hint)[1] is str:
        if not isinstance(value, Mapping) or not all(isinstance(one, str) for one in value.values()):
            raise WrongSetting(f"{name}: need NAME = TEXT for each, as in {name}.wav='sox {{input}} {{output}}.wav'")
        return dict(value)
    if not isinstance(value, Mapping):
        raise WrongSetting(f"{name}: need NAME = NUMBER for each, as in {name}.team-a=2")
    return {key: DEFAULT if one == DEFAULT else _number(f"{name}.{key}", one, float) for key, one in value.items()}


def _number(name: str, value: Any, kind: type) -> int | float:
    """Parse the value of an int or float field; a text may name another unit of the same kind."""
    units, example = _units(name)
    number = value
    if isinstance(value, str) and (found := _MEASURE.fullmatch(value)) is not None:
        digits, unit, rate = found.groups()
        fits = digits.count(".") < 2 and digits.strip(".") and (not rate or name.endswith("_per_s"))
        factor = units.get(unit.lower(), math.nan) if unit else 1.0
        number = math.nan if not fits else int(digits) if not unit and digits.isdecimal() else float(digits) * factor
    if isinstance(number, bool) or not isinstance(number, (int, float)) or math.isnan(number):
        raise WrongSetting(f"{name} = {value!r}: need {example}")
    if kind is float:
        return float(number)
    if not math.isfinite(number) or abs(number - round(number)) > 1e-6:
        raise WrongSetting(f"{name} = {value!r}: need a whole number")
    return round(number)


def _units(name: str) -> tuple[Mapping[str, float], str]:
    if name.endswith("_bytes"):
        return _BYTES, "a number of bytes, or a size as in '512 MiB'"
    if name.endswith("_bytes_per_s"):
        return _BYTES, "a number of bytes per second, or a rate as in '64 MiB/s'"
    if name.endswith("_ms"):
        return {unit: 1e3 * seconds for unit, seconds in _SECONDS.items()}, "milliseconds, or a time as in '2 s'"
    if name.endswith("_s"):
        return _SECONDS, "seconds, or a time as in '500 ms'"
    return {}, "a number"


def _near(name: str, known: Collection[str]) -> str:
    near = nearest(name, known)
    return f"; did you mean {near}?" if near else ""
