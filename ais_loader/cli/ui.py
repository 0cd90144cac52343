"""`ais-loader ui`: shows a store on a page in the browser."""

from __future__ import annotations

import asyncio
import errno
import signal
import webbrowser

import click

from ais_loader.cli.show import cannot_listen, note
from ais_loader.cli.stores import StoreChoice, takes_store


@click.command()
@click.option(
    "--port",
    metavar="PORT",
    type=click.IntRange(0, 65535),
    default=0,
    help="Port to listen on, on 127.0.0.1.  [default: a free one]",
)
@click.option("--open", "in_browser", is_flag=True, help="Open the page in your browser.")
@takes_store
def ui(port: int, in_browser: bool, store: StoreChoice) -> None:
    """Show a store in your browser, until interrupted.

    The page shows buckets, folders, and objects with a preview, members of archives, the nodes with their drives, and
    batches per second as they run. It is read-only. It listens on this machine only. The printed address contains a
    random part: anyone who has the address can read the store.
    """
    from ais_loader.ui.server import serve

    async def run() -> None:
        until = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, until.set)
        await serve(client, port, ready, until)

    def ready(address: str) -> None:
        click.echo(address)
        note("Ctrl-C ends it")
        if in_browser:
            webbrowser.open(address)

    with store.reading() as client:
        try:
            asyncio.run(run())
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise
            raise cannot_listen(error, "127.0.0.1", port, "--port") from error
