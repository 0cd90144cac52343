"""Collating batches in which some entries failed, and batches of packed documents."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ais_loader.errors import EntryFailed, InvalidRequest
from ais_loader.extras import needs

with needs("torch", "drop_placeholders"):
    import torch
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


def collate_packed(packs: list[list[Any]], *, tokens: int, pad: int = 0) -> dict[str, Any]:
    """Collate the packs of a PackPlan's batch, as `collate` of a BatchLoader: `partial(..., tokens=2048)`.

    Args:
        packs: b packs, each a list of pieces of documents: one-dimensional arrays or lists of token ids.
        tokens: The number of tokens of a pack. What its last piece has beyond them, with the plan's `overlap`, is only
            in the labels.
        pad: The token id of places that no document fills.

    Returns tensors of shape (b, tokens), int64. `input_ids` has the tokens. `labels` has the token that follows each,
    and -100, which cross_entropy ignores, where none does: at a document's end, without `overlap` at a cut, and for
    padding. They are shifted: Hugging Face's models also need them as `shift_labels`. `doc_ids` has the number of the
    piece within its pack, and -1 for padding. `position_ids` counts from 0 in each piece, and is 0 for padding.

    For attention within documents over the flattened batch, such as flash_attn_varlen_func, `cu_seqlens` has the
    boundaries of all pieces and paddings, int32, from 0 to b * tokens, and `max_seqlen` is the longest of them, an int.

    Raises InvalidRequest if a piece begins beyond `tokens`, or ends more than one token beyond.
    """
    ids = torch.full((len(packs), tokens), pad, dtype=torch.int64)
    labels, documents = torch.full_like(ids, -100), torch.full_like(ids, -1)
    positions = torch.zeros_like(ids)
    bounds = [0]
    for row, pack in enumerate(packs):
        first = 0
        for number, piece in enumerate(pack):
            stop = min(first + len(piece), tokens)
            count = stop - first
            if len(piece) - count > (1 if count else 0):
                raise InvalidRequest(f"collate_packed: pack {row} has more than tokens={tokens} tokens")
            values = piece if isinstance(piece, torch.Tensor) else torch.from_numpy(np.array(piece, np.int64))
            ids[row, first:stop] = values[:count]
            targets = values[1 : count + 1]
            labels[row, first : first + len(targets)] = targets
            documents[row, first:stop] = number
            positions[row, first:stop] = torch.arange(count)
            bounds.append(row * tokens + stop)
            first = stop
        bounds.append((row + 1) * tokens)
    cu_seqlens = torch.tensor(bounds, dtype=torch.int32).unique_consecutive()
    return {
        "input_ids": ids,
        "labels": labels,
        "doc_ids": documents,
        "position_ids": positions,
        "cu_seqlens": cu_seqlens,
        "max_seqlen": max(cu_seqlens.diff().tolist(), default=0),
    }


def _is_placeholder(sample: Any) -> bool:
    if isinstance(sample, Mapping):
        return any(value is None for value in sample.values())
    return sample is None or (isinstance(sample, (tuple, list)) and any(value is None for value in sample))
