"""`ais-loader gateway`: the S3 interface of a store."""

from __future__ import annotations

import json
import os
import secrets
import ssl
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path

import click

from ais_loader.cli.show import cannot_listen, note
from storage_node.cli.insecure import WHY_METRICS

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_WHY = (
    "requests and objects are not encrypted there. Use --cert and --key for TLS, or --insecure to listen on a network "
    "nevertheless"
)


def networks(_: click.Context, __: click.Parameter, texts: tuple[str, ...]) -> tuple[IPv4Network | IPv6Network, ...]:
    """Return the addresses and networks that an option names."""
    try:
        return tuple(ip_network(text.strip("[]")) for text in texts)
    except ValueError as error:
        raise click.BadParameter(f"{error}; need an address such as 10.0.0.7, or a network, 10.0.0.0/24") from None


@click.command()
@click.argument("store", metavar="STORE")
@click.option("--keys", metavar="FILE", type=_FILE, help="File with the access keys. See docs/gateway.md.")
@click.option("--no-keys", is_flag=True, help="Accept requests without signatures, and do not verify any.")
@click.option("--host", metavar="ADDRESS", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", metavar="PORT", type=click.IntRange(0, 65535), default=9000, show_default=True,
              help="Port to listen on; 0 for any free one.")  # fmt: skip
@click.option("--domain", "domains", metavar="NAME", multiple=True,
              help="A name of the gateway below which buckets are hosts: BUCKET.NAME. Repeat for more.")  # fmt: skip
@click.option("--proxy", "proxies", metavar="ADDRESS", multiple=True, callback=networks,
              help="A proxy, or a network of some, whose X-Forwarded-Proto is believed. Repeat for more.")  # fmt: skip
@click.option("--members", is_flag=True, help="Serve members of archives: the key SHARD.tar/MEMBER.")
@click.option("--spool", metavar="DIR", type=click.Path(exists=True, file_okay=False),
              help="Folder of temporary files for objects that arrive.  [default: that of the system]")  # fmt: skip
@click.option("--cert", metavar="FILE", type=_FILE, help="Certificate of the gateway, in PEM; with --key.")
@click.option("--key", metavar="FILE", type=_FILE, help="Private key of the certificate, in PEM.")
@click.option("--ca", metavar="FILE", help="The CA of nodes at grpcs://, as for other commands.")
@click.option("--token-file", metavar="FILE", help="The token with which the gateway calls nodes.")
@click.option("--processes", metavar="N", type=click.IntRange(1, 256), default=1, show_default=True,
              help="Processes that share the port. A store in a folder has one.")  # fmt: skip
@click.option("--metrics-port", metavar="PORT", type=click.IntRange(0, 65535),
              help="Port for Prometheus metrics, at /metrics; 0 for any free one.")  # fmt: skip
@click.option("--access-log", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path),
              help="File to which a line of JSON is appended for each request.")  # fmt: skip
@click.option("--ui", "with_page", is_flag=True,
              help="Serve the page of `ais-loader ui` too, at an address with a random part.")  # fmt: skip
@click.option("--insecure", is_flag=True, help="Allow listening on a network without TLS or without keys.")
@click.option("--ends-with-input", is_flag=True, hidden=True, help="Stop at the end of standard input.")
@click.option("--json", "as_json", is_flag=True, help="Announce the gateway as one line of JSON.")
def gateway(
    store: str,
    keys: Path | None,
    no_keys: bool,
    host: str,
    port: int,
    domains: tuple[str, ...],
    proxies: tuple[IPv4Network | IPv6Network, ...],
    members: bool,
    spool: str | None,
    cert: Path | None,
    key: Path | None,
    ca: str | None,
    token_file: str | None,
    processes: int,
    metrics_port: int | None,
    access_log: Path | None,
    with_page: bool,
    insecure: bool,
    ends_with_input: bool,
    as_json: bool,
) -> None:
    """Serve STORE, a URL or a folder, to clients of S3 and AIStore until interrupted.

    Any number of gateways can serve one store, as they keep nothing of their own. The gateway is ready when it prints
    its address. On SIGINT (Ctrl-C) or SIGTERM, it lets running requests finish and exits with code 0. A process of it
    that dies is replaced.
    """
    from ais_loader.errors import InvalidRequest
    from storage_node.settings.config import is_loopback

    if (keys is None) != no_keys:
        raise click.UsageError("need either --keys FILE or --no-keys")
    if (cert is None) != (key is None):
        raise click.UsageError("--cert and --key go together")
    if not is_loopback(host) and not insecure:
        if cert is None:
            raise click.UsageError(f"{host} is more than loopback, and {_WHY}")
        if no_keys:
            raise click.UsageError(f"{host} is more than loopback, and anyone could read and delete: use --keys")

    if not is_loopback(host) and metrics_port is not None and not insecure:
        raise click.UsageError(f"{host} is more than loopback, and {WHY_METRICS}")
    if with_page and not is_loopback(host):
        raise click.UsageError(f"{host} is more than loopback, and the page shows everything: leave out --ui")

    from .clients import read_keys
    from .serve import listen
    from .server.options import GatewayOptions
    from .server.plan import GatewayPlan
    from .server.runner import run_gateway

    try:
        plan = GatewayPlan(
            store=store,
            accounts=None if keys is None else read_keys(keys),
            ca=ca,
            token_file=token_file,
            cert=cert,
            key=key,
            options=GatewayOptions(
                domains=domains,
                proxies=proxies,
                with_members=members,
                spool=spool,
                access_log=access_log,
                page_token=secrets.token_urlsafe(16) if with_page else "",
            ),
        )
        plan.certificate()
        if access_log is not None:
            access_log.touch(0o600)
    except (OSError, ssl.SSLError) as error:
        raise click.ClickException(str(error)) from error
    try:
        listener = listen(host.strip("[]"), port)
    except OSError as error:
        raise cannot_listen(error, host, port, "--port") from error

    def announce(metrics_port: int | None) -> None:
        shown = f"[{host.strip('[]')}]" if ":" in host else host
        url = f"{'http' if cert is None else 'https'}://{shown}:{listener.getsockname()[1]}"
        described = {"url": url, "store": store, "pid": os.getpid()}
        text = f"serving {store} to clients of S3 and AIStore at {url}"
        if metrics_port is not None:
            described["metrics_url"] = f"http://{shown}:{metrics_port}/metrics"
            text += f", metrics at {described['metrics_url']}"
        if with_page:
            described["page_url"] = f"{url}/ui/{plan.options.page_token}/"
            text += f", its page at {described['page_url']}"
        click.echo(json.dumps(described) if as_json else text)
        if not is_loopback(host) and no_keys:
            note("anyone who can reach this address can read, change and delete what is stored")

    try:
        with listener:
            run_gateway(
                plan,
                listener,
                announce,
                processes=processes,
                metrics_host=host,
                metrics_port=metrics_port,
                ends_with_input=ends_with_input,
            )
    except InvalidRequest as error:
        raise click.UsageError(str(error)) from error
