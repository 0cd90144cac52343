"""`ais-loader token`: makes keys and tokens of clients, lists, shows and revokes them."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ais_loader.cli.groups import HintingGroup
from ais_loader.cli.show import OutputLines, note, printable

if TYPE_CHECKING:
    from storage_node.ops.token_commands import TokenNodes
    from storage_node.security.rights.tokens import TokenClaims

F = TypeVar("F", bound=Callable[..., Any])
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_FILE = click.Path(dir_okay=False, path_type=Path)


def _duration(context: click.Context, parameter: click.Parameter, text: str) -> int:
    found = re.fullmatch(r"([0-9]{1,9})([smhd])", text)
    if found is None or not int(found[1]):
        raise click.BadParameter("need a number with a unit, as 12h or 30d", context, parameter)
    return int(found[1]) * _UNITS_S[found[2]]


def _nodes_options(command: F) -> F:
    """Add the options that say which nodes to ask."""
    for option in (
        click.option(
            "--peer-secret",
            metavar="FILE",
            envvar="AIS_LOADER_PEER_SECRET_FILE",
            type=_FILE,
            help="With --node: the nodes' peer secret, such as DRIVE/peer-secret.",
        ),
        click.option(
            "--identity",
            metavar="DIR",
            type=click.Path(file_okay=False, path_type=Path),
            help="With --node: the identity folder of a node with TLS, whose operator's certificate is used.",
        ),
        click.option("--node", metavar="HOST:PORT", default="", help="The address of one node, as clients reach it."),
        click.option(
            "--root",
            metavar="DIR",
            envvar="AIS_LOADER_ROOT",
            show_envvar=True,
            type=click.Path(file_okay=False, path_type=Path),
            help="Folder below which the nodes of a cluster have their drives.",
        ),
    ):
        command = option(command)
    return command


_key = click.option(
    "--key",
    metavar="FILE",
    required=True,
    envvar="AIS_LOADER_TOKEN_KEY",
    show_envvar=True,
    type=_FILE,
    help="The private key that signs tokens.",
)
_json = click.option("--json", "as_json", is_flag=True, help="One JSON object.")


@click.group(cls=HintingGroup)
def token() -> None:
    """Make and revoke the tokens with which clients may use nodes.

    Nodes need tokens when their setting token_key_file names the public key.
    """


@token.command()
@click.argument("file", metavar="FILE", type=_FILE)
def key(file: Path) -> None:
    """Make the key of a store's tokens: FILE, which only operators may have, and FILE.pub for its nodes."""
    from storage_node.security.rights.keys import make_key

    try:
        public = make_key(file)
    except FileExistsError:
        raise click.ClickException(f"{file} exists already; tokens that it has signed stay valid") from None
    with OutputLines() as lines:
        lines.add(f"{file}: keep it secret. Nodes need --set token_key_file={public.absolute()}")


@token.command()
@_key
@click.option("--tenant", metavar="NAME", required=True, help="Who uses it: the tenant of its calls, and of quotas.")
@click.option(
    "--scope",
    "scopes",
    metavar="PATTERN:RIGHT,...",
    required=True,
    multiple=True,
    help="Rights on the buckets of a pattern, as 'speech-*:read,list'; may be repeated.",
)
@click.option(
    "--expires",
    "lifetime_s",
    metavar="TIME",
    default="30d",
    show_default=True,
    callback=_duration,
    help="How long it lasts: a number with s, m, h or d.",
)
@click.option("--audience", metavar="UUID", default="", help="The store or cluster, if its nodes are not asked.")
@_nodes_options
@click.option("--output", "-o", metavar="FILE", type=_FILE, help="Write the token to a new file, mode 0600.")
@click.option("--stdout", "to_stdout", is_flag=True, help="Print the token, and nothing else.")
def create(
    key: Path,
    tenant: str,
    scopes: tuple[str, ...],
    lifetime_s: int,
    audience: str,
    root: Path | None,
    node: str,
    peer_secret: Path | None,
    identity: Path | None,
    output: Path | None,
    to_stdout: bool,
) -> None:
    """Make a token. It is written to --output, or printed with --stdout, and is nowhere else afterwards."""
    from storage_node.security.rights import ledger
    from storage_node.security.rights.keys import read_private_key
    from storage_node.security.rights.tokens import create_token
    from storage_node.store.permissions import private

    if (output is None) == (not to_stdout):
        raise click.UsageError("a token is a secret: say where it goes, with --output FILE or --stdout")
    try:
        signing = read_private_key(key)
    except (OSError, ValueError) as error:
        raise click.ClickException(str(error)) from error
    audience = audience or _nodes(root, node, peer_secret, identity).listed().audience
    made, claims = create_token(signing, audience=audience, tenant=tenant, scopes=scopes, lifetime_s=lifetime_s)
    ledger.add(key, claims)
    if output is None:
        click.echo(made)
        return
    with open(output, "x", opener=private) as file:
        file.write(made + "\n")
    note(f"{output}: token {claims.token_id} of {printable(tenant)}, until {_time_text(claims.expires_s)}")


@token.command("list")
@_key
@_nodes_options
@_json
def list_(
    key: Path, root: Path | None, node: str, peer_secret: Path | None, identity: Path | None, as_json: bool
) -> None:
    """List the tokens that were made with a key, and, if nodes are named, which of them are revoked."""
    from storage_node.security.rights import ledger

    made = ledger.read(key, note)
    revoked = {one.id for one in _nodes(root, node, peer_secret, identity).listed().token} if root or node else set()
    rows = [(claims, _state(claims, revoked)) for claims in made]
    with OutputLines() as lines:
        if as_json:
            lines.add(json.dumps({"tokens": [{**asdict(claims), "state": state} for claims, state in rows]}))
            return
        for claims, state in rows:
            scopes = " ".join(map(printable, claims.scopes))
            until = _time_text(claims.expires_s)
            lines.add(f"{claims.token_id}  {state:7}  {until}  {printable(claims.tenant)}  {scopes}")


@token.command()
@click.argument("file", metavar="FILE", type=click.File("r"))
@_json
def show(file: Any, as_json: bool) -> None:
    """Show the claims of the token in FILE, or of standard input for `-`. Its signature is not checked."""
    claims = _claims_in(file.read())
    with OutputLines() as lines:
        if as_json:
            lines.add(json.dumps(asdict(claims)))
            return
        for name, value in (
            ("id", claims.token_id),
            ("tenant", printable(claims.tenant)),
            ("audience", printable(claims.audience)),
            ("scopes", " ".join(map(printable, claims.scopes))),
            ("expires", f"{_time_text(claims.expires_s)} ({_state(claims, set())})"),
        ):
            lines.add(f"{name:9}{value}")


@token.command()
@click.argument("which", metavar="ID|FILE")
@click.option("--key", metavar="FILE", envvar="AIS_LOADER_TOKEN_KEY", type=_FILE, help="Needed for an ID: its key.")
@_nodes_options
def revoke(
    which: str, key: Path | None, root: Path | None, node: str, peer_secret: Path | None, identity: Path | None
) -> None:
    """Revoke a token on all nodes: by the file that has it, or by its id in `token list`.

    Sessions, lanes and watches that it has opened end within a second.
    """
    from storage_node.security.rights import ledger

    if os.path.isfile(which):
        claims = _claims_in(Path(which).read_text(errors="replace"))
    else:
        known = [one for one in ledger.read(key, note) if one.token_id == which] if key is not None else []
        if not known:
            raise click.ClickException(f"{which}: no file, and no token that was made with the key of --key")
        claims = known[-1]
    _nodes(root, node, peer_secret, identity).revoke(claims.token_id, claims.expires_s)
    with OutputLines() as lines:
        lines.add(f"token {claims.token_id} of {printable(claims.tenant)} is revoked")


def _nodes(root: Path | None, node: str, secret: Path | None, identity: Path | None) -> TokenNodes:
    from storage_node.ops.token_commands import TokenNodes

    if node:
        return TokenNodes.at(node, secret, identity)
    if root is None:
        raise click.UsageError(
            "which nodes? Give --root DIR, or --node HOST:PORT with --peer-secret FILE or --identity DIR"
        )
    return TokenNodes.below(Path(os.path.abspath(root.expanduser())))


def _claims_in(text: str) -> TokenClaims:
    from storage_node.security.rights.tokens import parse_token

    return parse_token(text.strip(), ())


def _state(claims: TokenClaims, revoked: set[str]) -> str:
    if claims.token_id in revoked:
        return "revoked"
    return "expired" if claims.expires_s <= time.time() else "valid"


def _time_text(seconds: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))
