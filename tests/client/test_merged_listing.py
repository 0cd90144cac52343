"""Listings of several nodes as one: order, newest versions, and when a silent node can be done without."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ais_loader.entry import ObjectInfo
from ais_loader.errors import BucketNotFound, DriveFailed, NodeUnavailable
from ais_loader.transport.cluster.listing import merged_listing


def info(name: str, version: str = "1") -> ObjectInfo:
    return ObjectInfo("b", name, 1, version, 0, 0)


class Nodes:
    """Each node's listing; an error in it is raised where it stands."""

    def __init__(self, *listings: list[ObjectInfo | Exception]) -> None:
        self.listings = listings
        self.begun = [0] * len(listings)

    def __call__(self, at: int) -> Iterator[ObjectInfo]:
        self.begun[at] += 1
        for found in self.listings[at]:
            if isinstance(found, Exception):
                raise found
            yield found


def merged(nodes: Nodes, copies: int, hosts: list[str] | None = None) -> list[tuple[str, str]]:
    names = hosts or [f"host-{at}" for at in range(len(nodes.listings))]
    return [(found.name, found.version) for found in merged_listing(nodes, names, copies=lambda: copies, retry_s=0.05)]


def test_names_come_once_in_the_order_of_their_bytes_with_their_newest_version() -> None:
    nodes = Nodes([info("a", "9"), info("é", "2")], [info("a", "10"), info("b")], [], [info("Z"), info("é", "1")])
    assert merged(nodes, 2) == [("Z", "1"), ("a", "10"), ("b", "1"), ("é", "2")]


def test_a_node_that_breaks_off_is_done_without_while_there_are_other_copies() -> None:
    nodes = Nodes([info("a"), NodeUnavailable("gone")], [info("a"), info("b")], [info("b"), info("c")])
    assert merged(nodes, 2) == [("a", "1"), ("b", "1"), ("c", "1")]


def test_a_node_that_never_answers_is_an_error_where_it_may_have_the_only_copy() -> None:
    nodes = Nodes([NodeUnavailable("gone")], [info("b")])
    with pytest.raises(NodeUnavailable, match="gone"):
        merged(nodes, 1)
    assert nodes.begun[0] > 1


def test_a_node_that_lacks_a_drive_is_done_without_or_says_so_at_once() -> None:
    nodes = Nodes([DriveFailed("no drive")], [info("a")], [info("a"), info("b")])
    assert merged(nodes, 2) == [("a", "1"), ("b", "1")]
    with pytest.raises(DriveFailed, match="no drive"):
        merged(nodes, 1)
    assert nodes.begun[0] == 2, "it is not asked again: the drive is no better in a moment"


def test_two_silent_nodes_of_one_host_are_one_copy_and_of_two_hosts_two() -> None:
    nodes = Nodes([NodeUnavailable("x")], [NodeUnavailable("y")], [info("a")])
    assert merged(nodes, 2, ["h", "h", "i"]) == [("a", "1")]
    with pytest.raises(NodeUnavailable):
        merged(nodes, 2, ["h", "i", "j"])


def test_a_bucket_that_no_node_has_is_not_found_and_one_that_some_have_is_listed() -> None:
    with pytest.raises(BucketNotFound):
        merged(Nodes([BucketNotFound("b")], [BucketNotFound("b")]), 1)
    assert merged(Nodes([BucketNotFound("b")], [info("a")]), 1) == [("a", "1")]
