"""The floors of the house: imports run downwards only, and a few packages are imported in one room alone.

The table of docs/architecture.md has the same floors (tests/docs/test_architecture.py). A module lives on the floor
that has the longest name it begins with; it may import what lives on its own floor or below. What is imported for
annotations alone (under TYPE_CHECKING) is no import.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.table import table

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[1]

# From the ground upwards; names on one line share a floor.
WIRE = """
ais_loader.errors ais_loader.extras ais_loader.file_formats ais_loader.fork_barrier ais_loader.name_matching
ais_loader.tracebacks ais_loader.version
ais_loader.wire.generated
ais_loader.wire
ais_loader.wire.gather
"""
CLIENT = f"""
{WIRE}
ais_loader.plans
ais_loader.values
ais_loader.transport
ais_loader.transport.session
ais_loader.transport.grpc
ais_loader.transport.cluster
storage_node
ais_loader.transport.embedded_puts ais_loader.transport.embedded_streams
ais_loader.transport.embedded
ais_loader.transport.same_host
ais_loader.transforms
ais_loader.objects ais_loader.objects.remote
ais_loader
ais_loader.loading
ais_loader.testing
ais_loader.ui
ais_loader.bench
ais_loader.cli
ais_loader.integrations
"""
NODE = f"""
{WIRE}
storage_node.store.checksum storage_node.store.failpoints storage_node.store.names
storage_node.store.permissions storage_node.store.machine_memory storage_node.store.native
storage_node.store.format
storage_node.store.drive.preconditions
storage_node.store.files
storage_node.store.archives
storage_node.store.store_record storage_node.store.quotas
storage_node.store.drive
storage_node.store.damaged_copies
storage_node.store.pool
storage_node.store.record_keeper
storage_node.store.pool.membership
storage_node.store
storage_node.store.read
storage_node.store.compose storage_node.store.scrub
storage_node.store.fsck
storage_node.settings
storage_node.limits
storage_node.security.identity
storage_node.security.rights
storage_node.security.audit
storage_node.context
storage_node.cluster.coding.codec
storage_node.cluster.consensus
storage_node.cluster.map
storage_node.cluster.replication
storage_node.cluster.repair
storage_node.cluster.coding
storage_node.cluster.snapshots
storage_node.cluster.drives
storage_node.promote
storage_node.remote.drivers
storage_node.remote.location
storage_node.remote.archives
storage_node.remote.copies
storage_node.remote.inventory
storage_node.remote.write_back
storage_node.remote.arriving
storage_node.remote.fetching.fetch_owner
storage_node.remote.tier_context
storage_node.remote.fetching
storage_node.remote.descriptions storage_node.remote.remote_reads storage_node.remote.remote_writes
storage_node.remote.bucket_writes
storage_node.remote.tier
storage_node.remote storage_node.remote.ahead
storage_node.remote.embedded
storage_node.etl
storage_node.batch
storage_node.batch.gather
storage_node.batch.session
storage_node.services.lane
storage_node.services
storage_node.metrics
storage_node.server
storage_node.ops
ais_loader
storage_node.cli
"""
FLOORS = {
    wing: {name: number for number, line in enumerate(text.strip().splitlines()) for name in line.split()}
    for wing, text in (("ais_loader", CLIENT), ("storage_node", NODE))
}
ROOMS = {
    # A library, or the other wing: the only rooms that import it.
    "ray": (
        "storage_node.ops",
        "ais_loader.testing",
        "ais_loader.integrations.ray_data",
    ),
    "storage_node": (
        "storage_node",
        "ais_loader.transport.embedded",
        "ais_loader.transport.embedded_puts",
        "ais_loader.transport.embedded_streams",
        "ais_loader.integrations.gateway",
    ),
    "rocksdict": ("storage_node.store",),
    "jwt": ("storage_node.security.rights",),
    "prometheus_client": ("storage_node.metrics", "ais_loader.loading"),
    "torch": (
        "ais_loader.decoders",
        "ais_loader.loading",
        "ais_loader.training",
        "ais_loader.values.packed",
    ),
    "cryptography": ("storage_node.security",),
    "obstore": ("storage_node.remote",),
    "botocore": ("ais_loader.integrations.gateway",),
    "fsspec": ("ais_loader.integrations.fsspec",),
    "webdataset": ("ais_loader.integrations.webdataset",),
    "multistorageclient": ("ais_loader.integrations.msc",),
    "click": ("ais_loader.cli", "ais_loader.integrations.gateway", "ais_loader.integrations.nemo", "storage_node.cli"),
    "grpc": ("ais_loader.transport", "ais_loader.wire.generated", "ais_loader.testing", "storage_node"),
}


def modules() -> dict[str, Path]:
    """Every module of the two wings by the name under which it is installed."""
    found = {}
    for folder, package in (
        ("ais_loader", "ais_loader"),
        ("storage_node", "storage_node"),
        ("integrations", "ais_loader.integrations"),
    ):
        for path in (ROOT / folder).rglob("*.py"):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            found[".".join([package, *parts]).removesuffix(".__init__")] = path
    return found


MODULES = modules()


@functools.cache
def imported(module: str) -> frozenset[str]:
    """What a module imports when it is imported or run: modules where they are ours, else packages."""
    return frozenset(_imported(module))


def _imported(module: str) -> Iterator[str]:
    tree = ast.parse(MODULES[module].read_text())
    for_annotations = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for child in node.body
        for inner in ast.walk(child)
    }
    for node in ast.walk(tree):
        if id(node) in for_annotations:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = node.module or ""
            if node.level:
                above = module if MODULES[module].name == "__init__.py" else module.rpartition(".")[0]
                for _ in range(node.level - 1):
                    above = above.rpartition(".")[0]
                package = f"{above}.{package}".rstrip(".")
            for alias in node.names:
                inner = f"{package}.{alias.name}"
                yield inner if inner in MODULES else package


def floor(wing: str, module: str) -> int:
    name = module
    while name and name not in FLOORS[wing]:
        name = name.rpartition(".")[0]
    return FLOORS[wing].get(name, -1)


@pytest.mark.parametrize("wing", FLOORS)
def test_imports_run_downwards_only(wing: str) -> None:
    upwards = [
        f"{module} imports {other}"
        for module in sorted(MODULES)
        if module.partition(".")[0] == wing
        for other in imported(module)
        if other in MODULES and not 0 <= floor(wing, other) <= floor(wing, module)
    ]
    assert upwards == []


def test_the_gateway_takes_of_the_node_what_serves_any_server() -> None:
    taken = {
        other
        for module in MODULES
        if module.startswith("ais_loader.integrations.gateway")
        for other in imported(module)
        if other.startswith("storage_node")
    }
    assert sorted(taken) == [
        "storage_node.cli.insecure",
        "storage_node.limits.bounded_xml",
        "storage_node.limits.call_slots",
        "storage_node.limits.counters",
        "storage_node.limits.pace",
        "storage_node.metrics.declarations",
        "storage_node.metrics.exporter",
        "storage_node.settings.config",
        "storage_node.store.checksum",
        "storage_node.store.machine_memory",
        "storage_node.store.names",
        "storage_node.store.permissions",
    ]


@table("package", ROOMS)
def test_a_package_is_imported_in_its_own_rooms_only(package: str) -> None:
    def inside(module: str) -> bool:
        return any(module == room or module.startswith(f"{room}.") for room in ROOMS[package])

    found = {module for module in MODULES for other in imported(module) if f"{other}.".startswith(f"{package}.")}
    assert sorted(module for module in found if not inside(module)) == []
    assert found, f"nothing imports {package} any more: drop the rule"


def test_every_floor_is_inhabited() -> None:
    for floors in FLOORS.values():
        empty = [name for name in floors if not any(m == name or m.startswith(f"{name}.") for m in MODULES)]
        assert empty == []
