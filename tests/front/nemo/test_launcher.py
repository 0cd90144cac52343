"""A script that knows nothing of us, run by the launcher: NeMo reads its batches from the store."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.front.nemo.kit import Speech, loader_config, member

TRAIN = """
import json
import sys

from nemo.collections.asr.data.audio_to_text_lhotse import LhotseSpeechToTextBpeDataset
from nemo.collections.common.data.lhotse import get_lhotse_dataloader_from_config
from nemo.collections.common.tokenizers.sentencepiece_tokenizer import SentencePieceTokenizer

if __name__ == "__main__":
    config, model = json.loads(sys.argv[1]), sys.argv[2]
    tokenizer = SentencePieceTokenizer(model)
    dataset = LhotseSpeechToTextBpeDataset(tokenizer, return_cuts=True)
    loader = get_lhotse_dataloader_from_config(config, 0, 1, dataset, tokenizer)
    seen = {cut.id: int(length) for _, lengths, *_, cuts in loader for cut, length in zip(cuts, lengths)}
    print("seen", json.dumps(seen))
"""


def test_a_script_without_our_line_trains_from_the_store(
    speech: Speech, tokenizer_model: Path, tmp_path: Path, store_url: str
) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    config = json.dumps(loader_config(**speech.tarred))
    launcher = [sys.executable, "-m", "ais_loader.integrations.lhotse"]
    done = subprocess.run(
        [*launcher, str(tmp_path / "train.py"), config, str(tokenizer_model)],
        env={**os.environ, "AIS_LOADER_URL": store_url, "USE_AIS_GET_BATCH": "true"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    (seen,) = [line for line in done.stdout.splitlines() if line.startswith("seen ")] or [done.stdout + done.stderr]
    assert json.loads(seen.removeprefix("seen ")) == {
        member(one): round(one.duration_s * one.sampling_rate_hz) for one in speech.spoken
    }
