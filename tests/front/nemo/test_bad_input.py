"""What is not as its manifest says, and what breaks while NeMo reads: nothing hangs, and only the bad ones are lost."""

from __future__ import annotations

import io
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import soundfile
import torch
from click.testing import CliRunner
from lhotse import CutSet
from nemo.collections.asr.data.audio_to_text_lhotse import LhotseSpeechToTextBpeDataset
from nemo.collections.common.data.lhotse import get_lhotse_dataloader_from_config
from nemo.collections.common.tokenizers.sentencepiece_tokenizer import SentencePieceTokenizer
from torch.utils.data import DataLoader

from ais_loader import Bucket, connect
from ais_loader.integrations.lhotse import AISBatchLoader, AISBatchLoaderError
from ais_loader.integrations.nemo.__main__ import main
from ais_loader.testing.node import NodeProcess
from tests.cluster_processes import ClusterProcesses
from tests.data import EMPTY_WAV, Utterance
from tests.front.nemo.kit import RATE_HZ, Speech, line, loader_config, member, put_lines, put_shards, tar_of, tarred

pytestmark = pytest.mark.usefixtures("get_batch")


def batches(tokenizer: SentencePieceTokenizer, *, dataset: Any = None, **options: Any) -> DataLoader:
    dataset = dataset or LhotseSpeechToTextBpeDataset(tokenizer, return_cuts=True)
    return get_lhotse_dataloader_from_config(
        loader_config(**options), global_rank=0, world_size=1, dataset=dataset, tokenizer=tokenizer
    )


def delivered(tokenizer: SentencePieceTokenizer, **options: Any) -> dict[str, float]:
    """Seconds of each cut that came, by its id."""
    seconds = {}
    for _, audio_lens, *_, cuts in batches(tokenizer, **options):
        seconds |= {cut.id: length / RATE_HZ for cut, length in zip(cuts, audio_lens.tolist(), strict=True)}
    return seconds


def found(*arguments: str) -> dict[int, str]:
    """What `check` says: kinds by line."""
    result = CliRunner().invoke(main, ["check", "--store", os.environ["AIS_LOADER_URL"], "--json", *arguments])
    return {one["line"]: one["kind"] for one in json.loads(result.stdout)["findings"]}


def put_one_shard(bucket: Bucket, files: dict[str, bytes], lines: list[dict[str, Any]]) -> dict[str, str]:
    bucket.put("audio_0.tar", tar_of(files.items()))
    url = put_lines(bucket, "manifest_0.json", [one | {"shard_id": 0} for one in lines])
    return {"manifest_filepath": url, "tarred_audio_filepaths": f"ais://{bucket.name}/audio_0.tar"}


def test_lists_of_cuts_are_read_as_sets_of_them_are(speech: Speech, tokenizer: SentencePieceTokenizer) -> None:
    """SALM's turns come as a CutSet around a list, and cuts of other datasets as the list itself."""
    dataset = LhotseSpeechToTextBpeDataset(tokenizer, return_cuts=True)
    cuts = list(next(iter(batches(tokenizer, dataset=_Itself(), **speech.tarred))))
    audio, audio_lens, *_ = dataset[CutSet(cuts)]
    loaded = AISBatchLoader()(cuts)
    for n, one in enumerate(_by_member(speech)[cut.id] for cut in cuts):
        assert torch.equal(audio[n, : audio_lens[n]], _samples(one))
        assert torch.equal(torch.from_numpy(loaded[n].load_audio()[0]), _samples(one))


class _Itself:
    """A dataset that returns the cuts of its batch."""

    def __getitem__(self, cuts: Any) -> Any:
        return cuts


def _by_member(speech: Speech) -> dict[str, Utterance]:
    return {member(one): one for one in speech.spoken}


def _samples(one: Utterance) -> torch.Tensor:
    return torch.from_numpy(soundfile.read(one.path, dtype="float32")[0])


def test_only_the_recordings_that_check_names_are_lost_or_shorter(
    bucket: Bucket, spoken: list[Utterance], tokenizer: SentencePieceTokenizer
) -> None:
    by_name = {one.key: one for one in spoken if one.lang == "en"}
    long = by_name["agent-incorrect"]
    others = [one for one in by_name.values() if one is not long]
    good, no_rate, missing, longer, offset, empty, text = others[:7]
    files = {member(one): one.path.read_bytes() for one in (long, *others)}
    files |= {member(empty): EMPTY_WAV.read_bytes(), member(text): b"nothing that sounds"}
    del files[member(missing)]
    lines = [
        line(good, member(good)),
        line(no_rate, member(no_rate), sampling_rate=None),
        line(missing, member(missing)),
        line(longer, member(longer), duration=longer.duration_s + 1),
        line(offset, member(offset), offset=0.5, duration=1.25),
        line(empty, member(empty)),
        line(text, member(text)),
        line(long, member(long), duration=long.duration_s + 0.4),
    ]
    options = put_one_shard(bucket, files, lines)
    kinds = found(options["manifest_filepath"], "--tars", options["tarred_audio_filepaths"])
    assert kinds == {2: "sampling-rate", 3: "missing", 4: "duration", 5: "offset", 6: "empty", 7: "unreadable"}
    assert delivered(tokenizer, **options) == {
        member(good): pytest.approx(good.duration_s),
        member(offset) + "-000050-000125": pytest.approx(0.75),  # of 1.25: as `check` says
        member(long): pytest.approx(long.duration_s + 0.4),  # padded within Lhotse's tolerance
    }


def test_what_is_lost_is_named_in_a_warning(
    bucket: Bucket, spoken: list[Utterance], tokenizer: SentencePieceTokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    one = spoken[0]
    lines = [line(one, member(one)), line(one, "nobody.flac")]
    options = put_one_shard(bucket, {member(one): one.path.read_bytes()}, lines)
    assert set(delivered(tokenizer, **options)) == {member(one)}
    assert f"ais://{bucket.name}/audio_0.tar/nobody.flac" in caplog.text
    assert "nobody.flac'" in caplog.text


def test_a_manifest_that_names_another_tar_loses_its_lines_and_check_says_where_they_are(
    bucket: Bucket, spoken: list[Utterance], tokenizer: SentencePieceTokenizer
) -> None:
    put_shards(bucket, "asr", [spoken[:5], spoken[5:10]])
    first = spoken[:5]
    put_lines(bucket, "asr/manifest_1.json", [line(one, member(one)) for one in (first[0], *spoken[5:10])])
    options = tarred(bucket, "asr", 2)
    assert set(delivered(tokenizer, batch_size=2, **options)) == {member(one) for one in spoken[:10]}
    result = CliRunner().invoke(
        main,
        [
            *("check", "--store", os.environ["AIS_LOADER_URL"], options["manifest_filepath"]),
            *("--tars", options["tarred_audio_filepaths"]),
        ],
    )
    assert result.exit_code == 1
    (told,) = result.stdout.splitlines()
    assert f"but ais://{bucket.name}/asr/audio_0.tar has: the line belongs to another shard's manifest" in told


def test_a_batch_of_which_everything_is_lost_ends_with_an_error(
    bucket: Bucket, spoken: list[Utterance], tokenizer: SentencePieceTokenizer
) -> None:
    options = put_one_shard(bucket, {}, [line(one, member(one)) for one in spoken[:3]])
    with pytest.raises(AISBatchLoaderError, match="no cut of the batch is whole: 3 of 3 entries failed: ais://"):
        delivered(tokenizer, **options)


def test_a_shard_replaced_in_mid_epoch_gives_each_recording_whole_from_before_or_after(
    bucket: Bucket, spoken: list[Utterance], tokenizer: SentencePieceTokenizer
) -> None:
    """The new shard has every recording's samples backwards, in other places, and misses one."""
    shard = spoken[:12]
    before = {member(one): one.path.read_bytes() for one in shard}
    options = put_one_shard(bucket, before, [line(one, member(one)) for one in shard])
    gone = member(shard[-1])
    reader = iter(batches(tokenizer, batch_size=3, **options))
    got = dict(_rows(next(reader)))
    after = {member(one): _backwards(one) for one in reversed(shard) if member(one) != gone}
    bucket.put("audio_0.tar", tar_of(after.items()))
    late: dict[str, torch.Tensor] = {}
    for batch in reader:
        late |= dict(_rows(batch))
    assert len(got) == 3
    assert set(late) == set(before) - set(got) - {gone}
    forwards = {member(one): _samples(one) for one in shard}
    assert all(torch.equal(row, forwards[name]) for name, row in got.items())
    assert all(torch.equal(row, forwards[name].flip(0)) for name, row in late.items())


def _rows(batch: Any) -> Iterator[tuple[str, torch.Tensor]]:
    audio, audio_lens, *_, cuts = batch
    for n, cut in enumerate(cuts):
        yield cut.id, audio[n, : audio_lens[n]]


def _backwards(one: Utterance) -> bytes:
    samples, rate_hz = soundfile.read(one.path, dtype="int16")
    out = io.BytesIO()
    soundfile.write(out, samples[::-1], rate_hz, format="FLAC")
    return out.getvalue()


class _Held(LhotseSpeechToTextBpeDataset):
    """Says by a file that a worker has begun a batch, and goes on with it when there is another."""

    def __init__(self, tokenizer: SentencePieceTokenizer, folder: Path) -> None:
        super().__init__(tokenizer, return_cuts=True)
        self._folder = folder

    def __getitem__(self, cuts: Any) -> Any:
        (self._folder / f"begun-{os.getpid()}").touch()
        until(lambda: (self._folder / "go").exists(), "leave to go on")
        return super().__getitem__(cuts)


def until(condition: Callable[[], Any], what: str) -> None:
    """Wait for it, half a minute at most."""
    deadline_s = time.monotonic() + 180
    while not condition():
        assert time.monotonic() < deadline_s, f"waited in vain for {what}"
        time.sleep(0.01)


def test_a_worker_killed_in_mid_batch_is_told_at_once_and_the_next_epoch_is_whole(
    tmp_path: Path, spoken: list[Utterance], tokenizer: SentencePieceTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with NodeProcess(tmp_path / "drive") as node:
        monkeypatch.setenv("AIS_LOADER_URL", node.url)
        with connect(node.url) as client:
            options = put_one_shard(
                client.create_bucket("b"),
                {member(one): one.path.read_bytes() for one in spoken},
                [line(one, member(one)) for one in spoken],
            )
        options |= {"force_map_dataset": True, "num_workers": 2}
        reader = iter(batches(tokenizer, dataset=_Held(tokenizer, tmp_path), **options))
        until(lambda: len(list(tmp_path.glob("begun-*"))) == 2, "two workers that have begun")
        node.pause()
        (tmp_path / "go").touch()
        began_s = time.monotonic()
        os.kill(int(next(tmp_path.glob("begun-*")).name.partition("-")[2]), signal.SIGKILL)
        with pytest.raises(RuntimeError, match=r"worker .* (killed|exited unexpectedly)"):
            next(reader)
        assert time.monotonic() - began_s < 20
        node.resume()
        del reader
        assert set(delivered(tokenizer, **options)) == {member(one) for one in spoken}


def test_a_node_of_a_cluster_killed_in_mid_epoch_costs_nothing_where_others_have_copies(
    tmp_path: Path, spoken: list[Utterance], tokenizer: SentencePieceTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ClusterProcesses(tmp_path, 3, buckets={"b": 2}) as nodes:
        monkeypatch.setenv("AIS_LOADER_URL", nodes.url)
        with connect(nodes.url) as client:
            put_shards(client.bucket("b"), "asr", [spoken[n::4] for n in range(4)])
            reader = iter(batches(tokenizer, batch_size=4, **tarred(client.bucket("b"), "asr", 4)))
            came = dict(_rows(next(reader)))
            nodes.kill([1])
            for batch in reader:
                came |= dict(_rows(batch))
    assert set(came) == {member(one) for one in spoken}
    assert all(torch.equal(came[member(one)], _samples(one)) for one in spoken)
