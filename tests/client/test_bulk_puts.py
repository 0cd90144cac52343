"""Entries of put_many that a node refuses for now: what is there afterwards, and how long the next one is tried."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from ais_loader import ClusterOptions, connect, errors
from ais_loader.wire.generated import ais_objects_pb2 as pb
from storage_node.cluster.replication.write_plan import Result
from storage_node.services.put_writer import PutWriter
from tests.node.node_kit import serving

Refuse = Callable[[pb.SmallObject], errors.LoaderError | None]


class Refusing:
    """A node whose groups of small objects are refused in part; single PUTs are theirs too."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.refuse: Refuse = lambda small: None
        self.asked: list[str] = []
        store_group = PutWriter.store_group

        async def some(writer: PutWriter, objects: Sequence[pb.SmallObject]) -> list[Result]:
            self.asked += [small.name for small in objects]
            refused = [self.refuse(small) for small in objects]
            left = [small for small, error in zip(objects, refused, strict=True) if error is None]
            stored = iter(await store_group(writer, left) if left else ())
            return [next(stored) if error is None else error for error in refused]

        patch.setattr(PutWriter, "store_group", some)


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Refusing:
    return Refusing(monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("refusal", [errors.Overloaded, errors.NodeUnavailable])
def test_of_a_repeated_name_the_last_object_wins_when_an_earlier_one_is_sent_again(
    tmp_path: Path, node: Refusing, refusal: type[errors.LoaderError]
) -> None:
    left = [refusal("not now")]
    node.refuse = lambda small: left.pop() if small.data == b"first" and left else None
    with serving(tmp_path) as running, connect(running.url, options=ClusterOptions(retry_s=180.0)) as client:
        bucket = client.create_bucket("b")
        others = [(f"{at:04d}", b"") for at in range(400)]
        infos = bucket.put_many([("a", b"first"), *others, ("a", b"second")]).infos
        assert not left
        assert [infos[0].size_bytes, infos[-1].size_bytes] == [5, 6]
        assert bucket.get("a") == b"second"
        assert bucket.head("a") == infos[-1]


@pytest.mark.slow
def test_objects_that_are_refused_after_others_were_stored_are_tried_for_as_long_as_the_first(
    tmp_path: Path, node: Refusing
) -> None:
    names = ["bad", *(f"{at:04d}" for at in range(600)), "late"]

    def failures(retry_s: float) -> list[tuple[str, type[errors.LoaderError]]]:
        late = [errors.NodeUnavailable("too few copies")] * 2  # of its group, and of its first PUT alone
        node.refuse = lambda small: (
            errors.NodeUnavailable("too few copies")
            if small.name == "bad"
            else late.pop()
            if small.name == "late" and late
            else None
        )
        with connect(running.url, options=ClusterOptions(retry_s=retry_s)) as client:
            bucket = client.create_bucket("b", exist_ok=True)
            put = bucket.put_many(((name, b"") for name in names), on_error="return")
        assert not late
        return [(one.name, type(one.error)) for one in put.failures]

    with serving(tmp_path) as running:
        # On a machine that stands still, what is refused twice may not be tried a third time; but not for so long.
        assert [("bad", errors.OutcomeUnknown)] in map(failures, (0.5, 5.0, 30.0))


@pytest.mark.slow
def test_objects_that_nobody_takes_for_too_long_are_not_tried_one_by_one(tmp_path: Path, node: Refusing) -> None:
    node.refuse = lambda small: errors.NodeUnavailable("too few copies")
    names = [f"{at:04d}" for at in range(100)]
    with serving(tmp_path) as running, connect(running.url, options=ClusterOptions(retry_s=0.0)) as client:
        put = client.create_bucket("b").put_many([(name, b"") for name in names], on_error="return")
    assert {(one.name, type(one.error)) for one in put.failures} == {(name, errors.OutcomeUnknown) for name in names}
    assert len(node.asked) < 110
