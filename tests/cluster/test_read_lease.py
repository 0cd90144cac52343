"""In every order of asking, granting, withholding and starting anew nobody reads what a write has replaced."""

from __future__ import annotations

import pytest
from lease_model import SLIPS, Model, Slip

from storage_node.cluster.replication.read_lease import LeaseHeld, LeasesGranted, lease_s, over_s
from tests.table import table


@pytest.mark.parametrize(("lease", "until"), [(1, 2), pytest.param(2, 3, marks=pytest.mark.slow)])
def test_of_three_nodes_none_reads_out_what_was_replaced_without_it(lease: int, until: int) -> None:
    assert not Model(3, lease=lease, until=until).reads_old()


@table("slip", SLIPS)
def test_without_each_part_of_the_agreement_old_copies_are_read(slip: Slip) -> None:
    assert Model(3, lease=1, until=3, slip=slip).reads_old()


def test_a_lease_ends_when_a_majority_has_not_renewed_it() -> None:
    held = LeaseHeld()
    others = [b"1", b"2", b"3", b"4"]
    assert held.until_s(others) == float("-inf")
    held.granted(b"1", 10.0, 64.0)
    assert held.until_s(others) == float("-inf"), "two of five are no majority"
    held.granted(b"2", 20.0, 64.0)
    assert held.until_s(others) == 10.0 + 63.0
    held.granted(b"1", 30.0, 64.0)
    held.granted(b"2", 5.0, 64.0)
    assert held.until_s(others) == 20.0 + 63.0, "an answer that comes late takes nothing back"
    assert held.until_s([b"1", b"3"]) == 30.0 + 63.0, "by another map"


def test_a_lease_is_over_when_no_majority_is_left_whose_grants_last() -> None:
    assert over_s(3, {b"1": 7.0}) is None
    assert over_s(3, {b"1": 7.0, b"2": 9.0}) == 9.0
    assert over_s(5, {b"1": 7.0, b"2": 9.0}) is None
    assert over_s(5, {b"1": 7.0, b"2": 9.0, b"3": 8.0, b"4": 99.0}) == 9.0


def test_a_node_that_was_started_anew_may_have_granted_a_lease_a_moment_ago() -> None:
    granted = LeasesGranted(100.0, 3.0)
    assert granted.left_s(b"1", 101.0) == 2.0
    granted.grant(b"1", 102.0, 3.0)
    assert granted.left_s(b"1", 103.5) == 1.5
    assert granted.left_s(b"2", 103.5) == 0.0


def test_two_nodes_have_no_leases_and_many_have_longer_ones() -> None:
    assert lease_s(3.0, 2) == 0.0
    assert lease_s(3.0, 3) == 3.0
    assert lease_s(3.0, 64) == 6.0
