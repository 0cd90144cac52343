"""`ais-loader serve`: one storage node on this machine's drives, lent to trainers."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from ais_loader.cli.show import cannot_listen, note
from storage_node.cli.etl_options import commands_of, takes_etl
from storage_node.cli.insecure import WHY, insecure_option
from storage_node.cli.settings import config_option, given_settings, set_option

if TYPE_CHECKING:
    from storage_node.server import NodeServer
    from storage_node.settings.config import ServerConfig

_FIELDS = {
    "memory_mib": "memory_bytes",
    "critical_memory_mib": "critical_memory_bytes",
    "weights": "tenant_weights",
    "max_batches": "max_active_batches",
    "max_throttle_ms": "max_throttle_s",
    "promote_root": "promote_roots",
    "etl_command": "etl_commands",
    "etl_server": "etl_servers",
}
"""Fields set by the options that have a name of their own."""


@click.command()
@click.option(
    "--drive",
    "drives",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    multiple=True,
    required=True,
    help="Folder that holds (or will hold) part of the store; repeat for each drive.",
)
@click.option(
    "--host",
    metavar="ADDRESS",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on. Any address other than loopback needs --insecure.",
)
@click.option(
    "--port",
    metavar="PORT",
    type=click.IntRange(0, 65535),
    default=7480,
    show_default=True,
    help="Port to listen on; 0 picks a free one.",
)
@click.option(
    "--advertise",
    metavar="HOST[:PORT]",
    default="",
    help="Address at which clients and other nodes reach this one, if not --host and --port: through a proxy, "
    "address translation, or a container's port.",
)
@click.option(
    "--peer-host",
    metavar="ADDRESS",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on for other nodes of a cluster and for operators' commands: the cluster's network. Any "
    "address other than loopback needs --insecure and --set peer_secret_file=FILE.",
)
@click.option(
    "--peer-port",
    metavar="PORT",
    type=click.IntRange(0, 65535),
    default=0,
    help="Port for peers; a cluster node keeps the same one.  [default: a free one]",
)
@click.option(
    "--durability",
    type=click.Choice(["process", "power"]),
    default="process",
    show_default=True,
    help="What an acknowledged write survives: the end of this process, or a power cut.",
)
@click.option(
    "--read-threads",
    metavar="N",
    type=click.IntRange(min=1),
    default=4,
    show_default=True,
    help="Threads that read from the drives.",
)
@click.option(
    "--memory-mib",
    metavar="MIB",
    type=click.IntRange(min=1),
    default=256,
    show_default=True,
    help="Memory for frames on their way to clients, in MiB.",
)
@click.option(
    "--critical-memory-mib",
    metavar="MIB",
    type=click.IntRange(min=0),
    default=0,
    help="Reject new batches while the process uses more memory than this.  [default: four fifths of the machine's]",
)
@click.option(
    "--tenant-weight",
    "weights",
    metavar="NAME=WEIGHT",
    multiple=True,
    help="Serve this tenant's batches with this weight (default 1); repeat for each tenant.",
)
@click.option(
    "--max-batches",
    metavar="N",
    type=click.IntRange(min=1),
    default=512,
    show_default=True,
    help="Batches served at once; clients are told to retry further ones later.",
)
@click.option(
    "--max-throttle-ms",
    metavar="MS",
    type=click.IntRange(min=0),
    default=50,
    show_default=True,
    help="Longest pause between a batch's frames while the processor or drives cannot keep up.",
)
@click.option(
    "--max-recoveries",
    metavar="N",
    type=click.IntRange(min=0),
    default=20_000,
    show_default=True,
    help="Entries of a batch that may be requested again from another node before the batch fails.",
)
@click.option(
    "--max-soft-errors",
    metavar="N",
    type=click.IntRange(min=0),
    default=10_000,
    show_default=True,
    help="Entries of a batch gathered from other nodes that may fail before the batch fails.",
)
@click.option(
    "--metrics-port",
    metavar="PORT",
    type=click.IntRange(0, 65535),
    help="Serve metrics for Prometheus on this port, at the same address; 0 picks a free one.",
)
@click.option(
    "--promote-root",
    metavar="DIR",
    multiple=True,
    type=click.Path(file_okay=False),
    help="Folder on this machine whose files `ais-loader promote` may store; repeatable.",
)
@takes_etl
@insecure_option
@config_option
@set_option
@click.option("--json", "as_json", is_flag=True, help="Announce the node as one line of JSON.")
def serve(
    drives: tuple[Path, ...],
    host: str,
    port: int,
    advertise: str,
    peer_host: str,
    peer_port: int,
    durability: Literal["process", "power"],
    read_threads: int,
    memory_mib: int,
    critical_memory_mib: int,
    weights: tuple[str, ...],
    max_batches: int,
    max_throttle_ms: int,
    max_recoveries: int,
    max_soft_errors: int,
    metrics_port: int | None,
    promote_root: tuple[str, ...],
    etl_code: bool,
    etl_command: tuple[str, ...],
    etl_server: tuple[str, ...],
    insecure: bool,
    config: Path | None,
    assignments: tuple[str, ...],
    as_json: bool,
) -> None:
    """Run a storage node on this machine's drives until interrupted.

    If the drives are empty, a store is created on them, in folders that only this user may open. Unless
    peer_secret_file is set, the node also creates a secret in its first drive, without which nobody can call its peer
    address. Clients connect to grpc://HOST:PORT. The node is ready when it
    prints the address it serves. On SIGINT (Ctrl-C) or SIGTERM, it lets running calls finish for a few seconds and
    exits with code 0.
    """
    from ais_loader.cli.new_stores import tell_of_new_stores
    from ais_loader.errors import InvalidRequest
    from storage_node.ops.serve import run_node
    from storage_node.settings.config import is_loopback, require_secrets

    chosen = _config(
        {
            "host": host,
            "port": port,
            "advertise": advertise,
            "peer_host": peer_host,
            "peer_port": peer_port,
            "durability": durability,
            "read_threads": read_threads,
            "memory_mib": memory_mib << 20,
            "critical_memory_mib": critical_memory_mib << 20,
            "weights": _weights(weights),
            "max_batches": max_batches,
            "max_throttle_ms": max_throttle_ms / 1000,
            "max_recoveries": max_recoveries,
            "max_soft_errors": max_soft_errors,
            "metrics_port": metrics_port,
            "promote_root": tuple(map(os.path.abspath, promote_root)),
            "etl_code": etl_code,
            "etl_command": commands_of(etl_command),
            "etl_server": etl_server,
        },
        given_settings(config, assignments, of_cluster=False) or {},
    )

    def announce(node: NodeServer) -> None:
        described = {
            "url": node.url,
            "peer_endpoint": node.peer_endpoint or f"{chosen.peer_host}:{node.peer_port}",
            "pid": os.getpid(),
            "drives": [str(drive) for drive in drives],
        }
        text = f"serving {', '.join(map(str, drives))} at {node.url}"
        if chosen.advertise:
            described["advertised"] = f"grpc://{node.endpoint}"
            text += f", for others {described['advertised']}"
        if node.metrics_port is not None:
            described["metrics_url"] = f"http://{chosen.host}:{node.metrics_port}/metrics"
            text += f", metrics at {described['metrics_url']}"
        click.echo(json.dumps(described) if as_json else text)
        if beyond:
            note("anyone who can reach this address can read, change and delete what is stored")

    beyond = [host for host in (chosen.host, chosen.peer_host) if not is_loopback(host)]
    if beyond and not insecure:
        raise click.UsageError(f"{beyond[0]} is more than loopback, and {WHY}")
    try:
        require_secrets(chosen, makes_own=True)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    host, peer_host = chosen.host.strip("[]"), chosen.peer_host.strip("[]")
    taken: dict[tuple[str, int], str] = {}
    _require_address(host, chosen.port, "--port", taken)
    _require_address(peer_host, chosen.peer_port, "--peer-port", taken)
    if chosen.metrics_port is not None:
        _require_address(host, chosen.metrics_port, "--metrics-port", taken)
    drives = tuple(drive.expanduser() for drive in drives)  # shells do not expand the ~ of --drive=~/data
    tell_of_new_stores()
    try:
        run_node(drives, chosen, announce)
    except InvalidRequest as error:
        raise click.UsageError(str(error)) from error


def _config(options: dict[str, Any], settings: dict[str, Any]) -> ServerConfig:
    """Build the configuration: command-line options take precedence over `settings`, and those over defaults."""
    from storage_node.settings.config import ServerConfig
    from storage_node.settings.sources import WrongSetting, configured, merged

    context = click.get_current_context()
    typed = {
        _FIELDS.get(name, name): value
        for name, value in options.items()
        if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
    }
    try:
        chosen = configured(ServerConfig(), merged(merged({}, settings), typed))
    except WrongSetting as error:
        raise click.UsageError(str(error)) from error
    return chosen.replace(host=_bracketed(chosen.host), peer_host=_bracketed(chosen.peer_host))


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def _weights(given: tuple[str, ...]) -> dict[str, float]:
    weights = {}
    for one in given:
        name, _, weight = one.rpartition("=")
        try:
            weights[name] = float(weight)
        except ValueError:
            message = f"{one!r}: need NAME=WEIGHT, as in team-a=2"
            raise click.BadParameter(message, param_hint="'--tenant-weight'") from None
    return weights


def _require_address(host: str, port: int, option: str, others: dict[tuple[str, int], str]) -> None:
    """Check that this address can be listened on: gRPC would bury the reason in lines of its log.

    `others`: further addresses that this node listens on, with their options; this one is added.
    """
    if port and (other := others.get((host, port))) is not None:
        raise click.UsageError(f"{other} and {option} are both port {port} of {host}: they need different ports")
    others[host, port] = option
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        socket.create_server(address[:2], family=family).close()
    except OSError as error:
        raise cannot_listen(error, host, port, option) from error
