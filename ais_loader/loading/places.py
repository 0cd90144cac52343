"""Places: where a sampler is after each batch, in a form that can be saved and restored.

It is the sampler's own `state_dict()` if that is available after every batch. If it is not (Lhotse 1.33 refuses
samplers with a `constraint=`), or is too expensive (Lhotse 2 saves the entire shuffle buffer of an indexed manifest),
the state is an earlier one, or the beginning of the epoch, with the number of batches drawn since. Restoring draws
these batches again, and fetches nothing. If none is left after them, the state is that of an epoch's end, and the next
epoch begins.

A batch sampler of torch draws from another sampler. Either may have the epoch, the seed and the generator: see `chain`.
If the inner one has them, a state of the outer one alone does not suffice, and is not used.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass
from numbers import Integral
from typing import Any

from ais_loader.errors import InvalidRequest
from ais_loader.extras import needs
from ais_loader.training.plan_position import process_place, warn_of_no_length, warn_of_repeat
from ais_loader.training.sample_seeds import digest_seed, drawn_seed

with needs("torch", "BatchLoader"):
    import torch
    from torch.utils.data import DistributedSampler, RandomSampler, SequentialSampler

SINCE = "ais_loader_batches_since"
"""The key, in a state, of the number of batches drawn since the rest of it was saved."""
BEGINNING = "ais_loader_beginning"
"""Key that replaces the sampler's own state: identifies the beginning of its epoch."""
CHEAP_S = 0.001
"""A state that takes less time is saved after every batch."""
MAX_COST = 0.01
"""The maximum share of time to spend on states that take longer."""
_SOURCES = {RandomSampler: "data_source", SequentialSampler: "data_source", DistributedSampler: "dataset"}
"""The attribute of torch's samplers with what they draw from."""


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

    def __init__(self, sampler: Any, begun: dict[str, Any], restored: Mapping[str, Any] | None = None) -> None:
        """
        Args:
            begun: The beginning of the epoch, as it was before the sampler's `iter`.
            restored: The state that the sampler was brought to, and continues from.
        """
        self._sampler = sampler
        self.seed = _seed_of(sampler, begun[BEGINNING])
        self._next_s = 0.0
        self._has_state = True
        """Whether the sampler provides its state."""
        if restored is None:
            self._base, self._since = pickle.dumps(begun), 0
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
    """Return the sampler's own state, or None if it cannot provide it, or may not have what decides the order."""
    inner = (hasattr(one, name) for one in chain(sampler)[1:] for name in ("generator", "set_epoch"))
    if not hasattr(sampler, "state_dict") or any(inner):
        return None
    try:
        state: dict[str, Any] = sampler.state_dict()
    except (AssertionError, NotImplementedError, RuntimeError):  # a constraint, or a source that is not restorable
        return None
    return state or None  # the state of a stateless sampler is empty


def chain(sampler: Any) -> list[Any]:
    """Return a sampler and those that it draws from, the outer ones first."""
    found = [sampler]
    for one in found:
        inner = (getattr(one, name, None) for name in ("sampler", "batch_sampler"))
        found += [other for other in inner if other is not None and not any(other is known for known in found)]
    return found


def _first(sampler: Any, name: str) -> Any:
    """Return the first attribute of a name in the chain, or None."""
    values = (getattr(one, name, None) for one in chain(sampler))
    return next((value for value in values if value is not None), None)


def epoch_of(sampler: Any) -> int | None:
    epoch: int | None = _first(sampler, "epoch")
    return epoch


def beginning(sampler: Any) -> dict[str, Any]:
    """Return the beginning of the sampler's current epoch, as a state."""
    names = ("epoch", "seed", "world_size", "num_replicas", "batch_size", "drop_last")
    generator = _first(sampler, "generator")
    state = generator.get_state().numpy().tobytes().hex() if isinstance(generator, torch.Generator) else None
    named = {name: _first(sampler, name) for name in names} | {"generator": state}
    return {BEGINNING: {"sampler": type(sampler).__name__, **named}, SINCE: 0}


def _seed_of(sampler: Any, begun: Mapping[str, Any]) -> int:
    """Return the seed of an epoch's random numbers. One that would be lost at a resume is drawn."""
    generator = None if hasattr(sampler, "state_dict") else begun["generator"]  # in its state, it has gone on
    if begun["epoch"] is None and generator is None:
        return drawn_seed()
    return digest_seed(begun["epoch"], begun["seed"], generator)


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
    current, generator = beginning(sampler)[BEGINNING], saved.get("generator")
    for one in (saved, current):
        if "generator" in one:
            one["generator"] = one["generator"] is not None
    other = {name: value for name, value in saved.items() if name != "epoch" and value != current.get(name)}
    if other and strict:
        differences = ", ".join(f"{name}={value!r}, here {current.get(name)!r}" for name, value in other.items())
        raise InvalidRequest(f"the state is of another sampler: {differences}")
    if generator is not None and current["generator"]:
        _first(sampler, "generator").set_state(torch.frombuffer(bytearray.fromhex(generator), dtype=torch.uint8))
    _forget_progress(sampler)
    if saved["epoch"] is not None and (set_epoch := _first(sampler, "set_epoch")) is not None:
        set_epoch(saved["epoch"])


def _forget_progress(sampler: Any) -> None:
    """Let the next `iter` begin an epoch. Lhotse's samplers otherwise keep to the state that they have loaded."""
    if hasattr(sampler, "allow_iter_to_reset_state"):
        sampler.allow_iter_to_reset_state()


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
        self._position, self._drawn, self._places = position, drawn, places
        self.again, self.delivered = again, 0
        """The loaded state from which it started, if any; and how many batches the trainer has received."""

    def batches(self) -> Iterator[tuple[int, Any, Place]]:
        """Yield (number of the batch, batch, place after it)."""
        draw_again(self._drawn, self.again)
        number = 0
        while True:
            try:
                batch = next(self._drawn)  # not `for`: a sampler may start again at each iter()
            except StopIteration:
                if number or not self.again:
                    return
                _forget_progress(self._position.sampler)  # its state was that of an epoch's end
                self._drawn, self._places = self._position.draws()
                self.again = {}
                continue
            if batch is None or isinstance(batch, Integral):
                kind = type(self._position.sampler).__name__
                raise TypeError(f"{kind}: {self.named(number)} is {batch!r}; need a batch sampler, of lists of numbers")
            yield number, batch, self._places.drawn()
            number += 1

    def seed(self, number: int, batch: Any) -> int:
        """Return the seed of a batch's random numbers, by what it has: a resumed run counts its batches anew."""
        samples = batch if isinstance(batch, Sized) and isinstance(batch, Iterable) else [batch]
        return digest_seed(self._places.seed, [str(getattr(sample, "id", sample)) for sample in samples])

    def named(self, number: int) -> str:
        """Return a batch in words, by its number in this iteration."""
        return f"batch {number} of this iteration"

    def handed(self, place: Place) -> None:
        """Note that the trainer receives the batch before this place."""
        self.delivered += 1
        if self._position.run is self:
            self._position.place_handed = place

    def ended(self) -> None:
        """Note that all batches were delivered."""
        if self._position.run is self:
            self._position.place_handed = None


class SamplerPosition:
    """The position of a batch sampler, or of any iterable of batches."""

    def __init__(self, sampler: Any, dataset: Any = None) -> None:
        """Raises InvalidRequest if torch's own sampler draws from another number of samples than the dataset has."""
        for one in chain(sampler) if hasattr(dataset, "__len__") else ():
            source = getattr(one, _SOURCES.get(type(one), ""), dataset)
            if hasattr(source, "__len__") and len(source) != len(dataset):
                raise InvalidRequest(
                    f"{type(one).__name__} draws from {len(source):,} numbers, for {len(dataset):,} samples; "
                    "for a part of the dataset, use SubsetRandomSampler"
                )
        self.sampler = sampler
        self.run: SamplerRun | None = None
        self.place_handed: Place | None = None
        """The place after the batch delivered last. None if the sampler is at the same place."""
        self._restored: tuple[dict[str, Any], int | None] | None = None
        """A state from which no iteration has started yet, and the epoch that it set."""
        self._warns_of_repeats = True

    def __len__(self) -> int:
        try:
            return len(self.sampler)
        except TypeError:
            warn_of_no_length()
            raise

    def place(self) -> tuple[int, int]:
        """Return (rank, world_size) of this process."""
        return process_place()

    @property
    def epoch(self) -> int | None:
        return epoch_of(self.sampler)

    @property
    def has_epochs(self) -> bool:
        return _first(self.sampler, "set_epoch") is not None

    def set_epoch(self, epoch: int) -> None:
        """Set the sampler's epoch. If it is not that of a loaded state, it starts at its beginning.

        Raises InvalidRequest for a sampler without epochs.
        """
        if not self.has_epochs:
            raise InvalidRequest(
                f"set_epoch({epoch}): neither {type(self.sampler).__name__} nor what it draws from has set_epoch; use "
                "a sampler whose order depends on the epoch, such as DistributedSampler, or a plan"
            )
        self._warns_of_repeats = False
        if epoch != self.epoch:
            self.run = self.place_handed = None
            _forget_progress(self.sampler)
        _first(self.sampler, "set_epoch")(epoch)

    def begin(self) -> SamplerRun:
        restored, self._restored = self._not_yet_resumed(), None
        if self.run is not None and self.run.delivered and self.place_handed is not None and self.has_epochs:
            began = self.run.again
            if restored is None and BEGINNING in began and began[BEGINNING]["epoch"] == self.epoch:
                restored = dict(began)
            if self._warns_of_repeats:
                start = "the loaded place in" if restored else "the beginning of"
                warn_of_repeat(f"{start} epoch {self.epoch}", self.run.delivered)
            self._warns_of_repeats = False
        drawn, places = self.draws(restored)
        self.place_handed = places.now()
        self.run = SamplerRun(self, drawn, places, restored or {})
        return self.run

    def draws(self, restored: Mapping[str, Any] | None = None) -> tuple[Iterator[Any], Places]:
        """Return the batches of a new iteration of the sampler, and their places."""
        begun = beginning(self.sampler)  # before `iter`, which may draw from the generator
        return iter(self.sampler), Places(self.sampler, begun, restored)

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
            state = self.place_handed.state()
        else:
            state = own_state(self.sampler) or beginning(self.sampler)
        if BEGINNING in state and state[BEGINNING].get("generator") is None:
            for one in chain(self.sampler):
                if hasattr(one, "generator"):
                    raise InvalidRequest(
                        f"{type(one).__name__} draws at random without a torch.Generator, so that its order cannot be "
                        "restored: give it generator=torch.Generator().manual_seed(...), or use a plan"
                    )
        return state

    def load(self, state: Mapping[str, Any], *, strict: bool = True) -> None:
        """Let the next iteration continue after the batch that was delivered last before `state` was saved.

        Raises InvalidRequest for a state of another sampler, and the errors of the sampler's `load_state_dict`.
        """
        restore(self.sampler, state, strict=strict)
        self.run = self.place_handed = None
        self._restored = dict(state), epoch_of(self.sampler)
