"""Samples of a fetched batch: what a dataset returns, and a worker sends to the trainer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

from ais_loader.errors import EntryFailed, LoaderError
from ais_loader.training.sample_parts import SampleParts, is_complete, raw
from ais_loader.training.sample_seeds import seed_next_sample, with_rng
from ais_loader.values.batch import Batch
from ais_loader.values.packed import PackedBatch
from ais_loader.values.timing import BatchTiming, Cause

Decode: TypeAlias = Callable[[Any], Any]
"""A function from an Item, or from a tuple or dict of Items, to a sample."""
OnBatch: TypeAlias = Callable[[BatchTiming], object]
Name: TypeAlias = Callable[[int], str]
"""A function from the position of a sample in its batch to its name, for errors."""


class _Heard(threading.local):
    batches: list[Batch] | None = None
    cause: Callable[[Cause], None] | None = None


HEARD = _Heard()
"""The batches that this thread takes, and a function of what their time goes to, for a loader that times them. None if
nobody listens."""


def note_cause(cause: Cause) -> None:
    """Tell who listens in this thread that a batch's time goes to this from now on."""
    if HEARD.cause is not None:
        HEARD.cause(cause)


def take_samples(
    batch: Batch, decode: Decode | None, on_batch: OnBatch | None, parts: SampleParts | None, name: Name
) -> list[Any]:
    """Return the samples of one fetched batch, in order. `parts`: how its entries form samples, if some have several.
    `name`: names a sample by its position otherwise.

    They do not refer to the batch's buffers unless `decode` kept a view. This is the one place to change how a batch's
    bytes reach another process.
    """
    _note(batch)
    with _naming(batch, name if parts is None else parts.name_of_entry), batch:
        batch.between_frames = "decode"
        if decode is not None:
            items, own_name = (batch, name) if parts is None else (parts.items(batch), parts.name)
            samples = list(_decoded(items, decode, own_name))
        else:
            samples = batch.tobytes() if parts is None else list(map(raw, parts.items(batch)))
    if on_batch is not None:
        on_batch(batch.timing)
    return samples


def take_packed(batch: Batch, on_batch: OnBatch | None, name: Name) -> PackedBatch:
    """Return the entries of one fetched batch, end to end."""
    _note(batch)
    with _naming(batch, name), batch:
        packed = batch.packed()
    if on_batch is not None:
        on_batch(batch.timing)
    return packed


def _note(batch: Batch) -> None:
    if HEARD.batches is not None:
        HEARD.batches.append(batch)
        batch._watch.heard = HEARD.cause


@contextmanager
def _naming(batch: Batch, name: Name) -> Iterator[None]:
    """Add the sample's name to the error of an entry."""
    try:
        yield
    except LoaderError as error:
        for index, failed in batch.failures.items():
            if failed is error:
                error.add_note(name(index))
        raise


def _decoded(items: Iterable[Any], decode: Decode, name: Name) -> Iterator[Any]:
    for at, item in enumerate(items):
        seed_next_sample()
        try:
            yield decode(item)
        except SystemExit as error:  # which would end the trainer
            raise EntryFailed(f"decode() called sys.exit({error.code!r}) for {name(at)}") from error
        except Exception as error:
            error.add_note(f"raised by decode() for {name(at)}")
            raise


class _Transformed:
    """A decoder followed by a transform. Samples of failed entries are returned as the decoder leaves them."""

    def __init__(self, decode: Decode | None, transform: Callable[[Any], Any]) -> None:
        self._decode, self._transform = decode, transform

    def __call__(self, item: Any) -> Any:
        if not is_complete(item):
            return None if self._decode is None else self._decode(item)
        return self._transform(raw(item) if self._decode is None else self._decode(item))


def decoder(decode: Decode | None, transform: Callable[[Any], Any] | None) -> Decode | None:
    """Combine the decoder and the transform. Raises TypeError."""
    for name, given in (("decode", decode), ("transform", transform)):
        if given is not None and not callable(given):
            raise TypeError(f"{name} is a {type(given).__name__}: need a function")
    own = None if decode is None else with_rng(decode)
    return own if transform is None else _Transformed(own, with_rng(transform))
