"""Slots of what coded reads need from other nodes: it is served although all slots of parts are taken."""

from __future__ import annotations

from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ais_loader.wire.generated import ais_batch_pb2 as pb
from ais_loader.wire.redundancy import companion_name
from storage_node.batch.admission import Admission, Busy
from storage_node.settings.config import ServerConfig


def test_fragments_and_manifests_are_read_while_parts_wait_for_them() -> None:
    load = SimpleNamespace(memory_is_critical=lambda: False)
    node = SimpleNamespace(config=ServerConfig(port=0, max_active_batches=1), load=load, rates=None)
    admission = Admission(cast(Any, node))

    def part(bucket: str, name: str) -> pb.BatchRequest:
        return pb.BatchRequest(bucket=[bucket], name=[name], local=True)

    with ExitStack() as held:
        with pytest.raises(Busy, match="parts of batches"):
            for _ in range(100):
                held.enter_context(admission.admit(part("b", "a"), lambda: None))
        held.enter_context(admission.admit(part(companion_name(bytes(16)), "x/0/0"), lambda: None))
        held.enter_context(admission.admit(part("b", "/.coded/" + "0" * 32), lambda: None))
