"""NeMo's recognition datasets over manifests and shards in a store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import soundfile
import torch
from nemo.collections.asr.data.audio_to_text_lhotse import LhotseSpeechToTextBpeDataset
from nemo.collections.common.data.lhotse import get_lhotse_dataloader_from_config
from nemo.collections.common.tokenizers.sentencepiece_tokenizer import SentencePieceTokenizer
from torch.utils.data import DataLoader

from tests.data import Utterance
from tests.front.nemo.kit import RATE_HZ, Speech, loader_config, member, sources


def batches(tokenizer: SentencePieceTokenizer, **options: Any) -> DataLoader:
    """Of NeMo's own; each is (audio, its lengths, tokens, their lengths, cuts)."""
    dataset = LhotseSpeechToTextBpeDataset(tokenizer, return_cuts=True)
    return get_lhotse_dataloader_from_config(
        loader_config(**options), global_rank=0, world_size=1, dataset=dataset, tokenizer=tokenizer
    )


@pytest.fixture
def paths(request: pytest.FixtureRequest, speech: Speech) -> tuple[dict[str, str], dict[str, Utterance]]:
    """NeMo's options that name the data, and each utterance under the id that its cut has."""
    if request.param == "tarred":
        return speech.tarred, {member(one): one for one in speech.spoken}
    return {"manifest_filepath": speech.plain}, {f"ais://speech/flac/{one.name}": one for one in speech.spoken}


@pytest.fixture
def reading(request: pytest.FixtureRequest) -> None:
    request.getfixturevalue(request.param)


@pytest.mark.parametrize("reading", ["get_batch", "sequential"], indirect=True)
@pytest.mark.parametrize("paths", ["tarred", "plain"], indirect=True)
@pytest.mark.usefixtures("reading")
def test_every_utterance_comes_once_with_its_samples_and_its_tokens(
    paths: tuple[dict[str, str], dict[str, Utterance]], tokenizer: SentencePieceTokenizer
) -> None:
    options, by_id = paths
    seen = []
    for audio, audio_lens, tokens, token_lens, cuts in batches(tokenizer, **options):
        assert len(audio) == len(cuts) <= 8
        for n, cut in enumerate(cuts):
            one = by_id[cut.id]
            seen.append(cut.id)
            samples, _ = soundfile.read(one.path, dtype="float32")
            assert torch.equal(audio[n, : audio_lens[n]], torch.from_numpy(samples))
            assert tokens[n, : token_lens[n]].tolist() == tokenizer.text_to_ids(one.text)
    assert sorted(seen) == sorted(by_id)


@pytest.mark.usefixtures("get_batch")
def test_bytes_of_the_store_do_not_stay_in_the_cuts_that_a_batch_returns(
    speech: Speech, tokenizer: SentencePieceTokenizer
) -> None:
    *_, cuts = next(iter(batches(tokenizer, **speech.tarred)))
    assert {source.type for cut in cuts for source in sources(cut)} == {"shar"}


@pytest.mark.usefixtures("get_batch")
@pytest.mark.parametrize("paths", ["tarred", "plain"], indirect=True)
def test_no_batch_holds_more_or_longer_cuts_than_its_bucket(
    paths: tuple[dict[str, str], dict[str, Utterance]], tokenizer: SentencePieceTokenizer
) -> None:
    bins, sizes = [1.5, 2.5, 4.0], [7, 5, 3]
    options, by_id = paths
    seen = []
    loader = batches(
        tokenizer, **options, batch_size=None, bucket_duration_bins=bins, bucket_batch_size=sizes, shuffle=True
    )
    for _, audio_lens, *_, cuts in loader:
        fits = {next(k for k, longest_s in enumerate(bins) if by_id[cut.id].duration_s <= longest_s) for cut in cuts}
        assert len(fits) == 1, "cuts of several buckets in one batch"
        bucket = fits.pop()
        assert len(cuts) <= sizes[bucket]
        assert int(audio_lens.max()) <= bins[bucket] * RATE_HZ
        seen += [cut.id for cut in cuts]
    assert sorted(seen) == sorted(name for name, one in by_id.items() if one.duration_s <= bins[-1])


@pytest.mark.usefixtures("get_batch")
@pytest.mark.parametrize(
    ("paths", "start", "workers"),
    [
        ("tarred", "fork", 2),
        ("plain", "fork", 2),
        pytest.param("tarred", "spawn", 1, marks=pytest.mark.timeout(600)),  # which imports NeMo again
    ],
    indirect=["paths"],
)
def test_map_style_in_workers_gives_every_utterance_once(
    start: str, workers: int, paths: tuple[dict[str, str], dict[str, Utterance]], tokenizer: SentencePieceTokenizer
) -> None:
    options, by_id = paths
    loader = batches(tokenizer, **options, force_map_dataset=True, num_workers=workers)
    loader.multiprocessing_context = start
    assert sorted(cut.id for *_, cuts in loader for cut in cuts) == sorted(by_id)


@pytest.mark.usefixtures("get_batch")
def test_iterable_style_in_two_workers_with_one_seed_gives_every_utterance_twice(
    speech: Speech, tokenizer: SentencePieceTokenizer
) -> None:
    """NeMo's way with tarred data; docs/nemo.md advises against it for this reason."""
    seen = [cut.id for *_, cuts in batches(tokenizer, **speech.tarred, num_workers=2) for cut in cuts]
    assert sorted(seen) == sorted([member(one) for one in speech.spoken] * 2)


@pytest.mark.usefixtures("get_batch")
def test_a_tiny_model_of_nemo_takes_ten_steps(speech: Speech, tokenizer_model: Path) -> None:
    import lightning.pytorch as lightning
    from nemo.collections.asr.models import EncDecCTCModelBPE

    from tests.front.nemo.tiny_model import LossKept, tiny_config

    kept = LossKept()
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=1,
        max_steps=10,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        limit_train_batches=10,
        callbacks=[kept],
    )
    torch.manual_seed(0)
    model = EncDecCTCModelBPE(
        tiny_config(tokenizer_model.parent, loader_config(**speech.tarred, force_finite=False)), trainer=trainer
    )
    before = {name: value.clone() for name, value in model.named_parameters()}
    trainer.fit(model)
    assert trainer.global_step == 10
    assert len(kept.losses) == 10
    assert all(torch.isfinite(torch.tensor(kept.losses)))
    assert any(not torch.equal(value, before[name]) for name, value in model.named_parameters())
