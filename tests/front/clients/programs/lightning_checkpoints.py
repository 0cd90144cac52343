"""Lightning: a MapDataset in its DataLoader, and checkpoints that are written to the store and resumed from there."""

import os

import fsspec
import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader

from ais_loader import MapDataset

PACKAGES = ("lightning",)
STORE = os.environ["AIS_LOADER_URL"]


class Model(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, sizes: torch.Tensor) -> torch.Tensor:
        return self.layer(sizes).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.01)


def trained(epochs: int, save: ModelCheckpoint, resume: str | None = None) -> Model:
    samples = MapDataset(STORE, "ais://speech/", lambda item: torch.tensor([len(item.data) / 1e5]))  # change
    model = Model()
    trainer = lightning.Trainer(
        accelerator="cpu", max_epochs=epochs, callbacks=[save], logger=False, enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(model, DataLoader(samples, 8), ckpt_path=resume, weights_only=False)
    return model


def saving() -> ModelCheckpoint:
    return ModelCheckpoint(
        "ais://checkpoints/lightning", "{epoch}", save_top_k=-1, enable_version_counter=False
    )  # change


whole = trained(3, saving())
assert sorted(fsspec.filesystem("ais").ls("checkpoints/lightning", detail=False)) == [
    f"checkpoints/lightning/epoch={epoch}.ckpt" for epoch in range(3)
]
resumed = trained(3, saving(), "ais://checkpoints/lightning/epoch=0.ckpt")  # change
assert [value.item() for value in resumed.parameters()] == [value.item() for value in whole.parameters()]
