"""Runs of trainers that resume at ten places: python stopped_runs.py FRAMEWORK FOLDER STORE

For each case of the framework (with and without a length, limits, validation, accumulation), the program trains once,
and saves a checkpoint at each place. From each of them, it trains again to the end. Each rank asserts that its batches
are those that the first run had after that place. It prints each case that has passed.
"""

from __future__ import annotations

import gc
import itertools
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import BatchSampler as TorchBatchSampler
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler
from torchdata.stateful_dataloader import StatefulDataLoader

from ais_loader import BatchLoader, BatchSampler, Item, MapDataset, ShufflePlan
from ais_loader.plans import MixPlan, NumberPlan

SAMPLES, BATCH_SIZE, EPOCHS = 40, 4, 3
WORLD_SIZE = int(os.environ.get("WORLD_SIZE", "1"))
EPOCH = SAMPLES // BATCH_SIZE // WORLD_SIZE
"""Batches of a rank in a whole epoch."""
PLACES = [1, 2, EPOCH - 1, EPOCH, EPOCH + 1, EPOCH + 2, 2 * EPOCH - 1, 2 * EPOCH, 2 * EPOCH + 1, 3 * EPOCH - 1]
LIMIT = 4
"""Batches of a rank in a part of an epoch."""
Ids = list[list[int]]
Make = Callable[..., Any]


def decode(item: Item) -> torch.Tensor:
    return torch.tensor([float(item.tobytes())])


def collate(samples: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    return {"numbers": torch.stack(samples)}


def ids_of(batch: Any) -> list[int]:
    return [int(one) for one in batch["numbers"].flatten()]


def whole() -> NumberPlan:
    return ShufflePlan(SAMPLES, BATCH_SIZE, seed=3)


def endless(epoch_steps: int | None = None) -> NumberPlan:
    sources = {"a": SAMPLES // 2, "b": SAMPLES // 2}
    return MixPlan(sources, {"a": 2, "b": 1}, batch_size=BATCH_SIZE, seed=3, epoch_steps=epoch_steps)


def parts() -> NumberPlan:
    return endless(epoch_steps=EPOCH * WORLD_SIZE)


def planned(store: str, plan: Callable[[], Any] = whole) -> BatchLoader:
    return BatchLoader(MapDataset(store, "ais://b/", decode), plan(), collate=collate)


def sampled(store: str, plan: Callable[[], Any] = whole, loader: Any = DataLoader, workers: int = 2) -> Any:
    samples = MapDataset(store, "ais://b/", decode)
    return loader(samples, batch_sampler=BatchSampler(plan()), collate_fn=collate, num_workers=workers)


def drawn() -> Any:
    """Return torch's own sampler: by epoch with several ranks, by a generator with one."""
    if WORLD_SIZE > 1:
        return TorchBatchSampler(DistributedSampler(range(SAMPLES), seed=3), BATCH_SIZE, drop_last=False)
    generator = torch.Generator().manual_seed(3)
    return TorchBatchSampler(RandomSampler(range(SAMPLES), generator=generator), BATCH_SIZE, drop_last=False)


@contextmanager
def closing(loader: Any) -> Iterator[Any]:
    try:
        yield loader
    finally:
        if isinstance(loader, BatchLoader):
            loader.close()
        gc.collect()


# -- Lightning


def lightning(make: Make, folder: Path, had: dict[int, int], resumed_at: int, **options: Any) -> Ids:
    import lightning

    ids: Ids = []

    class Model(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def training_step(self, batch: Any) -> torch.Tensor:
            ids.append(ids_of(batch))
            return self.layer(batch["numbers"]).mean()

        def validation_step(self, batch: Any) -> None:
            self.layer(batch["numbers"])

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.001)

    class Save(lightning.Callback):
        def on_train_batch_end(self, trainer: Any, *given: Any) -> None:
            if not resumed_at and len(ids) in PLACES:
                had[len(ids)] = len(ids)
                trainer.save_checkpoint(folder / f"{len(ids)}.ckpt")

    options = {"max_epochs": EPOCHS} | options
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=WORLD_SIZE,
        strategy="ddp" if WORLD_SIZE > 1 else "auto",
        logger=False,
        enable_checkpointing=False,
        callbacks=[Save()],
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        num_sanity_val_steps=1,
        **options,
    )
    kept = {"ckpt_path": folder / f"{resumed_at}.ckpt", "weights_only": False} if resumed_at else {}
    validation = planned(str(STORE)) if "val_check_interval" in options else None
    with closing(make()) as loader:
        trainer.fit(Model(), loader, validation, **kept)
    return ids


# -- Hugging Face's Trainer


def transformers(make: Make, folder: Path, had: dict[int, int], resumed_at: int, **options: Any) -> Ids:
    from transformers import Trainer, TrainerCallback, TrainingArguments

    ids: Ids = []

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def forward(self, numbers: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": self.layer(numbers).mean()}

    class OwnTrainer(Trainer):  # type: ignore[misc]
        def get_train_dataloader(self) -> Any:
            return loader

        def training_step(self, model: Any, inputs: Any, *given: Any, **kept: Any) -> Any:
            ids.append(ids_of(inputs))
            return super().training_step(model, inputs, *given, **kept)

    class Save(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **kept: Any) -> None:
            control.should_save = not resumed_at and state.global_step in PLACES

        def on_save(self, args: Any, state: Any, control: Any, **kept: Any) -> None:
            had[state.global_step] = len(ids)
            if isinstance(loader, BatchLoader):
                torch.save(loader.state_dict(), folder / f"loader-{state.global_step}.pt")

    with closing(make()) as loader:
        is_plan = isinstance(loader, BatchLoader)
        arguments = TrainingArguments(
            output_dir=str(folder),
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
            ignore_data_skip=is_plan,
            **({"num_train_epochs": EPOCHS} | options),
        )
        evaluated = MapDataset(str(STORE), "ais://b/", decode) if "eval_steps" in options else None
        trainer = OwnTrainer(Model(), arguments, data_collator=collate, eval_dataset=evaluated, callbacks=[Save()])
        if resumed_at and is_plan:
            loader.load_state_dict(torch.load(folder / f"loader-{resumed_at}.pt"))
        trainer.train(resume_from_checkpoint=str(folder / f"checkpoint-{resumed_at}") if resumed_at else None)
    return ids


# -- accelerate


def accelerate(
    make: Make, folder: Path, had: dict[int, int], resumed_at: int, accumulate: int = 1, limit: int | None = None
) -> Ids:
    from accelerate import Accelerator

    ids: Ids = []
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulate)
    model = torch.nn.Linear(1, 1)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.001))
    with closing(make()) as loader:
        is_plan = isinstance(loader, BatchLoader)
        if is_plan:
            loader = accelerator.prepare(loader)
            accelerator.register_for_checkpointing(loader)
        steps, per_epoch = resumed_at, limit or EPOCH
        if resumed_at:
            accelerator.load_state(str(folder / f"{resumed_at}"))
        while steps < EPOCHS * EPOCH:
            epoch, first = divmod(steps, per_epoch)
            batches = loader
            if limit:
                loader.set_epoch(epoch)
            if not is_plan:
                loader.batch_sampler.set_epoch(epoch)
                batches = accelerator.skip_first_batches(loader, first) if first else loader
            for batch in itertools.islice(batches, per_epoch - first):
                with accelerator.accumulate(model):
                    accelerator.backward(model(batch["numbers"]).mean())
                    optimizer.step()
                    optimizer.zero_grad()
                ids.append(ids_of(batch))
                steps += 1
                if not resumed_at and steps in PLACES:
                    had[steps] = len(ids)
                    accelerator.save_state(str(folder / f"{steps}"))
    return ids


Case = tuple[Callable[..., Any], dict[str, Any]]
CASES: dict[str, tuple[Callable[..., Ids], dict[str, Case]]] = {
    "lightning": (
        lightning,
        {
            "epochs": (planned, {}),
            "parts of an endless mixture": (partial(planned, plan=parts), {}),
            "limit_train_batches": (planned, {"limit_train_batches": LIMIT, "max_epochs": 1 + 3 * EPOCH // LIMIT}),
            "val_check_interval": (planned, {"val_check_interval": 2, "limit_val_batches": 1}),
            "accumulate_grad_batches": (planned, {"accumulate_grad_batches": 2}),
            "sampler of torch": (partial(planned, plan=drawn), {}),
            "StatefulDataLoader": (partial(sampled, loader=StatefulDataLoader), {}),
            "StatefulDataLoader with parts": (partial(sampled, plan=parts, loader=StatefulDataLoader), {}),
        },
    ),
    "transformers": (
        transformers,
        {
            "epochs": (planned, {}),
            "parts of an endless mixture": (partial(planned, plan=parts), {}),
            "no length": (partial(planned, plan=endless), {"max_steps": 3 * EPOCH}),
            "eval_steps": (planned, {"eval_strategy": "steps", "eval_steps": 2}),
            "accumulation": (planned, {"gradient_accumulation_steps": 2, "num_train_epochs": 2 * EPOCHS}),
            "DataLoader": (sampled, {}),
            "DataLoader with parts": (partial(sampled, plan=parts), {}),
        },
    ),
    "accelerate": (
        accelerate,
        {
            "epochs": (planned, {}),
            "parts of an endless mixture": (partial(planned, plan=parts), {}),
            "no length": (partial(planned, plan=endless), {"limit": EPOCH}),
            "limit": (planned, {"limit": LIMIT}),
            "accumulation": (planned, {"accumulate": 2}),
            "DataLoader": (sampled, {}),
        },
    ),
}


def check(case: str, train: Callable[..., Ids], folder: Path, repeats: bool) -> None:
    folder.mkdir(exist_ok=True)
    had: dict[int, int] = {}
    """The number of batches before each place."""
    expected = train(folder=folder, had=had, resumed_at=0)
    first = [number for batch in expected[:LIMIT] for number in batch]
    assert repeats or len(set(first)) == len(first), (case, first)
    assert list(had) == PLACES and had[PLACES[-1]] < len(expected), (case, had, len(expected))
    for place in PLACES:
        found = train(folder=folder, had=had, resumed_at=place)
        assert found == expected[had[place] :], (case, place, found, expected)


if __name__ == "__main__":
    FRAMEWORK, FOLDER, STORE = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    run, cases = CASES[FRAMEWORK]
    for at, (name, (make, options)) in enumerate(cases.items()):
        if len(sys.argv) > 4 and name != sys.argv[4]:
            continue
        own = FOLDER / f"{at}"
        check(name, partial(run, partial(make, STORE), **options), own, "mixture" in name or "no length" in name)
        print(name, "resumes at", len(PLACES), "places", flush=True)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
