"""The Canary-style example: its corpus and prompts, the three ways to read, and going on after kill -9."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from canary_kit import SPEECH, cuts_and_losses, finished, killed_at_the_end
from click.testing import CliRunner, Result
from lhotse import CutSet

import ais_loader
from ais_loader.testing import throwaway_folder, throwaway_node
from examples.canary.batch import Collate, cut_of
from examples.canary.checkpoint import read_lines
from examples.canary.corpus import BUCKET, put_corpus, read_tasks, split, stored_tasks
from examples.canary.prompts import Tokenizer
from examples.canary.sources import Buckets, SequentialShards, SingleGets
from examples.canary.train import main
from examples.speech.corpus import CorpusError


@pytest.fixture(scope="module")
def store() -> Iterator[str]:
    """An embedded store with the corpus."""
    with throwaway_folder() as folder:
        with ais_loader.connect(folder / "store") as client:
            put_corpus(client, SPEECH)
        yield str(folder / "store")


@pytest.fixture(scope="module")
def node() -> Iterator[str]:
    """A storage node with the corpus."""
    with throwaway_node() as process:
        with ais_loader.connect(process.url) as client:
            put_corpus(client, SPEECH)
        yield process.url


def run(*options: object) -> Result:
    return CliRunner().invoke(main, [str(option) for option in options])


def test_the_corpus_has_every_utterance_to_transcribe_and_every_pair_with_english_to_translate() -> None:
    tasks = read_tasks(SPEECH)
    assert [sum(task.taskname == name for task in tasks) for name in ("asr", "ast")] == [100, 160]
    for task in tasks:
        assert (task.source_lang == task.target_lang) == (task.taskname == "asr")
        assert task.taskname == "asr" or "en" in (task.source_lang, task.target_lang)
    training, validation = split(tasks)
    assert {task.key for task in training}.isdisjoint(task.key for task in validation)
    assert len(training) + len(validation) == 260 and len(validation) == 26


def test_shards_have_each_recording_once_and_a_second_put_puts_nothing(store: str) -> None:
    with ais_loader.connect(store, mode="r") as client:
        tasks = stored_tasks(client)
        members = [
            member.name
            for shard in client.bucket(BUCKET).objects("shards/")
            for member in client.bucket(BUCKET).members(shard.name)
        ]
        assert len(members) == len(set(members)) == 100
        task = tasks[0]
        entry = ais_loader.Entry.from_url(f"ais://{BUCKET}/{task.audio_filepath}")
        data = client.bucket(BUCKET).get(entry.name, member=entry.member)
        assert data == (SPEECH / str(entry.member)).read_bytes()
    with ais_loader.connect(store) as client:
        assert put_corpus(client, SPEECH) == (0, 0)


def test_a_prompt_names_languages_task_and_punctuation_and_text_comes_back(store: str) -> None:
    tasks = read_tasks(SPEECH)
    tokenizer = Tokenizer(tasks)
    task = next(task for task in tasks if task.source_lang == "es" and task.target_lang == "en")
    assert [tokenizer.symbols[number] for number in tokenizer.prompt(task)] == [
        "<|startoftranscript|>",
        "<|es|>",
        "<|translate|>",
        "<|en|>",
        "<|nopnc|>",
    ]
    assert tokenizer.decode(tokenizer.text(task.text)) == task.text


def test_single_gets_give_the_audio_of_the_files_under_their_prompts(store: str) -> None:
    with ais_loader.connect(store, mode="r") as client:
        tasks = stored_tasks(client)
        tokenizer = Tokenizer(tasks)
        cuts = CutSet.from_cuts(map(cut_of, tasks[:20]))
        buckets = Buckets(num_buckets=2)
        step = next(iter(SingleGets(client, buckets.sampler(cuts, buckets.bins(cuts)), Collate(tokenizer))))
    batch = step.batch
    by_name = {task.name: task for task in tasks}
    for row, name in enumerate(batch.ids):
        task = by_name[name]
        text, prompt = tokenizer.text(task.text), tokenizer.prompt(task)
        assert batch.tokens[row, : len(prompt) + len(text)].tolist() == prompt + text
        assert batch.targets[row].tolist()[: len(prompt)] == [0] * len(prompt)
        assert abs(int(batch.frame_counts[row]) - task.duration * 100) <= 2
        local = cut_of(task)
        local.recording.sources[0].type = "file"
        local.recording.sources[0].source = str(SPEECH / task.audio_filepath.partition(".tar/")[2])
        assert torch.equal(batch.frames[row, : batch.frame_counts[row]], Collate.features(local))


def test_an_epoch_of_sequential_shards_has_each_task_once_over_all_ranks(store: str) -> None:
    with ais_loader.connect(store, mode="r") as client:
        tasks = stored_tasks(client)
        collate = Collate(Tokenizer(tasks))
        seen = [
            name
            for rank in range(2)
            for step in SequentialShards(client, tasks, Buckets(rank=rank, world_size=2), collate)
            for name in step.batch.ids
        ]
        assert sorted(seen) == sorted(task.name for task in tasks)
        nothing = SequentialShards(client, tasks, Buckets(rank=10, world_size=11), collate)
        with pytest.raises(CorpusError, match="fewer shards"):
            next(nothing.endless())


def test_getbatch_trains_on_the_very_batches_that_single_gets_do(store: str, tmp_path: Path) -> None:
    result = run(
        "--stored", "--url", store, "--steps", 12, "--source", "get", "--source", "getbatch", "--output", tmp_path
    )
    assert "not clearly fall" in result.stderr or result.exit_code == 0, result.stderr
    of_get = [(row["cuts"], row["loss"]) for row in read_lines(tmp_path / "get" / "batches-0.jsonl")]
    of_batches = [(row["cuts"], row["loss"]) for row in read_lines(tmp_path / "getbatch" / "batches-0.jsonl")]
    assert len(of_get) == 12 and of_get == of_batches
    assert (tmp_path / "canary.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("processes", [1, 2])
def test_killed_at_any_moment_it_goes_on_with_the_same_batches(
    processes: int, store: str, node: str, tmp_path: Path
) -> None:
    url = store if processes == 1 else node
    options = ("--stored", "--url", url, "--steps", 14, "--checkpoint-every", 3, "--processes", processes)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    finished(*options, "--output", whole)
    assert len(cuts_and_losses(whole)) == 14
    with killed_at_the_end(killed, *options) as until:
        until(8)
    again = finished(*options, "--output", killed)
    assert "goes on after step 6" in again.stdout, again.stdout + again.stderr
    for rank in range(processes):
        assert cuts_and_losses(killed, rank) == cuts_and_losses(whole, rank)
    if processes == 2:  # what one rank has, the other has not
        assert {tuple(cuts) for _, cuts, _ in cuts_and_losses(whole, 0)}.isdisjoint(
            tuple(cuts) for _, cuts, _ in cuts_and_losses(whole, 1)
        )


def test_other_settings_than_those_of_the_checkpoint_are_refused_by_name(store: str, tmp_path: Path) -> None:
    options = ("--stored", "--url", store, "--steps", 10, "--output", tmp_path)
    run(*options)
    refused = run(*options, "--seed", 7)
    assert refused.exit_code == 1 and "seed=0" in refused.stderr and "--fresh" in refused.stderr
    assert "begins" in run(*options, "--seed", 7, "--fresh").stdout


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--stored",), "give --url"),
        (("--data", "/nowhere/at/all"), "cannot read"),
    ],
)
def test_wrong_options_are_told_in_a_line(options: tuple[str, ...], says: str, tmp_path: Path) -> None:
    refused = run(*options, "--output", tmp_path)
    assert refused.exit_code in (1, 2) and says in refused.stderr and "Traceback" not in refused.stderr


def test_a_store_without_a_corpus_says_how_to_put_one(tmp_path: Path) -> None:
    ais_loader.connect(tmp_path / "store").close()
    refused = run("--stored", "--url", tmp_path / "store", "--output", tmp_path)
    assert refused.exit_code == 1 and "put one with --data" in refused.stderr


def test_a_folder_with_lines_in_nemos_form_is_a_corpus_too(tmp_path: Path) -> None:
    line = {
        "audio_filepath": "en/agent-incorrect.flac",
        "duration": 5.154875,
        "sampling_rate": 8000,
        "text": "Login incorrect.",
        "source_lang": "en",
        "target_lang": "en",
        "taskname": "asr",
        "pnc": "yes",
    }
    (tmp_path / "en").mkdir()
    (tmp_path / line["audio_filepath"]).write_bytes((SPEECH / line["audio_filepath"]).read_bytes())
    (tmp_path / "manifest.jsonl").write_text(json.dumps(line) + "\n")
    (task,) = read_tasks(tmp_path)
    assert (task.text, task.pnc, task.key) == ("Login incorrect.", "yes", "agent-incorrect")
    (tmp_path / "manifest.jsonl").write_text(json.dumps(line | {"duration": "long"}) + "\n")
    with pytest.raises(CorpusError, match="wrong one"):
        read_tasks(tmp_path)
