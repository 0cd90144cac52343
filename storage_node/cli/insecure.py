"""Options `--insecure`, without which no command makes a node listen beyond loopback without TLS, and `--secure`."""

from __future__ import annotations

import click

WHY = (
    "there is no authentication and no encryption: anyone who can reach the node can read, change, and delete "
    "what is stored. Use --secure for TLS, or --insecure to listen on a network nevertheless"
)
WHY_METRICS = "metrics have no TLS: leave out metrics_port, or use --insecure beside --secure"
insecure_option = click.option(
    "--insecure",
    is_flag=True,
    help="Allow listening on a network, not only on loopback, although there is no authentication: "
    "anyone who can reach a node can read, change, and delete what is stored. With TLS, allow it for metrics.",
)
secure_option = click.option(
    "--secure",
    is_flag=True,
    help="Use TLS for clients, and certificates between nodes and for operators. A private CA is created on first use; "
    "clients need its file ca.pem. See docs/security.md.",
)
