"""Training of a small speech model on five languages, every batch one GetBatch: `python -m examples.speech.train`.

Without options: an embedded store in a temporary folder, removed afterwards. With `--url grpc://host:port` the same
code talks to storage nodes. The sampler is an ordinary torch sampler and stays here, on the client: it decides which
recordings make up a batch, the store delivers them in that order.

The exit status is 1 when the loss did not clearly fall.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import click
from tqdm import tqdm

from ais_loader import Client, Entry, LoaderError, connect
from examples.speech.corpus import Alphabet, CorpusError, Utterance, read_corpus
from examples.speech.report import Example, Summary, describe, draw, edit_distance, is_falling, step_shares

BUCKET = "speech-demo"
ROOT = Path(__file__).resolve().parents[2]


def put_corpus(client: Client, corpus: Sequence[Utterance], copies: int) -> tuple[int, float]:
    """Store every recording under its name; returns bytes and seconds."""
    started = time.perf_counter()
    bucket = client.create_bucket(BUCKET, exist_ok=True, copies=copies)
    # disable=None: a bar on a terminal, nothing in a log file.
    with tqdm(total=len(corpus), desc="put", unit="object", disable=None) as bar:
        put = bucket.put_many(
            ((utterance.name, utterance.path) for utterance in corpus), progress=lambda _: bar.update()
        )
    return put.size_bytes, time.perf_counter() - started


def one_per_language(examples: Sequence[Example]) -> tuple[Example, ...]:
    """The first utterance of each language."""
    return tuple({example.lang: example for example in reversed(examples)}.values())[::-1]


def run(
    *,
    url: str,
    copies: int,
    data: Path,
    steps: int,
    batch_size: int,
    num_workers: int,
    seed: int,
    output: Path,
    quiet: bool,
) -> Summary:
    """Store the corpus at `url`, train, write the PNG. Raises CorpusError, LoaderError or OSError."""
    corpus = read_corpus(data)
    output.parent.mkdir(parents=True, exist_ok=True)
    if not os.access(output.parent, os.W_OK):  # said now, not when all the work is done
        raise PermissionError(f"cannot write into {output.parent}")
    alphabet = Alphabet(utterance.text for utterance in corpus)
    entries = [Entry(BUCKET, utterance.name, opaque=tuple(alphabet.encode(utterance.text))) for utterance in corpus]
    with connect(url) as client:
        size_bytes, put_s = put_corpus(client, corpus, copies)
        click.echo(
            f"put     {len(corpus)} utterances, {len({u.lang for u in corpus})} languages, "
            f"{sum(u.duration_s for u in corpus):.0f} s of audio, {size_bytes / 1e6:.1f} MB into {url} "
            f"in {put_s:.2f} s\n"
            "import  torch, which takes some seconds",
            err=quiet,
        )
        from examples.speech import trainer  # only now: the lines above need not wait for it

        model = trainer.new_model(len(alphabet), num_workers=num_workers, seed=seed)
        click.echo(
            f"train   {steps} steps of {batch_size}, each one GetBatch; "
            f"{sum(p.numel() for p in model.parameters()):,} parameters, "
            f"{trainer.compute_threads(num_workers)} thread(s)",
            err=quiet,
        )
        loader = trainer.random_batches(
            client, entries, steps=steps, batch_size=batch_size, num_workers=num_workers, seed=seed
        )
        log = trainer.train(model, loader, steps=steps, num_workers=num_workers, quiet=quiet)
        examples = trainer.transcribe(client, model, corpus, entries, alphabet)
    wait_share, decode_share, compute_share = step_shares(log)
    errors = sum(edit_distance(example.reference, example.hypothesis) for example in examples)
    summary = Summary(
        url=url,
        utterances=len(corpus),
        stored_bytes=size_bytes,
        put_s=put_s,
        steps=steps,
        batch_size=batch_size,
        num_workers=num_workers,
        seed=seed,
        train_s=log.step_s(),
        samples_per_s=steps * batch_size / log.step_s(),
        wait_share=wait_share,
        decode_share=decode_share,
        compute_share=compute_share,
        decode_overlaps=log.decode_overlaps,
        loss_first=log.loss[0],
        loss_last=log.loss[-1],
        loss_first_tenth=log.mean_loss(0),
        loss_last_tenth=log.mean_loss(-1),
        loss_falling=is_falling(log),
        character_error_rate=errors / sum(len(example.reference) for example in examples),
        examples=one_per_language(examples),
        png=str(output),
    )
    draw(log, summary, output)
    return summary


@click.command(help="Train a small speech model on 100 utterances in five languages, every batch one GetBatch.")
@click.option("--url", help="Where to store and read: a folder, or grpc://host:port. Default: a temporary folder.")
@click.option(
    "--copies", type=click.IntRange(min=1), default=1, show_default=True, help="Hosts of a cluster that keep each file."
)
@click.option("--steps", type=click.IntRange(min=2), default=800, show_default=True, help="Batches to train on.")
@click.option("--batch-size", type=click.IntRange(min=1), default=4, show_default=True, help="Utterances a batch.")
@click.option("--num-workers", type=click.IntRange(min=0), default=0, show_default=True, help="DataLoader processes.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the weights and of the order of utterances.")
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    default=ROOT / "tests" / "data" / "speech",
    help="Folder with manifest.jsonl and recordings. Default: the utterances that come with the source.",
)
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("demo-output/speech.png"),
    show_default=True,
    help="The plot to write.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON; progress goes to stderr.")
def main(
    url: str | None,
    copies: int,
    steps: int,
    batch_size: int,
    num_workers: int,
    seed: int,
    data: Path,
    output: Path,
    as_json: bool,
) -> None:
    with ExitStack() as stack:
        if url is None:
            url = stack.enter_context(tempfile.TemporaryDirectory(prefix="speech-demo-"))
        try:
            summary = run(
                url=url,
                copies=copies,
                data=data,
                steps=steps,
                batch_size=batch_size,
                num_workers=num_workers,
                seed=seed,
                output=output,
                quiet=as_json,
            )
        except (CorpusError, LoaderError, OSError) as error:
            raise click.ClickException(str(error)) from error
    click.echo(json.dumps(summary.as_json(), ensure_ascii=False, indent=2) if as_json else describe(summary))
    if not summary.loss_falling:
        raise click.ClickException(
            f"the loss did not clearly fall: {summary.loss_first:.3f} at the first step, "
            f"{summary.loss_last_tenth:.3f} in the last tenth of the steps"
        )


if __name__ == "__main__":
    main()
