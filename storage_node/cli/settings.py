"""Options `--config FILE` and `--set NAME=VALUE`, shared by nodes and clusters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

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


def given_settings(config: Path | None, assignments: tuple[str, ...], *, of_cluster: bool) -> dict[str, Any] | None:
    """Return the given settings, in their own units; None if there are none. A usage error names the wrong one."""
    from storage_node.settings.sources import NODES, WrongSetting, merged, read_assignments, read_file, require_cluster

    if config is None and not assignments:
        return None
    try:
        settings = read_file(config) if config is not None else {}
        settings = merged(settings, read_assignments(assignments), keep_resets=True)
        if of_cluster:
            require_cluster(settings)
        elif NODES in settings:
            raise WrongSetting(f"{NODES}: is for `ais-loader cluster`; this is one node")
    except WrongSetting as error:
        raise click.UsageError(str(error)) from error
    except OSError as error:
        raise click.UsageError(f"{config}: {error.strerror or error}") from error
    return settings
