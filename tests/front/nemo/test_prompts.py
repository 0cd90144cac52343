"""NeMo's prompted dataset: Canary's second prompt, batches bounded in seconds and in tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import soundfile
import torch
from nemo.collections.asr.data.audio_to_text_lhotse_prompted import PromptedAudioToTextLhotseDataset
from nemo.collections.common.data.lhotse import get_lhotse_dataloader_from_config
from nemo.collections.common.prompts.canary2 import Canary2PromptFormatter
from nemo.collections.common.tokenizers.canary_tokenizer import CanaryBPETokenizer
from torch.utils.data import DataLoader

from ais_loader import Bucket
from tests.data import Utterance
from tests.front.nemo.kit import RATE_HZ, Speech, line, loader_config, member, plain_lines, put_lines, sources

PROMPT_TOKENS = 9
"""Context, begin, emotion, two languages, four switches."""


@pytest.fixture
def canary_tokenizer(tokenizer_model: Path) -> CanaryBPETokenizer:
    return CanaryBPETokenizer(str(tokenizer_model))


def batches(tokenizer: CanaryBPETokenizer, **options: Any) -> DataLoader:
    dataset = PromptedAudioToTextLhotseDataset(tokenizer, Canary2PromptFormatter(tokenizer))
    config = loader_config(prompt_format="canary2", **options)
    return get_lhotse_dataloader_from_config(config, global_rank=0, world_size=1, dataset=dataset, tokenizer=tokenizer)


def tokens_of(tokenizer: CanaryBPETokenizer, one: Utterance) -> int:
    """Of the whole prompt with its answer."""
    return PROMPT_TOKENS + len(tokenizer.text_to_ids(one.text)) + 1


@pytest.mark.usefixtures("get_batch")
@pytest.mark.parametrize("data", ["tarred", "plain"])
def test_no_batch_holds_more_cuts_seconds_or_tokens_than_its_bucket(
    data: str, speech: Speech, canary_tokenizer: CanaryBPETokenizer
) -> None:
    bins = [(2.0, 26), (2.0, 40), (4.0, 34), (4.0, 50)]
    sizes = [6, 4, 3, 2]
    options = speech.tarred if data == "tarred" else {"manifest_filepath": speech.plain}
    by_id = {member(one) if data == "tarred" else f"ais://speech/flac/{one.name}": one for one in speech.spoken}

    def strict_bucket(one: Utterance) -> int | None:
        """Only the pairs with the first duration that holds it are looked at."""
        longest_s = next((seconds for seconds, _ in bins if one.duration_s <= seconds), None)
        pairs = [k for k, (seconds, _) in enumerate(bins) if seconds == longest_s]
        return next((k for k in pairs if tokens_of(canary_tokenizer, one) <= bins[k][1]), None)

    seen = []
    loader = batches(
        canary_tokenizer,
        **options,
        batch_size=None,
        bucket_duration_bins=[list(pair) for pair in bins],
        bucket_batch_size=sizes,
        shuffle=True,
    )
    for batch in loader:
        of_batch = {strict_bucket(by_id[cut.id]) for cut in batch.cuts}
        assert len(of_batch) == 1
        bucket = of_batch.pop()
        assert bucket is not None
        seconds, tokens = bins[bucket]
        assert len(batch.cuts) == len(batch.audio) <= sizes[bucket]
        assert int(batch.audio_lens.max()) <= seconds * RATE_HZ
        assert int(batch.prompted_transcript_lens.max()) <= tokens
        seen += [cut.id for cut in batch.cuts]
    fitting = [name for name, one in by_id.items() if strict_bucket(one) is not None]
    assert 10 < len(fitting) < len(by_id), "the bounds are meant to leave some out"
    assert sorted(seen) == sorted(fitting)


@pytest.mark.usefixtures("get_batch")
def test_each_row_has_its_own_samples_prompt_and_transcript(
    speech: Speech, canary_tokenizer: CanaryBPETokenizer, bucket: Bucket
) -> None:
    """Half of them are translations: the other language's transcript of the same prompt."""
    text = {(one.lang, one.key): one.text for one in speech.spoken}
    lines = plain_lines(speech.spoken)
    for one, written in zip(speech.spoken, lines, strict=True):
        if one.lang == "en":
            written |= {"target_lang": "es", "lang": "es", "text": text["es", one.key]}
    url = put_lines(bucket, "translate.json", lines)
    by_id = {written["audio_filepath"]: (one, written) for one, written in zip(speech.spoken, lines, strict=True)}
    count = 0
    for batch in batches(canary_tokenizer, manifest_filepath=url):
        for n, cut in enumerate(batch.cuts):
            one, written = by_id[cut.id]
            samples, _ = soundfile.read(one.path, dtype="float32")
            assert torch.equal(batch.audio[n, : batch.audio_lens[n]], torch.from_numpy(samples))
            prompt = batch.prompt[n, : batch.prompt_lens[n]].tolist()
            assert f"<|{one.lang}|><|{written['target_lang']}|>" in "".join(canary_tokenizer.ids_to_tokens(prompt))
            answer = batch.transcript[n, : batch.transcript_lens[n]].tolist()
            assert answer == canary_tokenizer.text_to_ids(written["text"])
            count += 1
        assert all(source.type != "memory" for cut in batch.cuts for source in sources(cut))
    assert count == len(lines)


@pytest.mark.usefixtures("get_batch")
def test_a_line_without_a_language_of_the_prompt_is_told_by_nemo(
    speech: Speech, canary_tokenizer: CanaryBPETokenizer, bucket: Bucket
) -> None:
    one = speech.spoken[0]
    url = put_lines(bucket, "nameless.json", [line(one, f"ais://speech/flac/{one.name}", target_lang=None)])
    with pytest.raises(RuntimeError, match=r"missing the following keys: \{'target_lang'\}"):
        next(iter(batches(canary_tokenizer, manifest_filepath=url)))
