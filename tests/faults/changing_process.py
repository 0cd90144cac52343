"""A process that changes a cluster's map, and dies at a step of it if it is told to.

Run as a module with one JSON argument: `endpoints`, `buckets` (one change each), and maybe `die`: the step after which
the process ends as by kill -9. Prints one line of JSON: the version of the last map.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import NoReturn

from ais_loader.wire.generated import ais_cluster_pb2 as pb
from storage_node.cluster.consensus.change import NodeConnections, drive
from storage_node.cluster.consensus.effects import Answers, Ask
from storage_node.cluster.consensus.proposer import Proposer
from storage_node.cluster.map.mutations import create_bucket
from storage_node.context.channels import Caller, read_secret

STEPS = ("surveyed", "prepared:1", "prepared:3", "accepted:1", "accepted:2", "accepted:3", "learned:1", "learned:2")
"""What was done last, and on how many nodes."""
TIMEOUT_S = 180.0


class DyingChannels(NodeConnections):
    def __init__(self, die: str, caller: Caller) -> None:
        super().__init__(caller)
        step, _, count = die.partition(":")
        self._kind = {
            "surveyed": pb.GetMapRequest,
            "prepared": pb.PrepareRequest,
            "accepted": pb.AcceptRequest,
            "learned": pb.LearnRequest,
        }.get(step)
        self._count = int(count) if count else None

    def ask(self, ask: Ask) -> Answers:
        if self._kind is None or not isinstance(next(iter(ask.requests.values())), self._kind):
            return super().ask(ask)
        super().ask(Ask(dict(list(ask.requests.items())[: self._count])))
        _die()


def _die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("still alive")


def main() -> None:
    task = json.loads(sys.argv[1])
    version = 0
    with DyingChannels(task.get("die", ""), Caller(read_secret(task["peer_secret_file"]))) as channels:
        for name in task["buckets"]:
            steps = Proposer(task["endpoints"], create_bucket(name), time.monotonic).run(TIMEOUT_S)
            version = drive(steps, channels).version
    print(json.dumps({"version": version}))


if __name__ == "__main__":
    main()
