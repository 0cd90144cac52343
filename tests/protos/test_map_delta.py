"""Deltas between maps: what they make of a map, and that they are never applied to another one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ais_loader.wire.generated import ais_cluster_pb2 as pb
from ais_loader.wire.map_delta import applied, carried, delta_of

IDS = st.lists(st.integers(0, 5), max_size=6)


def map_of(version: int, nodes: list[int], buckets: list[int], changes: list[int], ballot: int = 0) -> pb.ClusterMap:
    return pb.ClusterMap(
        cluster_uuid=b"c" * 16,
        version=version,
        ballot=pb.Ballot(number=ballot) if ballot else None,
        node=[pb.MapNode(uuid=bytes([one]) * 16, host=f"h{one}") for one in nodes],
        bucket=[pb.MapBucket(name=f"b{one}", copies=1 + one) for one in buckets],
        change=[bytes([one]) * 16 for one in changes],
    )


MAPS = st.builds(map_of, st.integers(1, 9), IDS, IDS, IDS, st.integers(0, 3))


@given(base=MAPS, map_=MAPS, other=MAPS)
def test_a_delta_makes_the_map_of_its_base_and_nothing_of_another_map(
    base: pb.ClusterMap, map_: pb.ClusterMap, other: pb.ClusterMap
) -> None:
    before = base.SerializeToString(deterministic=True)
    delta = pb.MapDelta.FromString(delta_of(base, map_).SerializeToString())
    assert applied(delta, base) == map_
    assert base.SerializeToString(deterministic=True) == before, "a map is never modified"
    assert applied(delta, other) in (None, map_)
    assert carried(pb.LearnRequest(delta=delta), base) == map_
    assert carried(pb.LearnRequest(map=map_), None) == map_
    if base.version != other.version:
        assert carried(pb.LearnRequest(delta=delta), other) is None


@given(
    base=MAPS,
    splices=st.lists(st.tuples(*[st.integers(0, 12)] * 2, *[st.integers(0, (1 << 32) - 1)] * 2), max_size=3),
)
def test_a_delta_of_whatever_numbers_is_refused(base: pb.ClusterMap, splices: list[tuple[int, ...]]) -> None:
    delta = pb.MapDelta(base_version=base.version, checksum=1)
    for field, dropped, kept, removed in splices:
        delta.splice.add(field=field, dropped=dropped, kept=kept, removed=removed)
    assert applied(delta, base) is None


def test_the_delta_of_a_new_bucket_is_short_whatever_there_is() -> None:
    base = map_of(1000, list(range(9)), list(range(200)), list(range(64)))
    map_ = map_of(1001, list(range(9)), [*range(200), 201], list(range(1, 65)))
    assert delta_of(base, map_).ByteSize() < 120 < base.ByteSize() // 10
