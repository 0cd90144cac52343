"""Settings file of a cluster, stored on every host beside its nodes' drives: ROOT/.cluster/settings.json.

Nodes read it whenever they start to serve, however they are started. Its version identifies the newest file among
several hosts': a host that was away during a change gets the settings from the next `cluster up`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from storage_node.ops.ray_head import FOLDER_NAME
from storage_node.settings.sources import WrongSetting
from storage_node.store.files.growing_file import write_atomically
from storage_node.store.permissions import trusted_bytes


@dataclass(frozen=True, slots=True)
class KeptSettings:
    version: int = 0
    """0: no settings have been made."""
    values: dict[str, Any] = field(default_factory=dict)
    """See `storage_node.settings.sources`."""
    problem: str = ""
    """Reason why the file cannot be used."""


def path_of(root: Path) -> Path:
    return root / FOLDER_NAME / "settings.json"


def read(root: Path) -> KeptSettings:
    """Read the file. Raises WrongSetting if it cannot be decoded, OSError if it cannot be read."""
    try:
        kept = json.loads(trusted_bytes(path_of(root)))
        return KeptSettings(int(kept["version"]), dict(kept["settings"]))
    except FileNotFoundError:
        return KeptSettings()
    except (ValueError, KeyError, TypeError) as error:
        raise WrongSetting(f"{path_of(root)} is damaged ({error}); `cluster up --config FILE` replaces it") from error


def write(root: Path, kept: KeptSettings) -> None:
    """Write the file, atomically and durably. Raises OSError."""
    path_of(root).parent.mkdir(mode=0o700, exist_ok=True)
    write_atomically(path_of(root), json.dumps({"version": kept.version, "settings": kept.values}, indent=1).encode())
