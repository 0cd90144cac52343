"""PackPlan: every token once, packs of at most `tokens`, whole documents on request."""

from __future__ import annotations

from collections import Counter
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plans_kit import Numbers, cut_packs, tokens_of

from ais_loader.errors import InvalidRequest
from ais_loader.plans import PackPlan

COUNTS = st.lists(st.integers(0, 40), max_size=80)


def packs_of(plan: PackPlan, epoch: int) -> list[list[Any]]:
    return [pack for step in range(plan.steps(epoch) or 0) for pack in plan.batch(epoch, step)]


@pytest.mark.slow
@settings(max_examples=50)
@given(
    counts=COUNTS,
    tokens=st.integers(1, 50),
    batch_size=st.integers(1, 4),
    group=st.integers(1, 4),
    epoch=st.integers(0, 2),
)
def test_epochs_are_those_of_the_slow_way(
    counts: list[int], tokens: int, batch_size: int, group: int, epoch: int
) -> None:
    plan = PackPlan(np.array(counts, np.int64), tokens, batch_size, block=25, group=group, seed=3, tail="uneven")
    expected = cut_packs(counts, tokens, 25, 3, epoch)
    size = batch_size * group
    whole, rest = divmod(len(expected), size)
    assert plan.steps(epoch) == whole * group + min(rest, group)
    batches = [plan.batch(epoch, step) for step in range(plan.steps(epoch) or 0)]
    assert all(1 <= len(batch) <= batch_size for batch in batches)
    for at in range(-(-len(expected) // size)):
        found = [tokens_of(pack) for batch in batches[at * group : (at + 1) * group] for pack in batch]
        assert sorted(found) == sorted(expected[at * size : (at + 1) * size])
    assert plan.left_out.tolist() == [at for at, count in enumerate(counts) if not count]


@settings(max_examples=50)
@given(counts=COUNTS, tokens=st.integers(1, 50), group=st.integers(1, 3), epoch=st.integers(0, 2))
def test_whole_documents_are_never_cut(counts: list[int], tokens: int, group: int, epoch: int) -> None:
    plan = PackPlan(np.array(counts, np.int64), tokens, 2, whole=True, block=25, group=group, tail="uneven")
    packs = packs_of(plan, epoch)
    assert len(packs) == len(packs_of(plan, epoch + 1))
    assert all(start == 0 and length == counts[number] for pack in packs for number, start, length in pack)
    assert all(sum(length for *_, length in pack) <= tokens for pack in packs)
    packed = sorted(number for pack in packs for number, *_ in pack)
    assert packed == [at for at, count in enumerate(counts) if 0 < count <= tokens]
    assert sorted([*packed, *plan.left_out.tolist()]) == list(range(len(counts)))


def test_whole_documents_leave_little_room() -> None:
    counts = np.random.default_rng(1).lognormal(5, 1, 20_000).astype(np.int64).clip(1, 2048)
    packs = packs_of(PackPlan(counts, 2048, 8, whole=True), 0)
    assert 1 <= len(packs) * 2048 / counts.sum() < 1.005


@pytest.mark.parametrize("whole", [False, True])
def test_the_batches_of_a_group_weigh_the_same(whole: bool) -> None:
    counts = np.random.default_rng(2).lognormal(5, 1, 5000).astype(np.int64).clip(1, 2048)
    plan = PackPlan(counts, 2048, 16, whole=whole, balance="quadratic", group=4)
    spreads = []
    for first in range(0, (plan.steps(0) or 0) - 4, 4):
        for power in (1, 2):
            totals = [
                sum(length**power for pack in plan.batch(0, step) for *_, length in pack)
                for step in range(first, first + 4)
            ]
            spreads.append((max(totals) - min(totals)) / (sum(totals) / 4))
    assert len(spreads) > 10
    assert max(spreads) <= 0.02


def test_every_argument_is_in_the_fingerprint() -> None:
    def plan(counts: Any = (1, 2, 3), tokens: int = 4, batch_size: int = 2, **options: Any) -> str:
        return PackPlan(counts, tokens, batch_size, **options).fingerprint

    changes: list[dict[str, Any]] = [
        {},
        {"counts": (1, 2, 4)},
        {"tokens": 5},
        {"batch_size": 3},
        {"whole": True},
        {"balance": "quadratic"},
        {"block": 7},
        {"seed": 1},
        {"group": 2},
        {"tail": "drop"},
    ]
    assert len({plan(**change) for change in changes}) == len(changes)


class TestCollatePacked:
    def test_tokens_documents_and_positions(self) -> None:
        import torch

        from ais_loader.training.collate import collate_packed

        batch = collate_packed([[[5, 6, 7], np.array([8])], [torch.tensor([9, 1])]], tokens=5, pad=3)
        assert batch["input_ids"].tolist() == [[5, 6, 7, 8, 3], [9, 1, 3, 3, 3]]
        assert batch["doc_ids"].tolist() == [[0, 0, 0, 1, -1], [0, 0, -1, -1, -1]]
        assert batch["position_ids"].tolist() == [[0, 1, 2, 0, 0], [0, 1, 0, 0, 0]]
        assert batch["labels"].tolist() == [[6, 7, -100, -100, -100], [1, -100, -100, -100, -100]]
        assert batch["cu_seqlens"].tolist() == [0, 3, 4, 5, 7, 10] and batch["max_seqlen"] == 3
        assert batch["cu_seqlens"].dtype == torch.int32
        assert {batch[name].dtype for name in ("input_ids", "labels", "doc_ids", "position_ids")} == {torch.int64}

    def test_too_many_tokens_are_refused(self) -> None:
        from ais_loader.training.collate import collate_packed

        for pack in ([[1, 2], [3]], [[1, 2, 3, 4]], [[1], [2, 3, 4]]):
            with pytest.raises(InvalidRequest, match="pack 0 has more than tokens=2"):
                collate_packed([pack], tokens=2)

    @pytest.mark.parametrize("item_bytes", [None, 8])
    def test_an_epoch_has_every_pair_of_a_token_and_the_next_one_once(
        self, tmp_path: Path, item_bytes: int | None
    ) -> None:
        """Documents are cut at the borders of packs, and a pack may end where a document does."""
        import torch

        import ais_loader
        from ais_loader import BatchLoader, MapDataset
        from ais_loader.training.collate import collate_packed

        counts = [3, 8, 1, 12, 6, 10, 31]
        documents = [np.arange(count) + 100 * at for at, count in enumerate(counts)]
        with ais_loader.connect(tmp_path) as client:
            client.create_bucket("b").put_many((f"{at}", one.tobytes()) for at, one in enumerate(documents))
        samples = MapDataset(str(tmp_path), "ais://b/", lambda item: np.frombuffer(item.tobytes(), np.int64))
        plan = PackPlan(counts, 10, 2, overlap=1, item_bytes=item_bytes, tail="uneven")
        found: Counter[tuple[int, int]] = Counter()
        for batch in BatchLoader(samples, plan, collate=partial(collate_packed, tokens=10)):
            tokens, labels = batch["input_ids"].flatten(), batch["labels"].flatten()
            found.update(zip(tokens[labels >= 0].tolist(), labels[labels >= 0].tolist(), strict=True))
            same = batch["doc_ids"].unsqueeze(1) == batch["doc_ids"].unsqueeze(2)
            pieces = [torch.ones(size, size) for size in batch["cu_seqlens"].diff()]
            assert torch.equal(torch.block_diag(*pieces), torch.block_diag(*same.float()))
            logits = torch.nn.functional.one_hot(labels.clamp(min=0), 700) * 100.0
            assert torch.nn.functional.cross_entropy(logits, labels) < 1e-6
        assert found == Counter(pair for one in documents for pair in pairwise(one.tolist()))

    def test_overlaps_are_of_cut_documents_and_part_of_the_state(self) -> None:
        plain, plan = (PackPlan([25, 10], 10, 4, overlap=overlap) for overlap in (0, 1))
        pieces = [[piece for pack in one.batch(0, 0) for piece in pack] for one in (plain, plan)]
        expected = [
            (number, start, length + (start + length < [25, 10][number])) for number, start, length in pieces[0]
        ]
        assert pieces[1] == expected != pieces[0]
        assert "overlap" not in plain.description_at(0, 0) and plan.description_at(0, 0)["overlap"] == 1
        with pytest.raises(InvalidRequest, match="overlap=-1"):
            PackPlan([1], 1, 1, overlap=-1)

    def test_a_loader_of_packs(self) -> None:
        from ais_loader import BatchLoader
        from ais_loader.training.collate import collate_packed

        counts = [3, 8, 1, 12, 5]
        plan = PackPlan(counts, 10, 2, seed=2)
        samples = Tokens(len(counts), counts)
        loader = BatchLoader(samples, plan, collate=partial(collate_packed, tokens=10))
        found: Counter[int] = Counter()
        for batch in loader:
            assert batch["input_ids"].shape[1] == 10
            found.update(batch["input_ids"][batch["doc_ids"] >= 0].tolist())
        assert found == Counter(100 * at + token for at, count in enumerate(counts) for token in range(count))


class Tokens(Numbers):
    """A dataset of documents: token t of document k is 100 k + t."""

    def __getitems__(self, indices: Any) -> list[Any]:
        return [np.array([100 * at + token for at, token in pieces]) for pieces in super().__getitems__(indices)]
