"""Shell completion: the script that a shell loads, and the completion of buckets and names."""

from __future__ import annotations

import contextlib
import itertools
import os
import shlex
from collections.abc import Callable
from typing import Any

import click
from click.shell_completion import CompletionItem, get_completion_class

from ais_loader.cli.names import one_level
from ais_loader.cli.stores import chosen_url
from ais_loader.cli.targets import Target
from ais_loader.errors import InvalidRequest
from ais_loader.values.urls import SCHEME, is_remote

_PROGRAM, _VARIABLE = "ais-loader", "_AIS_LOADER_COMPLETE"
_MOST = 200
_NO_SPACE = {
    # A folder or a bucket is followed by the rest of the name, not by a space.
    "bash": ("COMPREPLY+=($value)", "COMPREPLY+=($value)\n            [[ $value == */ ]] && compopt -o nospace"),
    "zsh": ("compadd -U -V unsorted -a completions", "compadd -U -S '' -V unsorted -a completions"),
}


@click.command()
@click.argument("shell", metavar="bash|zsh|fish", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print a shell completion script for commands, options, buckets, and object names.

    \b
    bash    eval "$(ais-loader completion bash)"         in ~/.bashrc
    zsh     eval "$(ais-loader completion zsh)"          in ~/.zshrc
    fish    ais-loader completion fish | source          in config.fish

    Buckets and names come from the store that --store or AIS_LOADER_URL names.
    """
    kind = get_completion_class(shell)
    assert kind is not None
    script = kind(click.get_current_context().find_root().command, {}, _PROGRAM, _VARIABLE).source()
    click.echo(script.replace(*_NO_SPACE[shell]) if shell in _NO_SPACE else script)


def named_by(parse: Callable[[str], Any]) -> dict[str, Any]:
    """Return options of a click argument that parse each value with `parse` and complete names in shells."""

    def callback(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
        try:
            if isinstance(value, tuple):
                return tuple(parse(each) for each in value)
            return None if value is None else parse(value)
        except InvalidRequest as error:
            raise click.BadParameter(str(error), ctx, param) from error

    return {"callback": callback, "shell_complete": complete_name}


def complete_name(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
    """Complete buckets, and one level of names; nothing if the store does not answer."""
    from ais_loader.objects.client import URL_VARIABLE, connect
    from ais_loader.values.options import ClusterOptions

    scheme = SCHEME if incomplete.startswith(SCHEME) else ""
    bucket, slash, rest = incomplete.removeprefix(scheme).partition("/")
    url = chosen_url(ctx, ctx.params.get("store") or os.environ.get(URL_VARIABLE))
    if not url:
        return []
    with contextlib.suppress(Exception):  # the line is still being typed, so an error has no place to go
        with connect(url, mode="r", options=ClusterOptions(retry_s=0) if is_remote(url) else None) as client:
            if not slash:
                found = [info.name + "/" for info in client.buckets()]
            else:
                above, _, start = rest.rpartition("/")
                level = one_level(client.bucket(bucket), Target(bucket, above and above + "/"), start)
                found = [f"{bucket}/{one.name}" for one in itertools.islice(level, _MOST)]
        names = [scheme + name for name in found if name.startswith(incomplete.removeprefix(scheme))]
        # A shell inserts them literally: a name must not become a command.
        return [CompletionItem(name) for name in names if shlex.quote(name) == name]
    return []
