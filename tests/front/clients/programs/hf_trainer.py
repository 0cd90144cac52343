"""Hugging Face's Trainer: a MapDataset as its data set, a checkpoint in the middle, and the rest of the run after it.

Differs: A batch is one request. Checkpoints are local folders; `Bucket.put_folder` stores one.
"""

import os
import sys
from pathlib import Path

import torch
from transformers import Trainer, TrainingArguments

from ais_loader import MapDataset

PACKAGES = ("transformers",)
STORE = os.environ["AIS_LOADER_URL"]


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layer = torch.nn.Linear(1, 1)

    def forward(self, sizes: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": self.layer(sizes).square().mean()}


def work(samples: object, folder: str) -> list[list[float]]:
    def trained(resume: bool) -> Trainer:
        options = TrainingArguments(
            folder, per_device_train_batch_size=8, num_train_epochs=2, save_steps=5, use_cpu=True, report_to=[],
            disable_tqdm=True, remove_unused_columns=False, seed=3,
        )  # fmt: skip
        trainer = Trainer(
            Model(), options, train_dataset=samples, data_collator=lambda found: {"sizes": torch.stack(found)}
        )
        trainer.train(resume_from_checkpoint=f"{folder}/checkpoint-5" if resume else None)
        return trainer

    return [[value.item() for value in trained(resume).model.parameters()] for resume in (False, True)]


class Files(torch.utils.data.Dataset[torch.Tensor]):
    paths = sorted(Path(os.environ["SPEECH"]).rglob("*.flac"))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, at: int) -> torch.Tensor:
        return torch.tensor([len(self.paths[at].read_bytes()) / 1e5])


samples = MapDataset(STORE, "ais://speech/", lambda item: torch.tensor([len(item.data) / 1e5]))  # change
through_the_store, from_files = work(samples, f"{sys.argv[1]}/ours"), work(Files(), f"{sys.argv[1]}/theirs")
assert through_the_store == from_files and through_the_store[0] == through_the_store[1]
