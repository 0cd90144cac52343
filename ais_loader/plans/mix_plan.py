"""MixPlan: samples or groups of several sources, mixed by weights that may change."""

from __future__ import annotations

import bisect
import copy
import hashlib
import math
import numbers
from collections.abc import Iterable, Mapping, Sequence, Sized
from typing import Any, Literal, Self, TypeAlias

import numpy as np

from ais_loader.errors import InvalidRequest
from ais_loader.plans.groups import Tail, whole_number
from ais_loader.plans.mix_order import SCALE, MixOrder
from ais_loader.plans.number_plan import Drawn, NumberPlan
from ais_loader.plans.pack_plan import Packs
from ais_loader.plans.permutation import Numbers
from ais_loader.plans.shuffle_plan import ShufflePlan

AtEnd: TypeAlias = Literal["repeat", "stop", "leave"]
Weights: TypeAlias = Mapping[str, float]


class MixPlan(NumberPlan):
    """A mixture of sources, in which each one stays within one draw of its share. See `MixOrder`.

    The numbers are those of `concat` of the sources' datasets, in the order of `sources`. BatchLoader and `concat` take
    the datasets by name; those of another order or size are refused. A draw is one sample with `batch_size`, or else
    one group of a source's steps, so that all ranks read the same source at a time.

    A position is accepted if the weights agree up to it, and so do the sources that had a weight before it.
    """

    steering: tuple[tuple[int, dict[str, float]], ...] = ()
    """The weights that a trainer has set, with the steps from which they hold."""

    def __init__(
        self,
        sources: Mapping[str, NumberPlan | int | Sized],
        weights: Weights | Sequence[tuple[int, Weights]],
        *,
        batch_size: int | None = None,
        seed: int = 0,
        at_end: AtEnd = "repeat",
        group: int | None = None,
        tail: Tail = "repeat",
        epoch_steps: int | None = None,
    ) -> None:
        """
        Args:
            sources: Plans by name. With `batch_size`, they are ShufflePlans, or datasets or numbers of samples to
                shuffle. Without it, they have the same group as the mixture, and steps that are multiples of it.
            weights: The weight of each source, in any unit; 0 if it is not named. Or pairs of (step, weights) in the
                order of steps, from step 0 on. Steps count within the epoch, or over all epochs of `epoch_steps` until
                the mixture ends. Without `batch_size`, a change applies from the next whole group on.
            batch_size: The number of samples per batch, if each batch is a mixture.
            at_end: What happens after the last sample of a source. With "repeat", its next epoch begins, and the
                mixture's epoch has no end: `steps` is `epoch_steps`. With "stop", the mixture's epoch ends at the first
                such sample. With "leave", the other sources go on without it, until all that have a weight have ended.
            group, tail, epoch_steps: See NumberPlan.

        Raises InvalidRequest, TypeError.
        """
        super().__init__(seed=seed, group=group, tail=tail, epoch_steps=epoch_steps)
        if not isinstance(sources, Mapping) or not sources:
            raise InvalidRequest("MixPlan: need a mapping of one or more sources by name")
        if at_end not in ("repeat", "stop", "leave"):
            raise InvalidRequest(f"MixPlan: at_end={at_end!r}: need 'repeat', 'stop' or 'leave'")
        self.batch_size = None if batch_size is None else whole_number("MixPlan", "batch_size", batch_size, 1)
        self.at_end = at_end
        self.names = [str(name) for name in sources]
        self._given = [self._source(name, source) for name, source in zip(self.names, sources.values(), strict=True)]
        self._schedule = self._weights = self._checked(weights)
        self._offsets = [0]
        for source in self._given:
            self._offsets.append(self._offsets[-1] + source.n)
        self.n = self._offsets.pop()
        self._regrouped()

    def steered(self, steering: Iterable[tuple[int, Weights]]) -> Self:
        """Return this plan with pairs of (step, weights) that a trainer has set, instead of `self.steering`.

        They hold until the next step for which there are any, of the trainer or else of the plan. Raises
        InvalidRequest, TypeError.
        """
        plan, name = copy.copy(self), "a step of weights"
        checked = {whole_number("MixPlan", name, step, 0): self._shares(step, weights) for step, weights in steering}
        if checked and self.at_end != "repeat":
            raise InvalidRequest(f"MixPlan: at_end={self.at_end!r}: only a mixture with at_end='repeat' can be steered")
        plan._schedule = sorted((dict(self._weights) | checked).items())
        plan.steering = tuple(
            (step, {name: share for name, share in zip(self.names, checked[step], strict=True) if share})
            for step in sorted(checked)
        )
        plan._orders, plan._described_sources = None, {}
        return plan

    def __repr__(self) -> str:
        parts = ", ".join(f"{name}: {source.n:,}" for name, source in zip(self.names, self._given, strict=True))
        return f"MixPlan({parts}; batch_size={self.batch_size}, at_end={self.at_end!r}, {self._shown})"

    @property
    def left_out_counts(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for at, (name, source) in enumerate(zip(self.names, self._given, strict=True)):
            if any(shares[at] for _, shares in self._schedule):
                found |= {f"of {name!r} {reason}": count for reason, count in source.left_out_counts.items()}
            elif source.n:
                found[f"of {name!r}, which has no weight"] = source.n
        return found

    @property
    def source_sizes(self) -> dict[str, int]:
        """The number of samples of each source, in the order of their numbers."""
        return {name: source.n for name, source in zip(self.names, self._given, strict=True)}

    def _source(self, name: str, source: Any) -> NumberPlan:
        if self.batch_size is not None and not isinstance(source, NumberPlan):
            is_dataset = hasattr(source, "__len__") and hasattr(source, "__getitem__") and not isinstance(source, str)
            n = whole_number("MixPlan", f"source {name!r}", len(source) if is_dataset else source, 0)
            seed = int.from_bytes(hashlib.blake2b(f"{self.seed} {name}".encode(), digest_size=8).digest(), "big")
            return ShufflePlan(n, 1, seed=seed)
        if not isinstance(source, NumberPlan if self.batch_size is None else ShufflePlan):
            kind = "a plan over numbers" if self.batch_size is None else "a ShufflePlan or a number, with batch_size"
            raise TypeError(f"MixPlan: source {name!r} is a {type(source).__name__}; need {kind}")
        if source.epoch_steps or (self.batch_size is None and (source.tail == "uneven" or source._spans)):
            raise InvalidRequest(
                f"MixPlan: source {name!r} has epoch_steps, tail='uneven' or steps left out; need whole epochs"
            )
        return source

    def _checked(self, weights: Any) -> list[tuple[int, list[float]]]:
        pairs = [(0, weights)] if isinstance(weights, Mapping) else list(weights)
        checked: list[tuple[int, list[float]]] = []
        for pair in pairs:
            if not isinstance(pair, Sequence) or len(pair) != 2:
                raise InvalidRequest(f"MixPlan: weights are a mapping, or pairs of (step, mapping), not {pair!r}")
            step = whole_number("MixPlan", "a step of weights", pair[0], 0)
            if step <= checked[-1][0] if checked else step:
                raise InvalidRequest(f"MixPlan: weights of step {step}: need increasing steps that begin with 0")
            checked.append((step, self._shares(step, pair[1])))
        if not checked:
            raise InvalidRequest("MixPlan: no weights")
        return checked

    def _shares(self, step: int, weights: Any) -> list[float]:
        """Return the weight of each source. Raises InvalidRequest."""
        if not isinstance(weights, Mapping):
            raise InvalidRequest(f"MixPlan: weights of step {step} are {weights!r}; need a mapping of sources' names")
        for name, weight in weights.items():
            if name not in self.names:
                raise InvalidRequest(f"MixPlan: weight of {name!r}: the sources are {', '.join(self.names)}")
            if not isinstance(weight, numbers.Real) or not math.isfinite(weight) or weight < 0:
                raise InvalidRequest(f"MixPlan: weight of {name!r} is {weight!r}: need a number, 0 or more")
            if weight and not self._given[self.names.index(name)].n:
                raise InvalidRequest(f"MixPlan: source {name!r} is empty, and has a weight")
        shares = [float(weights.get(name, 0)) for name in self.names]
        if not any(shares):
            raise InvalidRequest(f"MixPlan: weights of step {step}: need one above 0")
        return shares

    def _regrouped(self) -> None:
        self._plans: list[NumberPlan] = []
        self._orders: list[MixOrder] | None = None
        self._draws: int | None = None
        self._described_sources: dict[int, dict[str, Any]] = {}

    def _prepared(self) -> list[MixOrder]:
        """Return the orders of draws, one for each change of weights; the number of draws is `_draws` then."""
        if (orders := self._orders) is None:
            group = self.group or 1
            if not self._plans:
                if self.batch_size is None:
                    plans = [source.with_group(group) for source in self._given]
                    steps = [plan.steps(0) for plan in plans]
                    self._lengths = [_ENDLESS if count is None else count // group for count in steps]
                else:
                    plans, self._lengths = self._given, [source.n for source in self._given]
                self._plans = plans
            for at, (name, length) in enumerate(zip(self.names, self._lengths, strict=True)):
                if length == 0 and any(shares[at] for _, shares in self._schedule):
                    raise InvalidRequest(f"MixPlan: source {name!r} has fewer steps than its group has, and a weight")
            orders, self._draws = self._divided()
            self._starts = [order.start for order in orders]
            self._orders = orders  # at last, as another thread may look
        return orders

    def _divided(self) -> tuple[list[MixOrder], int | None]:
        counts, dues, draw = [0] * len(self.names), [0] * len(self.names), 0
        orders: list[MixOrder] = []
        ends = [self._draw_of(step) for step, _ in self._schedule[1:]] + [None]
        for (_, shares), end in zip(self._schedule, ends, strict=True):
            while end is None or draw < end:
                left = [
                    0.0 if self.at_end != "repeat" and count >= length else share
                    for count, length, share in zip(counts, self._lengths, shares, strict=True)
                ]
                if not any(left) or (self.at_end == "stop" and left != shares):
                    return orders, draw
                orders.append(order := MixOrder(draw, left, counts, dues))
                ended = None if self.at_end == "repeat" else self._first_end(order, counts)
                if ended is None and end is None:
                    break
                draw = min(at for at in (ended, end) if at is not None)
                counts, dues = order.counts(draw), order.dues(draw)
        return orders, None

    def _first_end(self, order: MixOrder, counts: list[int]) -> int | None:
        """Return the draw after the last one of the first source that ends."""
        left = [
            (length - count) * SCALE // share
            for length, count, share in zip(self._lengths, counts, order.shares, strict=True)
            if share and length != _ENDLESS
        ]
        if not left:
            return None
        # A source is at most a few draws away from its share, unless the weights have just changed.
        low, high = order.start, order.start + min(left) + 3 * SCALE // min(share for share in order.shares if share)

        def has_ended(draw: int) -> bool:
            found = zip(order.counts(draw), self._lengths, order.shares, strict=True)
            return any(share and count >= length for count, length, share in found)

        while not has_ended(high):
            high += high - low
        return low + bisect.bisect_left(range(low, high), True, key=has_ended)

    def _draw_of(self, step: int) -> int:
        """Return the first draw that a step begins, or that begins after it."""
        return -(-step // (self.group or 1)) if self.batch_size is None else step * self.batch_size

    def _steps(self) -> int | None:
        self._prepared()
        if self._draws is None:
            return None
        return self._draws * (self.group or 1) if self.batch_size is None else -(-self._draws // self.batch_size)

    def _drawn(self, draw: int, stop: int) -> tuple[list[int], list[int]]:
        """Return the source of each of these draws, and the draws that each source has had before them."""
        orders = self._prepared()
        at = bisect.bisect_right(self._starts, draw) - 1
        counts = orders[at].counts(draw)
        found: list[int] = []
        while draw < stop:
            end = min(stop, self._starts[at + 1]) if at + 1 < len(orders) else stop
            found += orders[at].sources(draw, end)
            draw, at = end, at + 1
        return found, counts

    def _span(self, step: int) -> tuple[int, int]:
        if self.batch_size is None:
            return step // (self.group or 1), step // (self.group or 1) + 1
        stop = (step + 1) * self.batch_size
        return step * self.batch_size, stop if self._draws is None else min(stop, self._draws)

    def _batch(self, epoch: int, step: int) -> Any:
        drawn, counts = self._drawn(*self._span(step))
        if self.batch_size is None:
            (source,) = drawn
            group = self.group or 1
            turn, at = divmod(counts[source], self._lengths[source])
            batch = self._plans[source].batch(_epoch(epoch, turn), at * group + step % group)
            return _moved(batch, self._offsets[source])
        which = np.array(drawn)
        result: Numbers = np.empty(len(drawn), np.int64)
        for source in set(drawn):
            places = np.flatnonzero(which == source)
            turns, within = np.divmod(np.arange(len(places)) + counts[source], self._lengths[source])
            for turn in range(int(turns[0]), int(turns[-1]) + 1):
                plan = self._plans[source]
                assert isinstance(plan, ShufflePlan)
                found = plan.numbers_at(_epoch(epoch, turn), within[turns == turn])
                result[places[turns == turn]] = found + self._offsets[source]
        return result

    def at(self, epoch: int, step: int) -> list[Drawn]:
        return [one._replace(source=self._name_of(one.number)) for one in super().at(epoch, step)]

    def _name_of(self, number: int) -> str:
        return self.names[bisect.bisect_right(self._offsets, number) - 1]

    def sources(self, epoch: int, step: int) -> list[str]:
        """Return the name of the source of each sample of a step, in the order of `batch`."""
        size = len(self.batch(epoch, step))
        drawn, _ = self._drawn(*self._span(self._own_step(epoch, step)[1]))
        return [self.names[source] for source in (drawn if self.batch_size else drawn * size)]

    def _used(self, own_step: int) -> int:
        """Return how many of the weights decide what comes before a step: those that begin later do not."""
        draw = self._draw_of(own_step)
        return max(1, sum(self._draw_of(begin) < draw for begin, _ in self._schedule))

    def numbers_before(self, epoch: int, step: int) -> int:
        schedule = self._schedule[: self._used(self._since_start(epoch, self._before(epoch, step)))]
        ends = [offset + source.n for offset, source in zip(self._offsets, self._given, strict=True)]
        return max(end for at, end in enumerate(ends) if any(shares[at] for _, shares in schedule))

    def _arguments(self, own_step: int | None) -> dict[str, Any]:
        used = len(self._schedule) if own_step is None else self._used(own_step)
        if used not in self._described_sources:
            schedule = self._schedule[:used]
            self._described_sources[used] = {
                name: {"first": offset, "weights": [[step, shares[at]] for step, shares in schedule]}
                | source.description
                for at, (name, offset, source) in enumerate(zip(self.names, self._offsets, self._given, strict=True))
                if any(shares[at] for _, shares in schedule)
            }
        own = {name: getattr(self, name) for name in ("batch_size", "seed", "at_end")}
        if self.steering:  # all of it: what is set already may begin after the position
            own["steering"] = [[step, weights] for step, weights in self.steering]
        return own | {"sources": self._described_sources[used]}


_ENDLESS = 1 << 62


def _epoch(epoch: int, turn: int) -> int:
    """Return the epoch of a source in its turn within an epoch of the mixture: another one for each."""
    return turn if epoch == 0 else turn + (epoch << 32)


def _moved(batch: Any, offset: int) -> Any:
    if isinstance(batch, np.ndarray):
        return batch + offset
    moved = Packs([(number + offset, *rest) for number, *rest in pack] for pack in batch)
    vars(moved).update(vars(batch))
    moved.counts = {number + offset: count for number, count in batch.counts.items()}
    return moved
