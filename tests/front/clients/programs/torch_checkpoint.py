"""torch.distributed.checkpoint: two ranks write their parts of a checkpoint, which one process reads.

Differs: An embedded store has one writer at a time, so the parts are stored one after another. `lock_wait_s` is how
long a rank waits for another that makes no progress.
"""

import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing
from torch.distributed.checkpoint import FsspecReader, FsspecWriter
from torch.distributed.tensor import Shard, distribute_tensor

PACKAGES = ("torch",)
CHECKPOINT = "ais://checkpoints/torch"  # change
VALUES = torch.arange(4_000_000, dtype=torch.float32).reshape(1000, -1)


def train(rank: int, meeting: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    mesh = dist.init_device_mesh("cpu", (2,))
    state = {"weights": distribute_tensor(VALUES, mesh, [Shard(0)]), "step": 7}
    dcp.save(state, storage_writer=FsspecWriter(CHECKPOINT))  # change
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.multiprocessing.spawn(train, (f"{sys.argv[1]}/meeting",), nprocs=2)
    state = {"weights": torch.zeros_like(VALUES), "step": 0}
    dcp.load(state, storage_reader=FsspecReader(CHECKPOINT))  # change
    assert torch.equal(state["weights"], VALUES) and state["step"] == 7
