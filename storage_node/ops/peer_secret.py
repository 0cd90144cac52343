"""Secret of a cluster below a root: its nodes and its operators' commands prove to each other that they know it.

ROOT/.cluster/peer-secret     created for a root that has a Ray of its own; used wherever it exists

The setting `peer_secret_file` names another file. On several machines, each needs the same file.
"""

from __future__ import annotations

from pathlib import Path

from storage_node.context.channels import Caller, make_secret, read_secret
from storage_node.ops import cluster_identity, settings_store
from storage_node.ops.ray_head import FOLDER_NAME, ClusterError
from storage_node.settings.sources import WrongSetting

SETTING = "peer_secret_file"


def path_of(root: Path) -> Path:
    return root / FOLDER_NAME / "peer-secret"


def make(root: Path, secret: str = "") -> None:
    """Create the secret unless there is one. Raises OSError."""
    path = path_of(root)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    make_secret(path, secret)


def default_file(root: Path) -> str:
    """Return the secret file of nodes below a root whose settings name none; empty if there is none."""
    return str(path_of(root)) if path_of(root).exists() else ""


def operator(root: Path) -> Caller:
    """Return the identity with which commands call the nodes below a root. Raises ClusterError."""
    try:
        named = settings_store.read(root).values.get(SETTING, "")
    except (OSError, WrongSetting):
        named = ""  # code that needs the settings reports the error
    try:
        return Caller(read_secret(named or default_file(root)), credentials=cluster_identity.operator(root))
    except (OSError, ValueError) as error:
        raise ClusterError(f"the cluster's secret cannot be read: {error}") from error
