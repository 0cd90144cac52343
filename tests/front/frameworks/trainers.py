"""Trainers as their users write them: one program for Lightning, accelerate and Hugging Face's Trainer.

python trainers.py FRAMEWORK DATA FOLDER STORE STOP_AFTER
    DATA is "plan" (BatchLoader), "sampler" (DataLoader with a BatchSampler, stateful for Lightning), or "map"
    (MapDataset with a DataLoader). The program trains for EPOCHS epochs, from the
    checkpoint in FOLDER if there is one. Each rank writes the samples of every step to FOLDER/seen-RANK.jsonl. After
    STOP_AFTER steps, if above 0, it saves a checkpoint and ends without ceremony.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from ais_loader import BatchLoader, BatchSampler, Item, MapDataset, ShufflePlan

EPOCHS = 3
BATCH_SIZE = 4
FRAMEWORK, DATA, FOLDER, STORE = sys.argv[1:5]
STOP_AFTER = int(sys.argv[5])
RANK = int(os.environ.get("RANK", "0"))
CHECKPOINT = Path(FOLDER, "checkpoint")
STEPS_PER_EPOCH = 40 // BATCH_SIZE // int(os.environ.get("WORLD_SIZE", "1"))


def decode(item: Item) -> torch.Tensor:
    return torch.tensor([float(item.tobytes())])


def plan_loader(collate: Any = torch.stack) -> BatchLoader:
    samples = MapDataset(STORE, "ais://b/", decode)
    plan = ShufflePlan(len(samples), BATCH_SIZE, seed=3)
    return BatchLoader(samples, plan, collate=collate)


def sampler_loader(loader: Any = DataLoader, **options: Any) -> Any:
    samples = MapDataset(STORE, "ais://b/", decode)
    sampler = BatchSampler(ShufflePlan(len(samples), BATCH_SIZE, seed=3))
    return loader(samples, batch_sampler=sampler, num_workers=1, **options)


def map_loader() -> DataLoader[Any]:
    return DataLoader(MapDataset(STORE, "ais://b/", decode), BATCH_SIZE, shuffle=True, num_workers=1)


def write_down(epoch: int, batch: torch.Tensor) -> None:
    with Path(FOLDER, f"seen-{RANK}.jsonl").open("a") as seen:
        seen.write(json.dumps([epoch, [int(one) for one in batch.flatten()]]) + "\n")


def end() -> None:
    os._exit(0)


def lightning() -> None:
    import lightning
    from lightning.pytorch.callbacks import ModelCheckpoint
    from torchdata.stateful_dataloader import StatefulDataLoader

    class Model(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
            if STOP_AFTER and self.global_step == STOP_AFTER:
                end()  # the checkpoint is written after the step before

        def training_step(self, batch: torch.Tensor) -> torch.Tensor:
            write_down(self.current_epoch, batch)
            return self.layer(batch).mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.001)

    save = ModelCheckpoint(FOLDER, "checkpoint", every_n_train_steps=STOP_AFTER or 1000, enable_version_counter=False)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=int(os.environ.get("WORLD_SIZE", "1")),
        max_epochs=EPOCHS,
        logger=False,
        callbacks=[save],
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=DATA != "sampler",
    )
    kept = CHECKPOINT.with_suffix(".ckpt")
    loader = {"plan": plan_loader, "map": map_loader}.get(DATA, lambda: sampler_loader(StatefulDataLoader))()
    trainer.fit(Model(), loader, ckpt_path=kept if kept.exists() else None, weights_only=False)


def accelerate() -> None:
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration

    # The order of a shuffled DataLoader depends on (seed, epoch), so that it is the same after a resume.
    seeded = DataLoaderConfiguration(use_seedable_sampler=True, data_seed=3)
    accelerator = Accelerator(cpu=True, dataloader_config=seeded)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    loader: Any = {"plan": plan_loader, "map": map_loader, "sampler": sampler_loader}[DATA]()
    model, optimizer = accelerator.prepare(model, optimizer)
    if DATA != "sampler":
        loader = accelerator.prepare(loader)
    if DATA == "plan":
        accelerator.register_for_checkpointing(loader)
    first_epoch = steps = 0
    if CHECKPOINT.exists():
        accelerator.load_state(str(CHECKPOINT))
        steps = int(Path(FOLDER, "steps").read_text())
        first_epoch = steps // len(loader)
    for epoch in range(first_epoch, EPOCHS):
        batches = loader
        if DATA != "plan":
            (loader if DATA == "map" else loader.batch_sampler).set_epoch(epoch)
            if epoch == first_epoch and steps % len(loader):
                batches = accelerator.skip_first_batches(loader, steps % len(loader))
        for batch in batches:
            write_down(epoch, batch)
            accelerator.backward(model(batch).mean())
            optimizer.step()
            optimizer.zero_grad()
            steps += 1
            if steps == STOP_AFTER:
                accelerator.save_state(str(CHECKPOINT))
                Path(FOLDER, "steps").write_text(str(steps))
                accelerator.wait_for_everyone()
                end()


def transformers() -> None:
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def forward(self, numbers: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": self.layer(numbers).mean()}

    class OwnTrainer(Trainer):  # type: ignore[misc]
        def compute_loss(self, model: Any, inputs: Any, *arguments: Any, **options: Any) -> Any:
            write_down(self.state.global_step // STEPS_PER_EPOCH, inputs["numbers"])
            return super().compute_loss(model, inputs, *arguments, **options)

    class PlanTrainer(OwnTrainer):
        def get_train_dataloader(self) -> Any:
            return loader

    class LoaderState(TrainerCallback):  # type: ignore[misc]
        """Saves the position of the loader with each checkpoint, and restores it."""

        def on_save(self, args: Any, state: Any, control: Any, **kept: Any) -> None:
            torch.save(loader.state_dict(), Path(args.output_dir, f"checkpoint-{state.global_step}", "loader.pt"))

    class End(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, args: Any, state: Any, control: Any, **kept: Any) -> None:
            if STOP_AFTER and state.global_step == STOP_AFTER:
                torch.distributed.barrier() if torch.distributed.is_initialized() else None
                end()

    def collate(samples: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"numbers": torch.stack(samples)}

    arguments = TrainingArguments(
        output_dir=FOLDER,
        per_device_train_batch_size=BATCH_SIZE,
        num_train_epochs=EPOCHS,
        save_steps=STOP_AFTER or 1000,
        remove_unused_columns=False,
        dataloader_num_workers=1,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        ignore_data_skip=DATA == "plan",
    )
    kept = sorted(Path(FOLDER).glob("checkpoint-*"))
    if DATA == "plan":
        loader = plan_loader(collate)
        trainer = PlanTrainer(Model(), arguments, callbacks=[LoaderState(), End()])
        if kept:
            loader.load_state_dict(torch.load(kept[0] / "loader.pt"))
    elif DATA == "sampler":
        loader = sampler_loader(collate_fn=collate)
        trainer = PlanTrainer(Model(), arguments, callbacks=[End()])
    else:
        dataset = MapDataset(STORE, "ais://b/", decode)
        trainer = OwnTrainer(Model(), arguments, train_dataset=dataset, data_collator=collate, callbacks=[End()])
    trainer.train(resume_from_checkpoint=str(kept[0]) if kept else None)


if __name__ == "__main__":
    {"lightning": lightning, "accelerate": accelerate, "transformers": transformers}[FRAMEWORK]()
