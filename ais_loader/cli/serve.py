"""`ais-loader serve`: this machine's drives, lent to trainers."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from storage_node.server import NodeServer


@click.command()
@click.option("--drive", "drives", type=click.Path(path_type=Path), multiple=True, required=True,
              help="Folder that holds (or will hold) a part of the store; once for each drive.")  # fmt: skip
@click.option("--host", default="127.0.0.1", show_default=True,
              help="Address to listen on. There is no authentication: open it to trusted networks only.")  # fmt: skip
@click.option("--port", default=7480, show_default=True, help="Port to listen on; 0 picks a free one.")
@click.option("--durability", type=click.Choice(["process", "power"]), default="process", show_default=True,
              help="What an acknowledged write survives: the end of this process, or a power cut.")  # fmt: skip
@click.option("--read-threads", default=4, show_default=True, help="Threads that read from the drives.")
@click.option("--memory-mib", default=256, show_default=True, help="Memory for frames on their way to clients, in MiB.")
@click.option("--json", "as_json", is_flag=True, help="Announce the node as one line of JSON.")
def serve(
    drives: tuple[Path, ...], host: str, port: int, durability: str, read_threads: int, memory_mib: int, as_json: bool
) -> None:
    """Run a storage node on this machine's drives until interrupted.

    The store is made on the drives if they are empty. Clients connect to grpc://HOST:PORT.
    """
    from storage_node.config import ServerConfig
    from storage_node.run import run_node
    from storage_node.store.errors import StoreError

    def announce(node: NodeServer) -> None:
        described = {"url": node.url, "pid": os.getpid(), "drives": [str(drive) for drive in drives]}
        click.echo(json.dumps(described) if as_json else f"serving {', '.join(map(str, drives))} at {node.url}")

    try:
        config = ServerConfig(
            host=host, port=port, durability="power" if durability == "power" else "process",
            read_threads=read_threads, memory_bytes=memory_mib << 20,
        )  # fmt: skip
        run_node(drives, config, announce)
    except (StoreError, ValueError) as error:
        raise click.ClickException(str(error)) from error
