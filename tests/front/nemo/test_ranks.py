"""Two ranks of one training, as `torchrun` starts them: each reads a part of its own, and both step together."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.front.nemo.kit import Speech, loader_config, member

TREE = Path(__file__).resolve().parents[3]
STEPS = 5
TRAIN = """
import json
import os
import sys
from pathlib import Path

import lightning.pytorch as lightning
import torch
from nemo.collections.asr.data.audio_to_text_lhotse import LhotseSpeechToTextBpeDataset
from nemo.collections.asr.models import EncDecCTCModelBPE
from nemo.collections.common.data.lhotse import get_lhotse_dataloader_from_config
from nemo.collections.common.tokenizers.sentencepiece_tokenizer import SentencePieceTokenizer

from tests.front.nemo.tiny_model import LossKept, tiny_config

if __name__ == "__main__":
    config, model_path, output, steps = json.loads(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    tokenizer = SentencePieceTokenizer(str(model_path))
    dataset = LhotseSpeechToTextBpeDataset(tokenizer, return_cuts=True)
    epoch = get_lhotse_dataloader_from_config(config, rank, world_size, dataset, tokenizer)
    batches = [[cut.id for cut in cuts] for *_, cuts in epoch]
    kept = LossKept()
    trainer = lightning.Trainer(
        accelerator="cpu", devices=world_size, strategy="ddp", max_steps=steps, limit_train_batches=steps, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        use_distributed_sampler=False, callbacks=[kept],
    )
    torch.manual_seed(0)
    model = EncDecCTCModelBPE(tiny_config(model_path.parent, {**config, "force_finite": False}), trainer=trainer)
    trainer.fit(model)
    weights = torch.cat([value.detach().flatten() for value in model.parameters()])
    said = {"batches": batches, "losses": kept.losses, "weights": [weights.sum().item(), weights.norm().item()]}
    (output / f"rank-{rank}.json").write_text(json.dumps(said))
"""


@pytest.mark.timeout(600)  # both import NeMo
def test_two_ranks_read_each_utterance_once_and_keep_the_same_weights(
    speech: Speech, tokenizer_model: Path, tmp_path: Path, store_url: str
) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    config = json.dumps(loader_config(**speech.tarred, batch_size=4, force_map_dataset=True))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    arguments = (str(tmp_path / "train.py"), config, str(tokenizer_model), str(tmp_path), str(STEPS))
    done = subprocess.run(
        [*torchrun, "-m", "ais_loader.integrations.lhotse", *arguments],
        env={
            **os.environ,
            "AIS_LOADER_URL": store_url,
            "USE_AIS_GET_BATCH": "true",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(TREE),
        },
        capture_output=True,
        text=True,
        timeout=560,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-8000:]
    first, second = (json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(2))
    assert len(first["batches"]) == len(second["batches"]) == 5
    read = [name for rank in (first, second) for batch in rank["batches"] for name in batch]
    assert sorted(read) == sorted(member(one) for one in speech.spoken)
    assert len(first["losses"]) == len(second["losses"]) == STEPS
    assert first["losses"] != second["losses"]
    assert first["weights"] == second["weights"]
