"""Option `--insecure`, without which no command makes a node listen beyond loopback."""

from __future__ import annotations

import click

WHY = (
    "there is no authentication and no encryption: anyone who can reach the node can read, change, and delete "
    "what is stored. Use --insecure to listen on a network nevertheless"
)
insecure_option = click.option(
    "--insecure",
    is_flag=True,
    help="Allow listening on a network, not only on loopback, although there is no authentication: "
    "anyone who can reach a node can read, change, and delete what is stored.",
)
