"""Trainer of the speech model: batches from the store, optimizer steps, and transcripts of what it has learned.

It needs torch, which takes seconds to import. The command in train.py therefore imports this module last.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

import click
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler

from ais_loader import Client, Entry, Item, MapDataset
from examples.speech.corpus import Alphabet, Utterance
from examples.speech.features import Batch, Sample, collate, make_sample
from examples.speech.model import SpeechModel
from examples.speech.report import Example, StepLog

PEAK_LEARNING_RATE = 3e-3


def decode(item: Item) -> Sample:
    """A delivered object to a sample; `opaque` came along with the request and never left this machine."""
    return make_sample(item.data, item.entry.opaque)


def compute_threads(num_workers: int) -> int:
    """All cores but one, and but those of the workers; 4 at most.

    A choice for steadiness, not for top speed: threads that compute together wait for the slowest at every operation.
    On two cores, samples/s in three short runs each, with batches of 16 that were padded: beside one busy program, one
    thread 84 to 137 and two threads 53 to 68; without it, on a machine that others used too, one thread 133 to 143 and
    two threads 42 to 219.
    """
    return max(1, min(4, len(os.sched_getaffinity(0)) - 1 - num_workers))


def new_model(characters: int, *, num_workers: int, seed: int) -> SpeechModel:
    """Set torch's seed and number of threads, and return a model with random weights."""
    torch.manual_seed(seed)
    torch.set_num_threads(compute_threads(num_workers))
    return SpeechModel(characters)


def random_batches(
    client: Client, entries: Sequence[Entry], *, steps: int, batch_size: int, num_workers: int, seed: int
) -> DataLoader[Batch]:
    """`steps` batches in seeded random order, epoch after epoch without a seam; each is one storage request."""
    generator = torch.Generator().manual_seed(seed)
    dataset = MapDataset(client, entries, decode=decode)
    sampler = RandomSampler(dataset, num_samples=steps * batch_size, generator=generator)
    return DataLoader(
        dataset,
        batch_sampler=BatchSampler(sampler, batch_size, drop_last=False),
        num_workers=num_workers,
        collate_fn=collate,
    )


def train(model: SpeechModel, loader: DataLoader[Batch], *, steps: int, num_workers: int, quiet: bool) -> StepLog:
    """Run the loader to its end, one optimiser step a batch; prints a line for every tenth of the run."""
    log = StepLog(decode_overlaps=num_workers > 0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_LEARNING_RATE, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, PEAK_LEARNING_RATE, total_steps=steps, pct_start=0.15)
    every = max(1, steps // 10)
    batches = iter(loader)
    click.echo("   step    loss  samples/s  waiting for data", err=quiet)
    for step in range(1, steps + 1):
        asked = time.perf_counter()
        batch = next(batches)
        received = time.perf_counter()
        loss = model.loss(batch)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        schedule.step()
        loss_value = loss.item()
        done = time.perf_counter()
        log.add(loss=loss_value, next_s=received - asked, decode_s=batch.decode_s, compute_s=done - received)
        if step % every == 0:
            recent_s = log.step_s(step - every)
            rate = every * len(batch.frame_counts) / recent_s
            share = sum(log.wait_s[-every:]) / recent_s
            recent_loss = sum(log.loss[-every:]) / every
            click.echo(f"{step:7d} {recent_loss:7.3f} {rate:10.0f} {share:17.1%}", err=quiet)
    return log


def transcribe(
    client: Client, model: SpeechModel, corpus: Sequence[Utterance], entries: Sequence[Entry], alphabet: Alphabet
) -> list[Example]:
    """Return the model's output for every utterance, in order. Utterances are read as pipelined batches."""
    model.eval()
    size = 20
    parts = [list(entries[start : start + size]) for start in range(0, len(entries), size)]
    written: list[str] = []
    for items in client.get_batches(parts, in_flight=3):
        batch = collate([decode(item) for item in items])
        written += [alphabet.decode(classes) for classes in model.transcribe(batch)]
    return [
        Example(utterance.lang, utterance.name, utterance.text, text)
        for utterance, text in zip(corpus, written, strict=True)
    ]
