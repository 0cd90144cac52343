"""Places: where a sampler is after each batch, in a form that can be saved and restored.

It is the sampler's own `state_dict()` if that is available after every batch. If it is not (Lhotse 1.33 refuses
samplers with a `constraint=`), or is too expensive (Lhotse 2 saves the entire shuffle buffer of an indexed manifest),
the state is an earlier one, or the beginning of the epoch, with the number of batches drawn since. Restoring draws
these batches again, and fetches nothing.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from numbers import Integral
from typing import Any

from ais_loader.errors import InvalidRequest
from ais_loader.training.plan_position import process_place

SINCE = "ais_loader_batches_since"
"""The key, in a state, of the number of batches drawn since the rest of it was saved."""
BEGINNING = "ais_loader_beginning"
"""Key that replaces the sampler's own state: identifies the beginning of its epoch."""
CHEAP_S = 0.001
"""A state that takes less time is saved after every batch."""
MAX_COST = 0.01
"""The maximum share of time to spend on states that take longer."""


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a sampler: a state, and the number of batches since."""

    base: bytes
    """A state of the sampler, or the beginning of its epoch. It is pickled, as samplers may change what they return."""
    since: int

    def state(self) -> dict[str, Any]:
        """Return the state, as a separate copy."""
        state: dict[str, Any] = pickle.loads(self.base)
        if self.since or BEGINNING in state:
            state[SINCE] = self.since
        return state


class Places:
    """The places of one iteration of a sampler, from its current one on."""

    def __init__(self, sampler: Any, restored: Mapping[str, Any] | None = None) -> None:
        """`restored`: The state that the sampler was brought to, and continues from."""
        self._sampler = sampler
        self._next_s = 0.0
        self._has_state = True
        """Whether the sampler provides its state."""
        if restored is None:
            self._base, self._since = pickle.dumps(beginning(sampler)), 0
            self._save()
        else:
            self._base = pickle.dumps({key: value for key, value in restored.items() if key != SINCE})
            self._since = int(restored.get(SINCE, 0))

    def now(self) -> Place:
        return Place(self._base, self._since)

    def drawn(self) -> Place:
        """Return the place after one more batch."""
        self._since += 1
        if self._has_state and time.monotonic() >= self._next_s:
            self._save()
        return self.now()

    def _save(self) -> None:
        began_s = time.thread_time()
        state = own_state(self._sampler)
        if state is None:
            self._has_state = False
            return
        self._base, self._since = pickle.dumps(state), 0
        took_s = time.thread_time() - began_s
        self._next_s = 0.0 if took_s < CHEAP_S else time.monotonic() + took_s / MAX_COST


def own_state(sampler: Any) -> dict[str, Any] | None:
    """Return the sampler's own state, or None if it cannot provide it."""
    if not hasattr(sampler, "state_dict"):
        return None
    try:
        state: dict[str, Any] = sampler.state_dict()
    except (AssertionError, NotImplementedError, RuntimeError):  # a constraint, or a source that is not restorable
        return None
    return state or None  # the state of a stateless sampler is empty


def epoch_of(sampler: Any) -> int | None:
    return getattr(sampler, "epoch", None)


def beginning(sampler: Any) -> dict[str, Any]:
    """Return the beginning of the sampler's current epoch, as a state."""
    named = {name: getattr(sampler, name, None) for name in ("epoch", "seed", "world_size")}
    return {BEGINNING: {"sampler": type(sampler).__name__, **named}}


def restore(sampler: Any, state: Mapping[str, Any], *, strict: bool = True) -> None:
    """Bring the sampler to a state, except for the batches drawn SINCE. For those, see `draw_again`.

    Raises InvalidRequest for the beginning of another sampler, and the errors of the sampler's `load_state_dict`.
    """
    own = pickle.loads(pickle.dumps(dict(state)))  # samplers modify what they load
    own.pop(SINCE, None)
    saved = own.pop(BEGINNING, None)
    if saved is None:
        if not hasattr(sampler, "load_state_dict"):
            raise InvalidRequest(
                f"not a state of a {type(sampler).__name__}: it has {', '.join(map(str, own)) or 'nothing'}"
            )
        sampler.load_state_dict(own)
        return
    current = beginning(sampler)[BEGINNING]
    other = {name: value for name, value in saved.items() if name != "epoch" and value != current.get(name)}
    if other and strict:
        differences = ", ".join(f"{name}={value!r}, here {current.get(name)!r}" for name, value in other.items())
        raise InvalidRequest(f"the state is of another sampler: {differences}")
    if hasattr(sampler, "allow_iter_to_reset_state"):
        sampler.allow_iter_to_reset_state()
    if saved["epoch"] is not None:
        sampler.set_epoch(saved["epoch"])


def draw_again(batches: Iterator[Any], state: Mapping[str, Any]) -> None:
    """Draw as many batches as a restored state says were drawn since. Raises InvalidRequest if there are fewer."""
    count = int(state.get(SINCE, 0))
    for number in range(count):
        try:
            next(batches)
        except StopIteration:
            raise InvalidRequest(
                f"the sampler ends after {number:,} of the {count:,} batches that were drawn: is it of the same cuts?"
            ) from None


class SamplerRun:
    """One iteration of a sampler."""

    def __init__(
        self, position: SamplerPosition, drawn: Iterator[Any], places: Places, again: Mapping[str, Any]
    ) -> None:
        self._position, self._drawn, self._places, self._again = position, drawn, places, again

    def batches(self) -> Iterator[tuple[int, Any, Place]]:
        """Yield (number of the batch, batch, place after it)."""
        draw_again(self._drawn, self._again)
        number = 0
        while True:
            try:
                batch = next(self._drawn)  # not `for`: a sampler may start again at each iter()
            except StopIteration:
                return
            if batch is None or isinstance(batch, Integral):
                kind = type(self._position.sampler).__name__
                raise TypeError(f"{kind}: {self.named(number)} is {batch!r}; need a batch sampler, of lists of numbers")
            yield number, batch, self._places.drawn()
            number += 1

    def named(self, number: int) -> str:
        """Return a batch in words, by its number in this iteration."""
        return f"batch {number} of this iteration"

    def handed(self, place: Place) -> None:
        """Note that the trainer receives the batch before this place."""
        if self._position.run is self:
            self._position.place_handed = place

    def ended(self) -> None:
        """Note that all batches were delivered."""
        if self._position.run is self and own_state(self._position.sampler) is not None:
            self._position.place_handed = None


class SamplerPosition:
    """The position of a batch sampler, or of any iterable of batches."""

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler
        self.run: SamplerRun | None = None
        self.place_handed: Place | None = None
        """The place after the batch delivered last. None if the sampler is at the same place."""
        self._restored: tuple[dict[str, Any], int | None] | None = None
        """A state from which no iteration has started yet, and the epoch that it set."""

    def __len__(self) -> int:
        return len(self.sampler)

    def place(self) -> tuple[int, int]:
        """Return (rank, world_size) of this process."""
        return process_place()

    @property
    def epoch(self) -> int | None:
        return epoch_of(self.sampler)

    def set_epoch(self, epoch: int) -> None:
        """Set the sampler's epoch, if it has any. If it is not that of a loaded state, it starts at its beginning."""
        if epoch != self.epoch:
            self.run = self.place_handed = None
        if hasattr(self.sampler, "set_epoch"):
            self.sampler.set_epoch(epoch)

    def begin(self) -> SamplerRun:
        restored, self._restored = self._not_yet_resumed(), None
        drawn = iter(self.sampler)
        places = Places(self.sampler, restored)
        self.place_handed = places.now()
        self.run = SamplerRun(self, drawn, places, restored or {})
        return self.run

    def _not_yet_resumed(self) -> dict[str, Any] | None:
        if self._restored is None:
            return None
        state, epoch = self._restored
        return state if epoch == epoch_of(self.sampler) else None  # set_epoch has been called since

    def state(self) -> dict[str, Any]:
        """Return the sampler's state after the batch delivered last, regardless of what has been drawn since."""
        if (restored := self._not_yet_resumed()) is not None:
            return dict(restored)
        if self.place_handed is not None:  # the epoch of a sampler may be that of batches drawn since
            return self.place_handed.state()
        return own_state(self.sampler) or beginning(self.sampler)

    def load(self, state: Mapping[str, Any], *, strict: bool = True) -> None:
        """Let the next iteration continue after the batch that was delivered last before `state` was saved.

        Raises InvalidRequest for a state of another sampler, and the errors of the sampler's `load_state_dict`.
        """
        restore(self.sampler, state, strict=strict)
        self.run = self.place_handed = None
        self._restored = dict(state), epoch_of(self.sampler)
