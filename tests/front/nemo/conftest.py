"""Speech in a store as NeMo's users keep it: tarred and plain manifests, tokenizers trained on their transcripts.

NeMo is imported in fixtures: when this file is, a warning of its is an error still.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import sentencepiece

import ais_loader
from ais_loader import Bucket, Client
from tests.data import Utterance, utterances
from tests.front.nemo.kit import BUCKET, LANGUAGES, SHARDS, Speech, plain_lines, put_lines, put_shards

if TYPE_CHECKING:
    from nemo.collections.common.tokenizers.sentencepiece_tokenizer import SentencePieceTokenizer

SPECIAL_TOKENS = [
    "<pad>",
    "<|nospeech|>",
    "<|endoftext|>",
    "<|startoftranscript|>",
    "<|startofcontext|>",
    "<|emo:undefined|>",
    "<|pnc|>",
    "<|nopnc|>",
    "<|noitn|>",
    "<|notimestamp|>",
    "<|nodiarize|>",
    *(f"<|{language}|>" for language in LANGUAGES),
    "<|audio|>",
]


@pytest.fixture(scope="session", autouse=True)
def _installed() -> None:
    """The one line of a training script."""
    from ais_loader.integrations.lhotse import install

    install()


@pytest.fixture(scope="session")
def store_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    url = f"file://{tmp_path_factory.mktemp('store')}"
    previous = os.environ.get("AIS_LOADER_URL")
    os.environ["AIS_LOADER_URL"] = url
    yield url
    if previous is None:
        del os.environ["AIS_LOADER_URL"]
    else:
        os.environ["AIS_LOADER_URL"] = previous


@pytest.fixture(scope="session")
def client(store_url: str) -> Iterator[Client]:
    with ais_loader.connect(store_url) as connected:
        yield connected


@pytest.fixture(scope="session")
def spoken() -> list[Utterance]:
    """Two languages, 40 utterances of 1 to 6 s."""
    return [one for one in utterances() if one.lang in LANGUAGES]


@pytest.fixture(scope="session")
def speech(client: Client, spoken: list[Utterance]) -> Speech:
    bucket = client.create_bucket(BUCKET)
    for one in spoken:
        bucket.put(f"flac/{one.name}", one.path.read_bytes())
    put_lines(bucket, "plain.json", plain_lines(spoken))
    put_shards(bucket, "asr", [spoken[n::SHARDS] for n in range(SHARDS)])
    return Speech(bucket, spoken)


@pytest.fixture
def bucket(client: Client) -> Bucket:
    """One that this test may spoil."""
    return client.create_bucket(f"t-{uuid.uuid4().hex[:16]}")


@pytest.fixture(scope="session")
def tokenizer_model(tmp_path_factory: pytest.TempPathFactory, spoken: list[Utterance]) -> Path:
    """A unigram model of the transcripts, with the special tokens of Canary's prompts; 200 pieces."""
    folder = tmp_path_factory.mktemp("tokenizer")
    (folder / "text").write_text("\n".join(one.text for one in spoken), encoding="utf-8")
    sentencepiece.SentencePieceTrainer.train(
        input=str(folder / "text"),
        model_prefix=str(folder / "tokenizer"),
        vocab_size=200,
        user_defined_symbols=SPECIAL_TOKENS,
        bos_id=-1,
        eos_id=-1,
        minloglevel=2,
    )
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
    (folder / "vocab.txt").write_text("\n".join(pieces.id_to_piece(n) for n in range(len(pieces))), encoding="utf-8")
    return folder / "tokenizer.model"


@pytest.fixture
def tokenizer(tokenizer_model: Path) -> SentencePieceTokenizer:
    from nemo.collections.common.tokenizers.sentencepiece_tokenizer import SentencePieceTokenizer

    return SentencePieceTokenizer(str(tokenizer_model))


@pytest.fixture
def get_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """NeMo asks the batch loader; read when datasets and iterators are made."""
    monkeypatch.setenv("USE_AIS_GET_BATCH", "true")


@pytest.fixture
def sequential(monkeypatch: pytest.MonkeyPatch) -> None:
    """NeMo opens shards and reads them from front to back."""
    monkeypatch.setenv("USE_AIS_GET_BATCH", "false")
