"""Canary-style training: `python -m examples.canary.train`.

Without options: 100 utterances of tests/data in a temporary embedded store, 260 tasks of transcription and
translation, every batch one GetBatch. `--url` takes a folder, a node or a cluster; `--processes 2` trains with
DistributedDataParallel on gloo, as does `torchrun`. Killed at any moment, the same command goes on from its last
checkpoint with the very batches that would have come.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import click
import torch
import torch.distributed
import torch.multiprocessing
from lhotse import CutSet
from torch.nn.parallel import DistributedDataParallel

from ais_loader import Client, LoaderError, connect
from examples.canary.batch import Collate, cut_of
from examples.canary.checkpoint import CheckpointMismatch, Checkpoints, StepLines, read_lines
from examples.canary.corpus import Task, put_corpus, split, stored_tasks
from examples.canary.model import CanaryModel
from examples.canary.prompts import Tokenizer
from examples.canary.report import METHODS, RunReport, draw, run_report, table
from examples.canary.sources import Buckets, GetBatches, GetBatchesAhead, SequentialShards, SingleGets, Source
from examples.speech.corpus import CorpusError

ROOT = Path(__file__).resolve().parents[2]
RENDEZVOUS_S = 120.0
"""A rank that is not there by then is not coming."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """One run. What `settings` leaves out may change when it goes on."""

    url: str
    source: str
    output: str
    steps: int
    max_duration_s: float
    learning_rate: float
    seed: int
    ahead: int
    checkpoint_every: int
    world_size: int
    quiet: bool

    def settings(self) -> dict[str, object]:
        free = ("url", "output", "checkpoint_every", "quiet", "ahead")
        return {name: value for name, value in asdict(self).items() if name not in free}


def open_source(client: Client, config: Config, rank: int, tasks: Sequence[Task], collate: Collate) -> Source:
    buckets = Buckets(max_duration_s=config.max_duration_s, seed=config.seed, rank=rank, world_size=config.world_size)
    if config.source == "shards":
        return SequentialShards(client, tasks, buckets, collate)
    cuts = CutSet.from_cuts(map(cut_of, tasks))
    sampler = buckets.sampler(cuts, buckets.bins(cuts))
    if config.source == "get":
        return SingleGets(client, sampler, collate)
    if config.ahead == 0:
        return GetBatches(config.url, sampler, collate)
    return GetBatchesAhead(config.url, sampler, collate, ahead=config.ahead)


def train_rank(rank: int, config: Config, rendezvous: str | None) -> None:
    """Train to the last step, from the newest checkpoint if there is one. `rendezvous` is a URL of torch.distributed's.

    Files in `config.output`: checkpoints, `batches-<rank>.jsonl`, and rank 0's `result.json` at the end.
    """
    torch.set_num_threads(1)  # the ranks share the cores; one thread each also computes the same each time
    torch.manual_seed(config.seed)
    with ExitStack() as stack:
        if rendezvous is not None:
            torch.distributed.init_process_group(
                "gloo",
                init_method=rendezvous,
                rank=rank,
                world_size=config.world_size,
                timeout=timedelta(seconds=RENDEZVOUS_S),
            )
            stack.callback(torch.distributed.destroy_process_group)
        client = stack.enter_context(connect(config.url, mode="r"))
        tasks = stored_tasks(client)
        training, validation = split(tasks)
        tokenizer = Tokenizer(tasks)
        collate = Collate(tokenizer)
        model = CanaryModel(len(tokenizer))
        train = model if rendezvous is None else DistributedDataParallel(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=config.learning_rate, weight_decay=1e-2)
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, config.learning_rate, total_steps=config.steps, pct_start=0.15
        )
        source = open_source(client, config, rank, training, collate)
        stack.callback(source.close)
        barrier = torch.distributed.barrier if rendezvous is not None else _nobody_to_wait_for
        output = Path(config.output)
        checkpoints = Checkpoints(output, rank=rank, settings=config.settings(), barrier=barrier)
        done = 0
        if (found := checkpoints.load()) is not None:
            done, saved, place = found
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
            schedule.load_state_dict(saved["schedule"])
            source.load_state_dict(place["source"])
            torch.set_rng_state(place["rng"])
        if rank == 0:
            began = f"goes on after step {done}" if done else "begins"
            click.echo(
                f"{METHODS[config.source]}: {began}, {config.steps} steps, {len(training)} tasks", err=config.quiet
            )
        lines = stack.enter_context(closing(StepLines(output / f"batches-{rank}.jsonl", after_step=done)))
        steps = stack.enter_context(closing(source.endless()))
        every = max(1, config.steps // 10)
        model.train()
        for number in range(done + 1, config.steps + 1):
            asked = time.perf_counter()
            step = next(steps)
            received = time.perf_counter()
            loss = train(step.batch)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            ended = time.perf_counter()
            decode_s = 0.0 if step.decoded_ahead else step.batch.decode_s
            lines.add(
                {
                    "step": number,
                    "cuts": list(step.batch.ids),
                    "loss": loss.item(),
                    "wait_s": max(0.0, received - asked - decode_s),
                    "step_s": ended - asked,
                    "fetch_s": step.fetch_s,
                    "sample_s": step.sample_s,
                }
            )
            if rank == 0 and number % every == 0:
                click.echo(f"{number:7d}  loss {loss.item():6.3f}  {len(step.batch.ids):3d} samples", err=config.quiet)
            if number % config.checkpoint_every == 0 or number == config.steps:
                state = {
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "schedule": schedule.state_dict(),
                }
                checkpoints.save(number, state, {"source": source.state_dict(), "rng": torch.get_rng_state()})
        if rank == 0:
            result = evaluate(model, config, validation, collate, tokenizer)
            (output / "result.json").write_text(json.dumps(result, ensure_ascii=False))


def _nobody_to_wait_for() -> None:
    pass


@torch.inference_mode()
def evaluate(
    model: CanaryModel, config: Config, tasks: Sequence[Task], collate: Collate, tokenizer: Tokenizer
) -> dict[str, Any]:
    """Loss over tasks that were not trained on, and what is written for one of each kind."""
    model.eval()
    cuts = CutSet.from_cuts(map(cut_of, tasks))
    buckets = Buckets(max_duration_s=config.max_duration_s)
    losses, samples = [], []
    by_name = {task.name: task for task in tasks}
    shown: set[str] = set()
    for step in GetBatches(config.url, buckets.sampler(cuts, buckets.bins(cuts)), collate):
        losses.append(model(step.batch).item())
        if len(shown) < 2:
            written = model.write(step.batch, end=tokenizer.end)
            for name, numbers in zip(step.batch.ids, written, strict=True):
                task = by_name[name]
                if task.taskname not in shown:
                    shown.add(task.taskname)
                    samples.append({**asdict(task), "written": tokenizer.decode(numbers)})
    return {"validation_loss": sum(losses) / len(losses), "samples": samples}


def run(config: Config) -> None:
    """All ranks of a run on this machine, or this process's own under torchrun. Raises what a rank raises."""
    output = Path(config.output)
    output.mkdir(parents=True, exist_ok=True)
    if "RANK" in os.environ:
        train_rank(int(os.environ["RANK"]), config, "env://")
    elif config.world_size == 1:
        train_rank(0, config, None)
    else:
        meeting = output / f"rendezvous-{os.getpid()}"
        try:
            torch.multiprocessing.spawn(
                train_rank, (config, f"file://{meeting.resolve()}"), nprocs=config.world_size, join=True
            )
        finally:
            meeting.unlink(missing_ok=True)


def report_of(config: Config) -> RunReport:
    """Return the report that rank 0 wrote to its folder."""
    output = Path(config.output)
    rows = read_lines(output / "batches-0.jsonl")
    result = json.loads((output / "result.json").read_text())
    return run_report(config.source, rows, world_size=config.world_size, validation_loss=result["validation_loss"])


@click.command(help="Train a small Canary-style model: transcription and translation of five languages.")
@click.option("--url", help="Where to store and read: a folder, or grpc://host:port. Default: a temporary folder.")
@click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder with manifest.jsonl and recordings, put unless they are there. Default: tests/data/speech.",
)
@click.option("--stored", is_flag=True, help="Train from what is in the store already, and put nothing.")
@click.option("--copies", type=click.IntRange(min=1), default=1, show_default=True, help="Hosts that keep each object.")
@click.option(
    "--source",
    "sources",
    type=click.Choice(list(METHODS)),
    multiple=True,
    default=("getbatch",),
    help="How batches are read. Given several times: the same steps with each, and a table. Default: getbatch.",
)
@click.option(
    "--ahead",
    type=click.IntRange(min=0),
    help="GetBatch: batches asked for before their turn. Default: 2, and 0 where several sources are compared.",
)
@click.option("--steps", type=click.IntRange(min=10), default=200, show_default=True, help="Batches to train on.")
@click.option("--max-duration", type=click.FloatRange(min=5), default=40.0, show_default=True, help="Seconds a batch.")
@click.option("--learning-rate", type=click.FloatRange(min=0, min_open=True), default=2e-3, show_default=True)
@click.option("--processes", type=click.IntRange(min=1), default=1, show_default=True, help="Ranks on this machine.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of weights, buckets and order.")
@click.option("--checkpoint-every", type=click.IntRange(min=1), default=20, show_default=True, help="Steps.")
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("demo-output/canary"),
    show_default=True,
    help="Checkpoints, logs and the plot. A run that finds its checkpoint here goes on.",
)
@click.option("--fresh", is_flag=True, help="Begin anew, whatever is in --output.")
@click.option("--json", "as_json", is_flag=True, help="Print the reports as JSON; progress goes to stderr.")
def main(
    url: str | None,
    data: Path | None,
    stored: bool,
    copies: int,
    sources: tuple[str, ...],
    ahead: int | None,
    steps: int,
    max_duration: float,
    learning_rate: float,
    processes: int,
    seed: int,
    checkpoint_every: int,
    output: Path,
    fresh: bool,
    as_json: bool,
) -> None:
    if stored and (data is not None or url is None):
        raise click.UsageError("--stored reads what is in the store at --url: give --url, and no --data")
    if "RANK" in os.environ and url is None:
        raise click.UsageError("ranks of torchrun need one store for all: give --url")
    world_size = int(os.environ.get("WORLD_SIZE", processes))
    first = int(os.environ.get("RANK", "0")) == 0
    reports = []
    with ExitStack() as stack:
        if url is None:
            url = stack.enter_context(tempfile.TemporaryDirectory(prefix="canary-"))
        try:
            if not stored and first:
                put_anew(url, data or ROOT / "tests" / "data" / "speech", copies, quiet=as_json)
            for source in dict.fromkeys(sources):
                folder = output / source
                if fresh and first:
                    forget(folder)
                config = Config(
                    url=url,
                    source=source,
                    output=str(folder),
                    steps=steps,
                    max_duration_s=max_duration,
                    learning_rate=learning_rate,
                    seed=seed,
                    ahead=(2 if len(set(sources)) == 1 else 0) if ahead is None else ahead,
                    checkpoint_every=checkpoint_every,
                    world_size=world_size,
                    quiet=as_json,
                )
                run(config)
                if first:
                    reports.append(report_of(config))
        except (CorpusError, CheckpointMismatch, LoaderError, OSError) as error:
            raise click.ClickException(str(error)) from error
    if not first:
        return
    picture = output / "canary.png"
    draw({report.source: read_lines(output / report.source / "batches-0.jsonl") for report in reports}, picture)
    if as_json:
        click.echo(json.dumps([report.as_json() for report in reports], indent=2))
    else:
        click.echo(table(reports))
        for sample in json.loads((output / reports[-1].source / "result.json").read_text())["samples"]:
            click.echo(f"\n{sample['taskname']} {sample['source_lang']} → {sample['target_lang']}, not trained on")
            click.echo(f"  wanted   {sample['text']}\n  written  {sample['written']}")
        click.echo(f"\nplot  {picture}")
    flat = [report.source for report in reports if not report.loss_falling]
    if flat:
        raise click.ClickException(f"the loss did not clearly fall: {', '.join(flat)}")


def put_anew(url: str, data: Path, copies: int, *, quiet: bool) -> None:
    """The corpus into the store, unless it is there."""
    with connect(url) as client:
        recordings, size_bytes = put_corpus(client, data, copies=copies)
    if recordings:
        click.echo(f"put {recordings} recordings as shards, {size_bytes / 1e6:.1f} MB, into {url}", err=quiet)


def forget(folder: Path) -> None:
    """Take away the mark of the newest checkpoint; the rest is overwritten."""
    (folder / "latest").unlink(missing_ok=True)


if __name__ == "__main__":
    main()
