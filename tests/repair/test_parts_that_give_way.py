"""A part that a node sends to another one, and that gave its place up in the middle, goes on where it stopped."""

from __future__ import annotations

from pathlib import Path

import pytest

from ais_loader.testing import eventually, seeded_bytes
from ais_loader.wire.generated import ais_batch_pb2 as pb
from tests.node.cluster_kit import Answer, LocalCluster
from tests.node.node_kit import RawSession, batch_of

MiB = 1 << 20


@pytest.mark.slow
@pytest.mark.parametrize("large", [False, True], ids=["between entries", "in the middle of one"])
def test_a_part_that_gave_way_is_asked_for_again_from_where_it_stopped(tmp_path: Path, large: bool) -> None:
    objects = {f"{at:02d}": seeded_bytes(20 * MiB if large else MiB, seed=at) for at in range(6 if large else 40)}
    with LocalCluster(
        tmp_path, 2, spread=objects, max_active_batches=1, still_s=0.2, reject_retry_after_ms=20, peer_window_bytes=MiB
    ) as cluster:
        cluster.put(objects)
        names = [name for name in objects if cluster.owners(name)[0] == 1]
        service = cluster.batches(1)
        parts, rejections = service.resources.parts, service.node.metrics.rejections
        with RawSession(cluster.nodes[0].url) as session:
            session.send(1, batch_of(names, ordered=True, credit=1))
            answer = Answer.of([session.receive_frame()])
            eventually(lambda: parts.stalled == 1)
            with RawSession(cluster.nodes[1].url) as hostile:
                for batch_id in range(15):  # of the 16 places for parts two are not for one tenant
                    hostile.send(batch_id, batch_of(names[:1], credit=0, local=True))
                eventually(lambda: rejections["still"] == 1)
                session.send(1, pb.Credit(payload_bytes=1 << 40))
                for frame in session.answer(1)[0]:
                    answer.take(frame)
        assert [answer.data[at] for at in answer.order] == [objects[name] for name in names]
        cluster.settle()
