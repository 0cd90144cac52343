"""Tiny recognition model of NeMo's own kind: one convolution, CTC over the tokenizer's pieces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as lightning
from omegaconf import DictConfig, OmegaConf

from tests.front.nemo.kit import RATE_HZ

MELS = 32
WIDTH = 32


def tiny_config(tokenizer_dir: Path, train: dict[str, Any]) -> DictConfig:
    """For EncDecCTCModelBPE; `train` is its `train_ds`."""
    return OmegaConf.create(
        {
            "sample_rate": RATE_HZ,
            "log_prediction": False,
            "train_ds": train,
            "tokenizer": {"dir": str(tokenizer_dir), "type": "bpe"},
            "preprocessor": {
                "_target_": "nemo.collections.asr.modules.AudioToMelSpectrogramPreprocessor",
                "sample_rate": RATE_HZ,
                "features": MELS,
                "window_size": 0.025,
                "window_stride": 0.02,
                "n_fft": 512,
            },
            "encoder": {
                "_target_": "nemo.collections.asr.modules.ConvASREncoder",
                "feat_in": MELS,
                "activation": "relu",
                "conv_mask": True,
                "jasper": [
                    {
                        "filters": WIDTH,
                        "repeat": 1,
                        "kernel": [3],
                        "stride": [1],
                        "dilation": [1],
                        "dropout": 0.0,
                        "residual": False,
                        "separable": True,
                    }
                ],
            },
            "decoder": {
                "_target_": "nemo.collections.asr.modules.ConvASRDecoder",
                "feat_in": WIDTH,
                "num_classes": -1,
                "vocabulary": [],
            },
            "optim": {"name": "adamw", "lr": 0.001},
        }
    )


class LossKept(lightning.Callback):
    """The loss of every step."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def on_train_batch_end(self, trainer: Any, model: Any, outputs: Any, batch: Any, number: int) -> None:
        self.losses.append(float(outputs["loss"]))
