"""`ais-loader gateway`: the S3 interface of a store."""

from __future__ import annotations

import json
import os
import ssl
from pathlib import Path

import click

from ais_loader.cli.show import cannot_listen, note

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_WHY = (
    "requests and objects are not encrypted there. Use --cert and --key for TLS, or --insecure to listen on a network "
    "nevertheless"
)


@click.command()
@click.argument("store", metavar="STORE")
@click.option("--keys", metavar="FILE", type=_FILE, help="File with the access keys. See docs/gateway.md.")
@click.option("--no-keys", is_flag=True, help="Accept requests without signatures, and do not verify any.")
@click.option("--host", metavar="ADDRESS", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", metavar="PORT", type=click.IntRange(0, 65535), default=9000, show_default=True,
              help="Port to listen on; 0 for any free one.")  # fmt: skip
@click.option("--domain", "domains", metavar="NAME", multiple=True,
              help="A name of the gateway below which buckets are hosts: BUCKET.NAME. Repeat for more.")  # fmt: skip
@click.option("--members", is_flag=True, help="Serve members of archives: the key SHARD.tar/MEMBER.")
@click.option("--spool", metavar="DIR", type=click.Path(exists=True, file_okay=False),
              help="Folder of temporary files for objects that arrive.  [default: that of the system]")  # fmt: skip
@click.option("--cert", metavar="FILE", type=_FILE, help="Certificate of the gateway, in PEM; with --key.")
@click.option("--key", metavar="FILE", type=_FILE, help="Private key of the certificate, in PEM.")
@click.option("--ca", metavar="FILE", help="The CA of nodes at grpcs://, as for other commands.")
@click.option("--token-file", metavar="FILE", help="The token with which the gateway calls nodes.")
@click.option("--insecure", is_flag=True, help="Allow listening on a network without TLS or without keys.")
@click.option("--json", "as_json", is_flag=True, help="Announce the gateway as one line of JSON.")
def gateway(
    store: str,
    keys: Path | None,
    no_keys: bool,
    host: str,
    port: int,
    domains: tuple[str, ...],
    members: bool,
    spool: str | None,
    cert: Path | None,
    key: Path | None,
    ca: str | None,
    token_file: str | None,
    insecure: bool,
    as_json: bool,
) -> None:
    """Serve STORE, a URL or a folder, to clients of S3 until interrupted.

    Any number of gateways can serve one store, as they keep nothing of their own. The gateway is ready when it prints
    its address. On SIGINT (Ctrl-C) or SIGTERM, it lets running requests finish and exits with code 0.
    """
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

    from storage_node.gateway.clients import Clients
    from storage_node.gateway.keys import read_keys
    from storage_node.gateway.serve import run_gateway, tls_context

    try:
        accounts = None if keys is None else read_keys(keys)
        tls = None if cert is None or key is None else tls_context(str(cert), str(key))
    except (OSError, ssl.SSLError) as error:
        raise click.ClickException(str(error)) from error
    clients = Clients(store, (accounts or {}).values(), ca=ca, token_file=token_file)
    scheme = "http" if tls is None else "https"

    def announce(port: int) -> None:
        shown = f"[{host.strip('[]')}]" if ":" in host else host
        described = {"url": f"{scheme}://{shown}:{port}", "store": store, "pid": os.getpid()}
        click.echo(json.dumps(described) if as_json else f"serving {store} to clients of S3 at {described['url']}")
        if not is_loopback(host) and no_keys:
            note("anyone who can reach this address can read, change and delete what is stored")

    options = {"domains": domains, "with_members": members, "spool": spool}
    try:
        run_gateway(clients, accounts, host.strip("[]"), port, announce, tls=tls, **options)
    except OSError as error:
        raise cannot_listen(error, host, port, "--port") from error
    finally:
        clients.close()
