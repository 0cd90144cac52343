"""Samples of a fetched batch: what a dataset returns, and a worker sends to the trainer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from ais_loader.training.sample_parts import SampleParts, is_complete, place_of, raw
from ais_loader.values.batch import Batch
from ais_loader.values.packed import PackedBatch
from ais_loader.values.timing import BatchTiming, Cause

Decode: TypeAlias = Callable[[Any], Any]
"""A function from an Item, or from a tuple or dict of Items, to a sample."""
OnBatch: TypeAlias = Callable[[BatchTiming], object]


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
    batch: Batch, decode: Decode | None, on_batch: OnBatch | None = None, parts: SampleParts | None = None
) -> list[Any]:
    """Return the samples of one fetched batch, in order. `parts`: how its entries form samples, if some have several.

    They do not refer to the batch's buffers unless `decode` kept a view. This is the one place to change how a batch's
    bytes reach another process.
    """
    _note(batch)
    with batch:
        batch.between_frames = "decode"
        if parts is not None:
            samples = list(parts.samples(batch, decode))
        else:
            samples = batch.tobytes() if decode is None else list(_decoded(batch, decode))
    if on_batch is not None:
        on_batch(batch.timing)
    return samples


def take_packed(batch: Batch, on_batch: OnBatch | None = None) -> PackedBatch:
    """Return the entries of one fetched batch, end to end."""
    _note(batch)
    with batch:
        packed = batch.packed()
    if on_batch is not None:
        on_batch(batch.timing)
    return packed


def _note(batch: Batch) -> None:
    if HEARD.batches is not None:
        HEARD.batches.append(batch)
        batch._watch.heard = HEARD.cause


def _decoded(batch: Batch, decode: Decode) -> Iterator[Any]:
    for item in batch:
        try:
            yield decode(item)
        except Exception as error:
            error.add_note(f"raised by decode() for entry {item.index} of its batch, {place_of(item.entry)}")
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
    return decode if transform is None else _Transformed(decode, transform)
