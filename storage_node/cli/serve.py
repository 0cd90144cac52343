"""`ais-loader serve`: one storage node on this machine's drives, lent to trainers."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ais_loader.cli.show import cannot_listen, note, tell_of_new_stores
from storage_node.cli.insecure import WHY, WHY_METRICS, insecure_option, secure_option
from storage_node.cli.settings import (
    config_option,
    etl_options,
    gateway_options,
    given_settings,
    set_option,
    setting_option,
)

if TYPE_CHECKING:
    from storage_node.ops.gateway_process import GatewayProcess
    from storage_node.server import NodeServer
    from storage_node.settings.config import ServerConfig


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
@setting_option("--host", "ADDRESS")
@setting_option("--port", "PORT")
@setting_option("--advertise", "HOST[:PORT]")
@setting_option("--peer-host", "ADDRESS")
@setting_option("--peer-port", "PORT")
@setting_option("--durability")
@setting_option("--read-threads", "N")
@setting_option("--memory-mib", "MIB", sets="memory_bytes", times=2**-20)
@setting_option("--critical-memory-mib", "MIB", sets="critical_memory_bytes", times=2**-20)
@setting_option("--tenant-weight", "NAME=WEIGHT", sets="tenant_weights", read=_weights)
@setting_option("--max-batches", "N", sets="max_active_batches")
@setting_option("--max-throttle-ms", "MS", sets="max_throttle_s", times=1000)
@setting_option("--max-recoveries", "N")
@setting_option("--max-soft-errors", "N")
@setting_option("--metrics-port", "PORT")
@setting_option("--idle-exit-s", "SECONDS")
@setting_option("--promote-root", "DIR", sets="promote_roots", read=lambda roots: [*map(os.path.abspath, roots)])
@setting_option("--cert", "FILE", sets="cert_file", read=os.path.abspath)
@setting_option("--key", "FILE", sets="key_file", read=os.path.abspath)
@setting_option("--ca", "FILE", sets="ca_file", read=os.path.abspath)
@etl_options
@gateway_options
@insecure_option
@secure_option
@click.option(
    "--identity",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="With --secure: folder of the CA, which issues the node's certificate.  "
    "[default: .ais-loader-identity beside the first drive]",
)
@config_option
@set_option
@click.option("--json", "as_json", is_flag=True, help="Announce the node as one line of JSON.")
def serve(
    drives: tuple[Path, ...],
    insecure: bool,
    secure: bool,
    identity: Path | None,
    config: Path | None,
    assignments: tuple[str, ...],
    as_json: bool,
) -> None:
    """Run a storage node on this machine's drives until interrupted.

    If the drives are empty, a store is created on them, in folders that only this user may open. Unless
    peer_secret_file is set, the node also creates a secret in its first drive, without which nobody can call its peer
    address; with --secure, certificates take its place. Clients connect to grpc://HOST:PORT, or to grpcs://HOST:PORT
    with --secure or --cert. The node is ready when it
    prints the address it serves. On SIGINT (Ctrl-C) or SIGTERM, it lets running calls finish for a few seconds and
    exits with code 0. Clients on this machine also find it as node:///DIR.
    """
    from ais_loader.errors import InvalidRequest
    from storage_node.context.channels import require_secrets
    from storage_node.ops.serve import run_node
    from storage_node.security.identity.identity_folder import IdentityFolder, default_folder
    from storage_node.settings.config import is_loopback

    chosen = _configured(given_settings(config, assignments, of_cluster=False) or {})
    listen = chosen.listen

    def announce(node: NodeServer, gateway: GatewayProcess | None) -> None:
        described = {
            "url": node.url,
            "peer_endpoint": node.peer_endpoint or f"{listen.peer_host}:{node.peer_port}",
            "peer_port": node.peer_port,
            "pid": os.getpid(),
            "drives": [str(drive) for drive in drives],
        }
        text = f"serving {', '.join(map(str, drives))} at {node.url}"
        if uses_tls:
            described["ca_file"] = node.config.listen.ca_file
            text += f", with the CA {described['ca_file']}"
        if listen.advertise:
            described["advertised"] = f"{node.scheme}{node.endpoint}"
            text += f", for others {described['advertised']}"
        if node.metrics_port is not None:
            described["metrics_url"] = f"http://{listen.host}:{node.metrics_port}/metrics"
            text += f", metrics at {described['metrics_url']}"
        if gateway is not None:
            described["gateway_url"] = gateway.url
            text += f", to clients of S3 and AIStore at {gateway.url}"
            if gateway.metrics_url:
                described["gateway_metrics_url"] = gateway.metrics_url
                text += f" with metrics at {gateway.metrics_url}"
        click.echo(json.dumps(described) if as_json else text)
        if beyond and not uses_tls:
            note("anyone who can reach this address can read, change and delete what is stored")

    beyond = [host for host in (listen.host, listen.peer_host) if not is_loopback(host)]
    uses_tls = secure or bool(listen.cert_file)
    if beyond and not insecure and not uses_tls:
        raise click.UsageError(f"{beyond[0]} is more than loopback, and {WHY}")
    has_metrics = (listen.metrics_port, chosen.gateway.metrics_port) != (None, None)
    if not is_loopback(listen.host) and has_metrics and not insecure:
        raise click.UsageError(f"{listen.host} is more than loopback, and {WHY_METRICS}")
    if secure and listen.cert_file:
        raise click.UsageError("--secure makes certificates, and --cert names one: need one of them")
    if identity is not None and not secure:
        raise click.UsageError("--identity is the folder of --secure")
    try:
        require_secrets(chosen, makes_own=True, has_tls=secure)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    host, peer_host = listen.host.strip("[]"), listen.peer_host.strip("[]")
    used: dict[tuple[str, int], str] = {}
    _require_address(host, listen.port, "--port", used)
    _require_address(peer_host, listen.peer_port, "--peer-port", used)
    if listen.metrics_port is not None:
        _require_address(host, listen.metrics_port, "--metrics-port", used)
    if chosen.gateway.port is not None:
        _require_address(host, chosen.gateway.port, "--gateway", used)
    if chosen.gateway.metrics_port is not None:
        _require_address(host, chosen.gateway.metrics_port, "gateway_metrics_port", used)
    drives = tuple(drive.expanduser() for drive in drives)  # shells do not expand the ~ of --drive=~/data
    tell_of_new_stores()
    if secure:
        folder = IdentityFolder(identity or default_folder(drives[0]))
        identity = folder.path.absolute()
        folder.make()
    try:
        run_node(drives, chosen, announce, identity=identity)
    except InvalidRequest as error:
        raise click.UsageError(str(error)) from error


def _configured(settings: dict[str, Any]) -> ServerConfig:
    from storage_node.settings.config import ServerConfig
    from storage_node.settings.sources import WrongSetting, configured, merged

    try:
        chosen = configured(ServerConfig(), merged({}, settings))
    except WrongSetting as error:
        raise click.UsageError(str(error)) from error
    return chosen.replace(host=_bracketed(chosen.listen.host), peer_host=_bracketed(chosen.listen.peer_host))


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


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
