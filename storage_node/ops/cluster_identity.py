"""Identity folder of a cluster below a root: ROOT/.cluster/identity, made by `cluster up --secure`.

Wherever it exists, nodes and operators' commands use TLS. On several machines, each needs the same CA: the folder is
copied to them before the nodes start there.
"""

from __future__ import annotations

from pathlib import Path

from storage_node.ops.ray_head import FOLDER_NAME, ClusterError
from storage_node.security.identity.credentials import ChannelCredentials
from storage_node.security.identity.identity_folder import IdentityFolder


def folder_of(root: Path) -> IdentityFolder:
    return IdentityFolder(root / FOLDER_NAME / "identity")


def of_nodes(root: Path) -> Path | None:
    """Return the folder that issues the certificates of nodes below a root; None without TLS."""
    folder = folder_of(root)
    return folder.path if folder.exists else None


def ca_of(root: Path) -> bytes:
    """Return the CA below a root of this machine; empty without one. Raises OSError."""
    folder = folder_of(root)
    return folder.ca_file.read_bytes() if folder.exists else b""


def scheme_of(root: Path) -> str:
    """Return the scheme of the URLs of nodes below a root."""
    return "grpcs://" if folder_of(root).exists else "grpc://"


def operator(root: Path) -> ChannelCredentials | None:
    """Return the certificate with which commands call the nodes below a root; None without TLS. Raises ClusterError."""
    folder = folder_of(root)
    return operator_of(folder) if folder.exists else None


def operator_of(folder: IdentityFolder) -> ChannelCredentials:
    """Return the operator's certificate in a folder. Raises ClusterError."""
    try:
        return ChannelCredentials(folder.operator_files())
    except (OSError, ValueError) as error:
        raise ClusterError(f"the operator's certificate cannot be used: {error}") from error
