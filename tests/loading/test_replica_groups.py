"""Ranks of a tensor-parallel group share what one of them reads: a node counts one loader for each group."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch.distributed
from replica_kit import COUNT, PLAN, had, processes, told

from ais_loader import BatchLoader, MapDataset, ShufflePlan, connect
from ais_loader.errors import InvalidRequest
from ais_loader.loading import replicas
from ais_loader.testing import NodeProcess, eventually
from tests.table import table

RANKS, TENSOR = 8, 4
OBJECT_BYTES = 3000
BATCHES, BYTES = 'ais_loader_batches_total{kind="many",outcome="complete"}', "ais_loader_session_sent_bytes_total"


def collate(samples: list[Any]) -> Any:
    return torch.from_numpy(np.stack([np.frombuffer(sample, np.uint8) for sample in samples]))


@contextmanager
def node(folder: Path) -> Iterator[NodeProcess]:
    with NodeProcess(folder / "store", metrics=True) as one:
        with connect(one.url) as client:
            objects = {f"{at:03}": bytes([at]) * OBJECT_BYTES for at in range(COUNT)}
            client.create_bucket("b").put_many(objects.items())
        yield one


def counts(one: NodeProcess) -> dict[str, float]:
    numbers = one.numbers()
    return {name: numbers[name] for name in (BATCHES, BYTES)}


def join_ranks(folder: Path, rank: int, count: int) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", f"file://{folder}/ranks", rank=rank, world_size=count)


def groups_of(size: int) -> Any:
    """Return this rank's group of neighbours, as Megatron's tensor groups are."""
    first, ranks = range(0, torch.distributed.get_world_size(), size), torch.distributed.get_rank()
    made = [torch.distributed.new_group([*range(at, at + size)]) for at in first]
    return made[ranks // size]


def write(folder: Path, rank: int, loader: BatchLoader, epochs: int) -> None:
    with (folder / f"had-{rank}").open("w") as file:
        for _ in range(epochs):
            for batch in loader:
                file.write(json.dumps([told(batch), loader.state_dict()]) + "\n")
                batch.zero_()


def train_groups(folder: Path, given: Any, epochs: int, options: dict[str, Any], plan: Any) -> None:
    rank = given[0]
    join_ranks(folder, rank, RANKS)
    dataset = MapDataset(options["url"], "ais://b/")
    if options["how"] == "mesh":
        mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (2, TENSOR), mesh_dim_names=("dp", "tp"))
        group, place = mesh["tp"], {}
    else:
        group = groups_of(TENSOR)
        place = {"rank": rank // TENSOR, "world_size": 2} if options["how"] == "placed" else {}
    loader = BatchLoader(dataset, plan, collate=collate, replicas=group, workers=options["workers"], **place)
    write(folder, rank, loader, epochs)
    state = loader.state_dict()
    loader.load_state_dict(state | {"epoch": 0, "step": 4})
    assert [told(batch) for batch in loader] == [batch for batch, _ in had(folder, rank)[2:6]]
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def train_alone(folder: Path, given: Any, epochs: int, options: dict[str, Any], plan: Any) -> None:
    dataset = MapDataset(options["url"], "ais://b/")
    loader = BatchLoader(dataset, plan, collate=collate, rank=given[0], world_size=2, workers=options["workers"])
    write(folder, given[0], loader, epochs)
    loader.load_state_dict(loader.state_dict() | {"epoch": 0, "step": 4})
    assert len(list(loader)) == 4


@pytest.mark.slow
@pytest.mark.timeout(1500)
@table("how, workers", [("group", 0), ("mesh", 0), ("placed", 1)])
def test_a_node_serves_each_group_of_ranks_as_it_serves_one_loader(tmp_path: Path, how: str, workers: int) -> None:
    found: dict[str, Any] = {}
    for name, target, ranks in (("together", train_groups, RANKS), ("alone", train_alone, 2)):
        folder = tmp_path / name
        folder.mkdir()
        with node(folder) as one:
            before = counts(one)
            options = {"url": one.url, "how": how, "workers": workers}
            with processes("fork", folder, ranks, 2, options, target, ShufflePlan(COUNT, 8, seed=3)) as all_ranks:
                for rank in all_ranks:
                    rank.join(400)
                    assert rank.exitcode == 0
            # The node notes the end of a batch after it has sent all of it.
            eventually(lambda one=one, least=before[BATCHES] + 32: counts(one)[BATCHES] >= least)
            served = {key: value - before[key] for key, value in counts(one).items()}
            found[name] = served, [had(folder, rank) for rank in range(ranks)]
    served, batches = found["together"]
    own_served, own = found["alone"]
    for rank in range(RANKS):
        assert batches[rank] == own[rank // TENSOR], f"rank {rank}"
    assert served[BATCHES] == own_served[BATCHES] == 2 * (6 + 6 + 4)
    assert served[BYTES] == pytest.approx(own_served[BYTES], rel=0.005)  # one batch more would be 3 %


def refused(folder: Path, given: Any, epochs: int, options: dict[str, Any], plan: Any) -> None:
    rank = given[0]
    join_ranks(folder, rank, 4)
    half, dataset = groups_of(2), range(COUNT)
    low, high = torch.distributed.new_group([0, 1, 2]), torch.distributed.new_group([2, 3])
    cases: dict[str, Any] = {
        "another place in a group": {"replicas": half, "rank": rank % 2, "world_size": 2},
        "a group that not all have": {"replicas": (low, low, high, high)[rank]},
        "another seed in another group": {"replicas": half, "plan": ShufflePlan(COUNT, 8, seed=rank // 2)},
        "a sampler that decides by itself": {"replicas": half, "plan": [[rank // 2, 5]]},
        "a sampler of the rank": {"replicas": half, "plan": [[rank, 5]]},
        "one without replicas": {"replicas": half} if rank else None,
    }
    found = {}
    for case, arguments in cases.items():
        torch.distributed.barrier()
        if arguments is None:
            continue
        replicas.MEET_S = 2.0 if case == "one without replicas" else 300.0
        arguments = {"plan": plan} | arguments
        try:
            loader = BatchLoader(dataset, arguments.pop("plan"), **arguments)
            found[case] = str(next(iter(loader)))
            loader.close()
        except InvalidRequest as error:
            found[case] = str(error)
    (folder / f"told-{rank}").write_text(json.dumps(found))
    torch.distributed.barrier()


@pytest.mark.slow
def test_groups_that_do_not_fit_are_refused_by_all_ranks(tmp_path: Path) -> None:
    with processes("fork", tmp_path, 4, 1, {}, refused) as ranks:
        for rank in ranks:
            rank.join(240)
            assert rank.exitcode == 0
    found = [json.loads((tmp_path / f"told-{rank}").read_text()) for rank in range(4)]
    wanted = {
        "another place in a group": "need the same group, rank and world_size",
        "a group that not all have": "need the same group, rank and world_size",
        "another seed in another group": "reads another plan",
        "a sampler that decides by itself": "5]",
        "a sampler of the rank": "they differ: digest of its numbers",
        # Another one may be late, on a busy machine.
        "one without replicas": "rank 0(, [123])* of 4 has not made its loader of replicas within 2 s",
    }
    for rank, texts in enumerate(found):
        for case, text in texts.items():
            assert re.search(wanted[case], text), f"rank {rank}, {case}: {text}"
        assert len(texts) == (6 if rank else 5)


@pytest.mark.slow
def test_a_rank_that_reads_for_its_group_is_killed_and_the_group_reads_on(tmp_path: Path) -> None:
    with node(tmp_path) as one:
        options = {"url": one.url, "plan": PLAN}
        with processes("fork", tmp_path, 4, 2, options, _without_collectives) as ranks:
            eventually(lambda: len(had(tmp_path, 0)) >= 3)
            ranks[0].kill()
            for rank in ranks:
                rank.join(240)
            assert [rank.exitcode for rank in ranks] == [-signal.SIGKILL, 0, 0, 0]
    expected = [
        [[bytes([int(number)]) * OBJECT_BYTES for number in PLAN.batch(epoch, step)] for step in range(12)]
        for epoch in range(2)
    ]
    flat = [told(collate(batch)) for epoch in expected for batch in epoch]
    for rank in range(4):
        batches = [batch for batch, _ in had(tmp_path, rank)]
        assert batches == flat[: len(batches)] and (not rank or len(batches) == len(flat))


def _without_collectives(folder: Path, given: Any, epochs: int, options: dict[str, Any], plan: Any) -> None:
    dataset = MapDataset(options["url"], "ais://b/")
    loader = BatchLoader(dataset, plan, collate=collate, replicas=given, workers=1, rank=0, world_size=1)
    with (folder / f"had-{given[0]}").open("w") as file:
        for _ in range(epochs):
            for batch in loader:
                file.write(json.dumps([told(batch), os.getpid()]) + "\n")
                file.flush()
                if not given[0] and len(had(folder, 0)) == 6:
                    signal.pause()  # until it is killed
