"""What a node counts of promotions: files and bytes by how they were taken, what was there already, what failed."""

from __future__ import annotations

from pathlib import Path

import pytest

from ais_loader import connect
from storage_node.server import NodeServer
from storage_node.store.files.clone_or_copy import FROM_BYTES
from tests.node.cluster_kit import BUCKET
from tests.node.node_kit import bucket_of, serving
from tests.node.test_metrics import value
from tests.node.write_kit import cluster_of
from tests.patience import PATIENT_CLIENT

pytestmark = pytest.mark.slow

LARGE_BYTES = FROM_BYTES + 1
SMALL = {"a": b"1", "b/c": b"22"}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Two small files, a large one, and a link that is refused."""
    folder = tmp_path / "source"
    for name, data in SMALL.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    (folder / "large").write_bytes(bytes(LARGE_BYTES))
    (folder / "out").symlink_to("/etc/hostname")
    return folder


def counted(node: NodeServer) -> dict[str, tuple[int, int]]:
    """Files and bytes, by how they were taken; only those that are not 0."""
    hows = ("linked", "cloned", "copied_by_server", "copied")
    found = {
        how: (
            int(value(node, "promoted_files_total", how=how)),
            int(value(node, "promoted_bytes_total", how=how)),
        )
        for how in hows
    }
    return {how: numbers for how, numbers in found.items() if any(numbers)}


def test_what_is_promoted_skipped_and_refused_is_counted(tmp_path: Path, source: Path) -> None:
    with serving(tmp_path, metrics_port=0, promote_roots=(str(source),)) as node, bucket_of(node) as bucket:
        first = bucket.promote(source, on_error="return")
        assert (first.promoted, first.skipped, first.failed) == (3, 0, 1)
        # Some file systems share blocks.
        taken = counted(node)
        assert sum(files for files, _ in taken.values()) == 3 and taken.keys() <= {"copied", "cloned"}
        assert sum(taken_bytes for _, taken_bytes in taken.values()) == LARGE_BYTES + 3
        assert value(node, "promote_errors_total", kind="source-refused") == 1
        assert value(node, "promote_skipped_files_total") == 0
        bucket.promote(source, on_error="return")
        assert counted(node) == taken
        assert value(node, "promote_skipped_files_total") == 3
        assert value(node, "promote_errors_total", kind="source-refused") == 2


def test_in_a_cluster_each_node_counts_its_share_and_what_is_given_up_as_linked(tmp_path: Path, source: Path) -> None:
    roots = (str(source),)
    with cluster_of(tmp_path / "nodes", 2, copies=2, promote_roots=roots, metrics_port=0) as cluster:
        with connect(cluster.nodes[0].url, options=PATIENT_CLIENT) as client:
            assert client.bucket(BUCKET).promote(source, move=True, on_error="return").promoted == 3
        shares = [counted(node) for node in cluster.nodes]
        assert sum(share.get("linked", (0, 0))[0] for share in shares) == 1
        assert sum(files for share in shares for files, _ in share.values()) == 3
        assert sum(taken_bytes for share in shares for _, taken_bytes in share.values()) == LARGE_BYTES + 3
        assert sum(value(node, "promote_errors_total", kind="source-refused") for node in cluster.nodes) == 1
