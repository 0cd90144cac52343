"""Corpus: utterances with their tasks, as tar shards and one manifest in a bucket.

What is put in: a folder with `manifest.jsonl` and the audio that it names. Its lines are those of NeMo's manifests
(`audio_filepath`, `duration`, `sampling_rate`, `text`, `source_lang`, `target_lang`, `taskname`, `pnc`), or those of
tests/data/speech, where a prompt spoken in several languages makes tasks of translation too.

What is in the bucket: `shards/<lang>-<n>.tar`, each recording once however many tasks use it, and `manifest.jsonl`,
lines in NeMo's form whose `audio_filepath` is `shards/en-000.tar/en/hello.flac`. Trainers read only these, so that any
machine that reaches the store can train.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from ais_loader import Client, errors
from examples.speech.corpus import CorpusError, spoken_text

BUCKET = "canary"
MANIFEST = "manifest.jsonl"
PIVOT = "en"
"""Translations go from it and into it."""
MEMBERS_PER_SHARD = 10


@dataclass(frozen=True, slots=True)
class Task:
    """One line of the manifest: what to write when this recording is heard under this prompt."""

    audio_filepath: str
    duration: float
    """Seconds."""
    sampling_rate: int
    text: str
    source_lang: str
    target_lang: str
    taskname: str
    """`asr` or `ast`."""
    pnc: str
    """Whether the text has punctuation and capitals: `yes` or `no`."""
    key: str
    """Key of the prompt, equal in all languages. It decides between training and validation."""

    @property
    def name(self) -> str:
        return f"{self.key}.{self.source_lang}-{self.target_lang}"


def read_tasks(folder: Path) -> list[Task]:
    """The tasks of a folder, in the manifest's order.

    Raises CorpusError: no manifest, a line that is none, or a recording that is not there.
    """
    path = folder / MANIFEST
    try:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except OSError as error:
        raise CorpusError(f"cannot read {path}: {error.strerror}; give the corpus' folder with --data") from error
    except ValueError as error:
        raise CorpusError(f"{path} is not JSON lines: {error}") from error
    try:
        tasks = list(_prompts(rows) if rows and "lang" in rows[0] else map(_nemo_row, rows))
    except (KeyError, TypeError, ValueError) as error:
        raise CorpusError(f"{path}: a line lacks a field, or has a wrong one: {error!r}") from error
    missing = sorted({task.audio_filepath for task in tasks if not (folder / task.audio_filepath).is_file()})
    if missing or not tasks:
        raise CorpusError(f"{folder}: {len(missing)} recordings are missing of {len(tasks)} lines: {missing[:3]}")
    return tasks


def _nemo_row(row: dict[str, object]) -> Task:
    source, target = str(row["source_lang"]), str(row["target_lang"])
    path = str(row["audio_filepath"])
    return Task(
        audio_filepath=path,
        duration=float(str(row["duration"])),
        sampling_rate=int(str(row["sampling_rate"])),
        text=str(row["text"]),
        source_lang=source,
        target_lang=target,
        taskname=str(row.get("taskname") or ("asr" if source == target else "ast")),
        pnc=str(row.get("pnc", "no")),
        key=str(row.get("key") or Path(path).stem),
    )


def _prompts(rows: Sequence[dict[str, object]]) -> Iterator[Task]:
    """Each recording to be transcribed, and to be translated from and into the pivot where both are there."""
    texts = {(str(row["lang"]), str(row["key"])): spoken_text(str(row["text"])) for row in rows}
    others = sorted({lang for lang, _ in texts} - {PIVOT})
    for row in rows:
        source, key = str(row["lang"]), str(row["key"])
        for target in (source, *(others if source == PIVOT else (PIVOT,))):
            if (target, key) in texts:
                yield Task(
                    audio_filepath=str(row["name"]),
                    duration=float(str(row["duration_s"])),
                    sampling_rate=int(str(row["sampling_rate_hz"])),
                    text=texts[target, key],
                    source_lang=source,
                    target_lang=target,
                    taskname="asr" if source == target else "ast",
                    pnc="no",
                    key=key,
                )


def put_corpus(client: Client, folder: Path, *, copies: int = 1) -> tuple[int, int]:
    """Store shards and manifest; returns recordings and bytes put, which is nothing when this manifest is there.

    The manifest comes last: a bucket that has it has all the shards that it names.
    """
    tasks = read_tasks(folder)
    shards = _shards(tasks)
    place = {path: f"{shard}/{path}" for shard, paths in shards.items() for path in paths}
    manifest = "".join(
        json.dumps(asdict(replace(task, audio_filepath=place[task.audio_filepath])), ensure_ascii=False) + "\n"
        for task in tasks
    ).encode()
    bucket = client.create_bucket(BUCKET, exist_ok=True, copies=copies)
    try:
        if bucket.get(MANIFEST) == manifest:
            return 0, 0
    except errors.ObjectNotFound:
        pass
    size_bytes = 0
    for shard, paths in shards.items():
        size_bytes += bucket.put(shard, _tar(folder, paths)).size_bytes
    bucket.put(MANIFEST, manifest)
    return len(place), size_bytes


def _shards(tasks: Sequence[Task]) -> dict[str, list[str]]:
    """Which recordings are in which shard: those of a language in the manifest's order, each once."""
    of_language: dict[str, dict[str, None]] = {}
    for task in tasks:
        of_language.setdefault(task.source_lang, {})[task.audio_filepath] = None
    return {
        f"shards/{lang}-{start // MEMBERS_PER_SHARD:03d}.tar": list(paths)[start : start + MEMBERS_PER_SHARD]
        for lang, paths in sorted(of_language.items())
        for start in range(0, len(paths), MEMBERS_PER_SHARD)
    }


def _tar(folder: Path, paths: Sequence[str]) -> bytes:
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w") as tar:
        for path in paths:
            data = (folder / path).read_bytes()
            member = tarfile.TarInfo(path)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return written.getvalue()


def stored_tasks(client: Client) -> list[Task]:
    """The tasks in the bucket. Raises CorpusError when no corpus has been put there."""
    try:
        lines = client.bucket(BUCKET).get(MANIFEST).decode().splitlines()
    except errors.NotFound as error:
        raise CorpusError(f"there is no corpus in ais://{BUCKET}: put one with --data FOLDER") from error
    return [Task(**json.loads(line)) for line in lines]


def split(tasks: Sequence[Task], *, every: int = 10) -> tuple[list[Task], list[Task]]:
    """Training and validation: every tenth key, with all its languages, is for validation."""
    keys = sorted({task.key for task in tasks})
    held_out = set(keys[every - 1 :: every])
    return [task for task in tasks if task.key not in held_out], [task for task in tasks if task.key in held_out]
