"""Collating batches in which some entries failed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ais_loader.errors import EntryFailed
from ais_loader.extras import needs

with needs("torch", "drop_placeholders"):
    from torch.utils.data import default_collate


def drop_placeholders(samples: list[Any], collate: Callable[[list[Any]], Any] | None = None) -> Any:
    """Collate the samples of a batch without those whose entry failed, as `collate_fn` of a DataLoader.

    Use it with on_error="placeholder" and a decoder that returns None for a failed item, as all `ais_loader.decoders`
    do. torch's own collation fails for None. The batch is smaller than the others if entries failed.

    Args:
        samples: n samples. One is dropped if it is None, or a tuple, list or mapping with a None in it.
        collate: A function from the list of the other samples to a batch. By default, torch's default_collate. To pass
            another one: `functools.partial(drop_placeholders, collate=...)`.

    Raises EntryFailed if no sample is left, and the errors of `collate`.
    """
    kept = [sample for sample in samples if not _is_placeholder(sample)]
    if not kept:
        raise EntryFailed(
            f"all {len(samples)} samples of a batch are placeholders of entries that failed, so there is nothing to "
            'collate; on_error="raise" says why an entry fails'
        )
    return default_collate(kept) if collate is None else collate(kept)


def _is_placeholder(sample: Any) -> bool:
    if isinstance(sample, Mapping):
        return any(value is None for value in sample.values())
    return sample is None or (isinstance(sample, (tuple, list)) and any(value is None for value in sample))
