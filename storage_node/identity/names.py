"""Names in certificates: a URI of a node, with its uuid, and the URI of operators."""

from __future__ import annotations

from collections.abc import Iterable

NODE_PREFIX = "ais-loader:node:"
OPERATOR_URI = "ais-loader:operator"


def node_uri(uuid: bytes) -> str:
    return NODE_PREFIX + uuid.hex()


def is_of_cluster(uri: str) -> bool:
    """Whether a URI in a certificate names a node or an operator."""
    return uri == OPERATOR_URI or uri.startswith(NODE_PREFIX)


def described(uris: Iterable[str]) -> str:
    """Describe for whom a certificate was issued, for messages."""
    names = [
        "an operator" if uri == OPERATOR_URI else f"node {uri.removeprefix(NODE_PREFIX)}"
        for uri in uris
        if is_of_cluster(uri)
    ]
    return " and ".join(names) or "neither a node nor an operator"
