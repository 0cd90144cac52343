"""Plans of loaders: which objects they will read next, and in which step.

A loader sends a *window* on its plan: the objects of its next steps. It adds steps at the end as it advances. A window
that is not renewed within its lifetime is forgotten, so that a loader that was killed leaves nothing behind.

The distance of an object is the number of steps in which its loader needs it, counted from the step that the loader has
not delivered yet. Loaders take turns: objects are taken by distance, whoever needs them.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Container, Sequence
from typing import NamedTuple

from ais_loader.errors import InvalidRequest, Overloaded

MAX_WINDOW_KEYS = 100_000
"""Maximum number of keys and of steps in one window."""
MAX_WINDOWS = 1000
"""Maximum number of windows."""
MAX_BYTES = 128 << 20
"""Limit for all windows together, by the estimate of `_size_of`."""
_KEY_BYTES = 600
"""Memory for one key, beyond the text of its name. A step needs no more."""


class PlannedKey(NamedTuple):
    """An object of a remote bucket."""

    bucket_uuid: bytes
    bucket: str
    name: str


class Expected(NamedTuple):
    """An object that a loader will need."""

    key: PlannedKey
    tenant: str


class _Window:
    __slots__ = ("expires_s", "first_step", "keys", "position", "size_bytes", "steps", "taken", "tenant", "todo")

    def __init__(self, position: int, tenant: str) -> None:
        self.position = position
        """The first step that the loader has not delivered."""
        self.first_step = position
        """Number of `steps[0]`."""
        self.tenant = tenant
        self.steps: deque[Sequence[PlannedKey]] = deque()
        self.keys = 0
        self.size_bytes = _KEY_BYTES
        self.todo: deque[tuple[int, PlannedKey]] = deque()
        """Steps and keys that were not taken yet."""
        self.taken = 0
        """Number of the last taking, by which loaders take turns."""
        self.expires_s = 0.0

    @property
    def next_step(self) -> int:
        return self.first_step + len(self.steps)


class Plans:
    """Windows of loaders, pure bookkeeping: the clock is an argument.

    Belongs to one event loop. `needed_at` may be called from any thread.
    """

    def __init__(
        self, *, max_window_keys: int = MAX_WINDOW_KEYS, max_windows: int = MAX_WINDOWS, max_bytes: int = MAX_BYTES
    ) -> None:
        self._max_window_keys, self._max_windows, self._max_bytes = max_window_keys, max_windows, max_bytes
        self._windows: dict[bytes, _Window] = {}
        self._needs: dict[tuple[bytes, str], dict[_Window, int | deque[int]]] = {}
        """For each object: the windows that need it, and in which step. A deque if there are several steps, in order.
        """
        self._size_bytes = 0
        self._takings = 0
        self._passed: list[PlannedKey] = []

    def __len__(self) -> int:
        """Return the number of keys in all windows. A key counts once for each step that needs it."""
        return sum(window.keys for window in self._windows.values())

    # -- windows

    def expect(
        self,
        loader: bytes,
        position: int,
        first_step: int,
        steps: Sequence[Sequence[PlannedKey]],
        *,
        tenant: str,
        lifetime_s: float,
        now_s: float,
    ) -> bool:
        """Advance and renew the window of a loader.

        Args:
            loader: Id of the loader.
            position: The first step that the loader has not delivered. Earlier ones are forgotten.
            first_step: The number of the first of `steps`. If it is `position`, the window is replaced. Otherwise, the
                steps are added at its end.
            steps: Keys of each step.
            tenant: Whose requests they are.

        Returns False if the steps do not follow those that are known. They are ignored then.

        Raises InvalidRequest for a window that is too large, Overloaded if all windows together are. The window then
        keeps the steps that it had.
        """
        if first_step < position:
            raise InvalidRequest(f"expect: step {first_step} is before position {position}")
        window = self._windows.get(loader)
        if first_step == position:
            self._require_room(window, steps, replaces=True)
            self.forget(loader, position)
            window = self._windows[loader] = _Window(position, tenant)
            self._size_bytes += window.size_bytes
        elif window is None:
            return False
        else:
            self._advance(window, position, self._passed)
            window.expires_s = now_s + lifetime_s
            if window.next_step != first_step:
                return False
            self._require_room(window, steps, replaces=False)
        window.expires_s = now_s + lifetime_s
        for keys in steps:
            self._append(window, keys)
        return True

    def _require_room(self, window: _Window | None, steps: Sequence[Sequence[PlannedKey]], *, replaces: bool) -> None:
        keys, count = sum(map(len, steps)), len(steps)
        if window is not None and not replaces:
            keys, count = keys + window.keys, count + len(window.steps)
        if max(keys, count) > self._max_window_keys:
            raise InvalidRequest(
                f"expect: {keys:,} keys in {count:,} steps: at most {self._max_window_keys:,} of each; send fewer steps"
            )
        if window is None and len(self._windows) >= self._max_windows:
            raise Overloaded(f"expect: this node has the plans of {len(self._windows):,} loaders: try again later")
        size_bytes = self._size_bytes + sum(map(_size_of, steps))
        if replaces:
            size_bytes += _KEY_BYTES - (0 if window is None else window.size_bytes)
        if size_bytes > self._max_bytes:
            raise Overloaded(
                f"expect: the plans of {len(self._windows):,} loaders take {self._size_bytes:,} bytes: try again later"
            )

    def _append(self, window: _Window, keys: Sequence[PlannedKey]) -> None:
        step = window.next_step
        window.steps.append(keys)
        window.keys += len(keys)
        size_bytes = _size_of(keys)
        window.size_bytes += size_bytes
        self._size_bytes += size_bytes
        for key in keys:
            needs = self._needs.setdefault((key.bucket_uuid, key.name), {})
            earlier = needs.get(window)
            if earlier is None:
                needs[window] = step
            elif isinstance(earlier, int):
                needs[window] = deque((earlier, step))
            else:
                earlier.append(step)
            window.todo.append((step, key))

    def _advance(self, window: _Window, position: int, passed: list[PlannedKey] | None = None) -> None:
        """Forget the steps before `position`. `passed`: gets their keys."""
        window.position = max(window.position, position)
        while window.steps and window.first_step < window.position:
            keys = window.steps.popleft()
            size_bytes = _size_of(keys)
            window.size_bytes -= size_bytes
            self._size_bytes -= size_bytes
            window.keys -= len(keys)
            for key in keys:
                self._remove_first(key, window)
            if passed is not None:
                passed += keys
            window.first_step += 1
        while window.todo and window.todo[0][0] < window.position:
            window.todo.popleft()

    def _remove_first(self, key: PlannedKey, window: _Window) -> None:
        needs = self._needs[key.bucket_uuid, key.name]
        steps = needs[window]
        if isinstance(steps, deque):
            steps.popleft()
            if steps:
                return
        del needs[window]
        if not needs:
            del self._needs[key.bucket_uuid, key.name]

    def forget(self, loader: bytes, position: int = 0) -> None:
        """Forget the window of a loader, if there is one. It has delivered the steps before `position`."""
        window = self._windows.pop(loader, None)
        if window is not None:
            self._advance(window, position, self._passed)
            self._advance(window, window.next_step)
            self._size_bytes -= window.size_bytes

    def expire(self, now_s: float) -> None:
        """Forget the windows that were not renewed in time."""
        for loader in [loader for loader, window in self._windows.items() if window.expires_s <= now_s]:
            self.forget(loader)

    @property
    def next_expiry_s(self) -> float | None:
        """Time at which the next window expires unless it is renewed; None if there is no window."""
        return min((window.expires_s for window in self._windows.values()), default=None)

    # -- keys

    def knows(self, loader: bytes) -> bool:
        return loader in self._windows

    def take_passed(self) -> list[PlannedKey]:
        """Return the keys that loaders have passed since the last call, in order."""
        passed, self._passed = self._passed, []
        return passed

    def take(self, count: int, paused: Container[bytes] = ()) -> list[Expected]:
        """Return up to `count` keys that were not returned before, those that are needed first before others.

        `paused`: uuids of buckets of which none is returned; a loader that needs one next waits as a whole.
        """
        found: list[Expected] = []
        while len(found) < count:
            ready = (one for one in self._windows.values() if one.todo and one.todo[0][1].bucket_uuid not in paused)
            window = min(ready, key=lambda one: (one.todo[0][0] - one.position, one.taken), default=None)
            if window is None:
                break
            self._takings += 1
            window.taken = self._takings
            found.append(Expected(window.todo.popleft()[1], window.tenant))
        return found

    def needed_at(self, bucket_uuid: bytes, name: str) -> int | None:
        """Return the number of steps until a loader needs an object, 0 or more; None if none has said that it will."""
        needs = self._needs.get((bucket_uuid, name))
        if not needs:
            return None
        found = []
        for window, steps in list(needs.items()):
            if isinstance(steps, deque):
                with contextlib.suppress(IndexError):  # removed by the loop's thread meanwhile
                    found.append(steps[0] - window.position)
            else:
                found.append(steps - window.position)
        return max(0, min(found)) if found else None


def _size_of(keys: Sequence[PlannedKey]) -> int:
    return _KEY_BYTES + sum(_KEY_BYTES + 2 * len(key.name) for key in keys)
