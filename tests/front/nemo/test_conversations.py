"""SALM: conversations of text and speech, through both of NeMo's adapters."""

from __future__ import annotations

import io
from typing import Any

import pytest
import soundfile
import tokenizers
import torch
import transformers
from nemo.collections.common.data.lhotse import get_lhotse_dataloader_from_config
from nemo.collections.common.tokenizers.huggingface.auto_tokenizer import AutoTokenizer
from nemo.collections.speechlm2.data.salm_dataset import SALMDataset
from torch.utils.data import DataLoader

from ais_loader import Bucket
from tests.data import Utterance
from tests.front.nemo.kit import loader_config, member, put_lines, tar_of

AUDIO = "<|audio|>"
SECONDS_OF_A_TOKEN = 0.08


@pytest.fixture(scope="session")
def language_model_tokenizer(tmp_path_factory: pytest.TempPathFactory, spoken: list[Utterance]) -> AutoTokenizer:
    """Byte pairs of the transcripts, from a folder, as those of a language model come."""
    pairs = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<unk>"))
    pairs.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel()
    pairs.decoder = tokenizers.decoders.ByteLevel()
    special = ["<unk>", "<pad>", "<|im_start|>", "<|im_end|>", AUDIO]
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=special,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    pairs.train_from_iterator([one.text for one in spoken], trainer)
    folder = tmp_path_factory.mktemp("language-model")
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=pairs, unk_token="<unk>", pad_token="<pad>", additional_special_tokens=special[2:]
    ).save_pretrained(folder)
    return AutoTokenizer(str(folder))


def batches(tokenizer: AutoTokenizer, kind: str, shards: dict[str, str], **options: Any) -> DataLoader:
    source = {"type": kind, "audio_locator_tag": AUDIO, "token_equivalent_duration": SECONDS_OF_A_TOKEN, **shards}
    if kind == "share_gpt":
        source["audio_placeholders"] = ["<sound>"]
    config = loader_config(
        input_cfg=[source],
        use_multimodal_sampling=True,
        prompt_format="qwen",
        token_equivalent_duration=SECONDS_OF_A_TOKEN,
        **options,
    )
    dataset = SALMDataset(tokenizer)
    return get_lhotse_dataloader_from_config(config, global_rank=0, world_size=1, dataset=dataset, tokenizer=tokenizer)


def recording(one: Utterance, kind: str) -> tuple[bytes, int]:
    """Its bytes, and samples in a second.

    ShareGPT's adapter takes every member for one of 16 kHz, whatever the line says: it gets the same samples at that
    rate, half as long.
    """
    if kind != "share_gpt":
        return one.path.read_bytes(), one.sampling_rate_hz
    samples, _ = soundfile.read(one.path, dtype="int16")
    out = io.BytesIO()
    soundfile.write(out, samples, 16000, format="WAV")
    return out.getvalue(), 16000


def conversation(one: Utterance, kind: str, **audio: Any) -> dict[str, Any]:
    """Asks for a transcript, and has it."""
    rate_hz = recording(one, kind)[1]
    duration_s = one.duration_s * one.sampling_rate_hz / rate_hz
    sound = {"duration": duration_s, "sampling_rate": rate_hz, **audio}
    if kind == "share_gpt":
        turns = [{"from": "human", "value": "Write down: <sound>", **sound}, {"from": "gpt", "value": one.text}]
        return {"id": one.name, "sound": member(one), "conversations": turns}
    turns = [
        {"from": "User", "type": "text", "value": "Write down:"},
        {"from": "User", "type": "audio", "value": member(one), **sound},
        {"from": "Assistant", "type": "text", "value": one.text},
    ]
    return {"id": one.name, "conversations": turns}


def put_conversations(bucket: Bucket, spoken: list[Utterance], kind: str) -> dict[str, str]:
    bucket.put("audio_0.tar", tar_of((member(one), recording(one, kind)[0]) for one in spoken))
    url = put_lines(bucket, "manifest_0.json", [conversation(one, kind) for one in spoken])
    return {"manifest_filepath": url, "tarred_audio_filepaths": f"ais://{bucket.name}/audio_0.tar"}


@pytest.mark.parametrize("kind", ["multimodal_conversation", "share_gpt"])
@pytest.mark.parametrize("how", ["get_batch", "sequential"])
def test_every_conversation_comes_once_with_the_samples_of_its_turn(
    kind: str,
    how: str,
    bucket: Bucket,
    spoken: list[Utterance],
    language_model_tokenizer: AutoTokenizer,
    request: pytest.FixtureRequest,
) -> None:
    request.getfixturevalue(how)
    by_id = {one.name: one for one in spoken}
    shards = put_conversations(bucket, spoken, kind)
    rate_hz = recording(spoken[0], kind)[1]
    seen = []
    for batch in batches(language_model_tokenizer, kind, shards, batch_size=6, sample_rate=rate_hz):
        assert len(batch["conversations"]) == len(batch["audios"]) <= 6
        for n, talk in enumerate(batch["conversations"]):
            one = by_id[talk.id]
            seen.append(talk.id)
            samples, _ = soundfile.read(one.path, dtype="float32")
            assert torch.equal(batch["audios"][n, : batch["audio_lens"][n]], torch.from_numpy(samples))
            answer = language_model_tokenizer.ids_to_text(batch["input_ids"][n][batch["loss_mask"][n]].tolist())
            assert one.text in answer
    assert sorted(seen) == sorted(by_id)


@pytest.mark.usefixtures("get_batch")
def test_no_batch_of_conversations_holds_more_or_longer_ones_than_its_bucket(
    bucket: Bucket, spoken: list[Utterance], language_model_tokenizer: AutoTokenizer
) -> None:
    """Pairs of tokens, of what is asked and of what is answered; 80 ms of speech are one token."""
    bins, sizes = [(80, 40), (100, 40), (100, 60)], [5, 3, 2]
    kind = "multimodal_conversation"
    shards = put_conversations(bucket, spoken, kind)
    loader = batches(
        language_model_tokenizer,
        kind,
        shards,
        bucket_duration_bins=[list(pair) for pair in bins],
        bucket_batch_size=sizes,
        measure_total_length=False,
        shuffle=True,
    )
    count = 0
    for batch in loader:
        lengths = [(talk.input_length, talk.output_length) for talk in batch["conversations"]]
        fits = {
            next(k for k, (longest, most) in enumerate(bins) if asked <= longest and answered <= most)
            for asked, answered in lengths
        }
        bucket_number = max(fits)
        assert len(lengths) <= sizes[bucket_number]
        assert all(asked <= bins[bucket_number][0] for asked, _ in lengths)
        assert all(answered <= bins[bucket_number][1] for _, answered in lengths)
        count += len(lengths)
    assert 10 < count <= len(spoken)


@pytest.mark.usefixtures("get_batch")
def test_a_conversation_with_a_turn_that_is_lost_is_left_out_and_a_batch_without_any_is_none(
    bucket: Bucket, spoken: list[Utterance], language_model_tokenizer: AutoTokenizer
) -> None:
    kind = "multimodal_conversation"
    shards = put_conversations(bucket, spoken[:6], kind)
    there = [0, 2]
    bucket.put("audio_0.tar", tar_of((member(spoken[n]), recording(spoken[n], kind)[0]) for n in there))
    first, second = batches(language_model_tokenizer, kind, shards, batch_size=3)
    assert [talk.id for talk in first["conversations"]] == [spoken[n].name for n in there]
    assert second is None
