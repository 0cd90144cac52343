"""Gateways as processes of their own, over an embedded store, a node, and a cluster."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from ais_loader.testing import NodeProcess, throwaway_folder
from tests.cluster_processes import ClusterProcesses

STORES = ("embedded", "node", "cluster")
_STOP_S = 20.0


@dataclass(frozen=True, slots=True)
class Key:
    """An access key of the gateway."""

    access_key: str
    secret_key: str


MAIN, OTHER = Key("doors-key", "doors-secret"), Key("other-key", "other-secret")


@contextmanager
def store_url(kind: str, folder: Path, arguments: Sequence[str] = ()) -> Iterator[str]:
    """Yield what a gateway connects to: a folder, or the address of a node or a cluster below `folder`.

    Args:
        arguments: Further ones of the nodes.
    """
    if kind == "embedded":
        yield str(folder / "store")
    elif kind == "node":
        with NodeProcess(folder / "drive", arguments=arguments) as node:
            yield node.url
    else:
        with ClusterProcesses(folder, 3, arguments=arguments) as cluster:
            yield cluster.url


@contextmanager
def gateway(
    kind: str, arguments: Sequence[str] = (), *, with_keys: bool = True, node_arguments: Sequence[str] = ()
) -> Iterator[str]:
    """Yield the URL of a gateway over a new store of this kind.

    Args:
        arguments: Further ones of `ais-loader gateway`.
        node_arguments: Further ones of each node.
        with_keys: Whether requests have to be signed with `MAIN` or `OTHER`.
    """
    with ExitStack() as stack:
        folder = stack.enter_context(throwaway_folder())
        keys = folder / "keys.json"
        keys.touch(0o600)
        rows = [{"access_key": key.access_key, "secret_key": key.secret_key} for key in (MAIN, OTHER)]
        keys.write_text(json.dumps(rows))
        url = stack.enter_context(store_url(kind, folder, node_arguments))
        command = [sys.executable, "-m", "ais_loader.cli", "gateway", url, "--port", "0", "--json", *arguments]
        command += ["--keys", str(keys)] if with_keys else ["--no-keys"]
        serving = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        stack.callback(_stop, serving)
        assert serving.stdout is not None
        yield json.loads(serving.stdout.readline())["url"]


def _stop(serving: subprocess.Popen[str]) -> None:
    serving.terminate()
    try:
        serving.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        serving.kill()
