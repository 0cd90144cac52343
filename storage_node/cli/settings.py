"""Options that set fields of `ServerConfig`, shared by nodes and clusters: --config, --set, and one for some fields."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

import click

from storage_node.settings.command_template import WrongCommand, check_commands
from storage_node.settings.declarations import SETTINGS
from storage_node.settings.setting_types import Setting

GATEWAY_PORT = 9000
F = TypeVar("F", bound=Callable[..., Any])
_GIVEN = "storage_node.cli.settings"
"""Key of the settings that options have set, in the context's `meta`."""

config_option = click.option(
    "--config",
    "config",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help='Settings as TOML: the names in docs/settings.md, as in memory_bytes = "512 MiB".',
)
set_option = click.option(
    "--set",
    "assignments",
    metavar="NAME=VALUE",
    multiple=True,
    help="One setting, overriding --config; VALUE `default` restores the default.",
)


class _SettingOption(click.Option):
    """Option whose help begins with the meaning of its setting, which is read from the source when it is shown."""

    def __init__(self, *words: Any, setting: Setting, **more: Any) -> None:
        self._setting, self._rest = setting, ""
        super().__init__(*words, **more)

    @property
    def help(self) -> str:
        return f"{self._setting.meaning}{self._rest}"

    @help.setter
    def help(self, rest: str | None) -> None:
        self._rest = f" {rest}" if rest else ""


def setting_option(
    option: str,
    metavar: str | None = None,
    *,
    sets: str = "",
    times: float = 1,
    read: Callable[[Any], Any] | None = None,
    default: str | None = None,
    alone: int | None = None,
) -> Callable[[F], F]:
    """Add an option that sets one field, whose type, range, default and meaning it shows. If it is given, it overrides
    --set and --config. Numbers are whole.

    Args:
        sets: the setting, if it is not called as the option.
        times: the number of the option is the one of the setting, multiplied by this.
        read: converts the option's value to the setting's. Raises click.UsageError.
        default: a description instead of the field's default.
        alone: the value of an option that is given without one.
    """
    setting = SETTINGS[sets or option.removeprefix("--").replace("-", "_")]
    kind, is_number = setting.type, setting.range is not None
    has_several = get_origin(kind) in (tuple, Mapping)

    def keep(context: click.Context, parameter: click.Parameter, value: Any) -> None:
        assert parameter.name is not None
        if context.get_parameter_source(parameter.name) is click.core.ParameterSource.COMMANDLINE:
            if times != 1:
                value = kind(value / times)
            value = read(value) if read is not None else list(value) if has_several else value
            context.meta.setdefault(_GIVEN, {})[setting.name] = value

    shown: Any = {} if alone is None else {"flag_value": alone}
    if is_number:
        assert setting.range is not None
        low, high = setting.range.low * times, setting.range.high * times
        shown["type"] = click.IntRange(math.ceil(low), int(high) if high < 1 << 63 else None)
    elif get_origin(kind) is Literal:
        shown["type"] = click.Choice(get_args(kind))
    if default is None and kind is not bool and setting.default not in (None, "", (), {}):
        shown |= {"default": int(setting.default * times) if is_number else setting.default, "show_default": True}
    return click.option(
        option,
        cls=_SettingOption,
        setting=setting,
        metavar=metavar,
        is_flag=kind is bool,
        multiple=has_several,
        expose_value=False,
        callback=keep,
        help="Repeatable." if has_several else default and f" [default: {default}]",
        **shown,
    )


def gateway_options(command: F) -> F:
    """Add options for the gateway beside each node."""
    for option in (
        setting_option(
            "--gateway", "[PORT]", sets="gateway_port", alone=GATEWAY_PORT, default=f"none; alone: {GATEWAY_PORT}"
        ),
        setting_option("--gateway-keys", "FILE", sets="gateway_keys_file", read=os.path.abspath),
    ):
        command = option(command)
    return command


def etl_options(command: F) -> F:
    """Add options for the transforms that clients may run."""
    for option in (
        setting_option("--etl-server", "ADDRESS", sets="etl_servers"),
        setting_option("--etl-command", "NAME=WORDS", sets="etl_commands", read=_commands),
        setting_option("--etl-code"),
    ):
        command = option(command)
    return command


def given_settings(config: Path | None, assignments: tuple[str, ...], *, of_cluster: bool) -> dict[str, Any] | None:
    """Return the given settings, in their own units; None if there are none. A usage error names the wrong one."""
    from storage_node.settings.sources import NODES, WrongSetting, merged, read_assignments, read_file, require_cluster

    options = click.get_current_context().meta.get(_GIVEN, {})
    if config is None and not assignments and not options:
        return None
    try:
        settings = read_file(config) if config is not None else {}
        for more in (read_assignments(assignments), options):
            settings = merged(settings, more, keep_resets=True)
        if of_cluster:
            require_cluster(settings)
        elif NODES in settings:
            raise WrongSetting(f"{NODES}: is for `ais-loader cluster`; this is one node")
    except WrongSetting as error:
        raise click.UsageError(str(error)) from error
    except OSError as error:
        raise click.UsageError(f"{config}: {error.strerror or error}") from error
    return settings


def _commands(given: tuple[str, ...]) -> dict[str, str]:
    commands: dict[str, str] = {}
    for one in given:
        name, equals, words = one.partition("=")
        try:
            if not equals or any(letter.isspace() for letter in name):
                raise WrongCommand(
                    f"{one!r}: need NAME=WORDS, as in 'wav=sox {{input}} -r {{rate:int}} {{output}}.wav' (--etl-code "
                    "allows clients to run any command)"
                )
            if name in commands:
                raise WrongCommand(f"{name!r} is given twice")
            check_commands({name: words})
        except WrongCommand as error:
            raise click.BadParameter(str(error), param_hint="'--etl-command'") from None
        commands[name] = words
    return commands
