"""Plan sender: tells the store which objects of remote buckets a loader will read in its next steps.

The store fetches cold ones before they are read. A thread of the trainer's process draws the plan some steps ahead, and
sends each step once. It renews what it has sent, so that the store forgets the loader when its process is gone. Nothing
of this is needed to read: if it fails, a warning says so, and the store fetches cold objects when they are read.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from ais_loader.errors import Closed, LoaderError, Unsupported
from ais_loader.training.process_client import ProcessClient
from ais_loader.transport.base import Transport
from ais_loader.values.entry import Entry, EntryLike, to_entry
from ais_loader.wire.backoff import Backoff
from ais_loader.wire.generated import ais_remote_pb2 as pb

LIFETIME_S = 30.0
"""Time after which the store forgets a loader that has gone."""
RENEWALS = 3
"""Number of renewals in a lifetime, at least."""
RENEWED_PARTS = 16
"""A window advances by this part of its steps at a time."""
MAX_STEPS = 1000
"""Largest number of steps that can be sent ahead."""
MESSAGE_KEYS = 2000
"""A message gets no further step beyond this: a node handles it in some milliseconds."""
STEP_KEYS = 10_000
"""Number of keys of one step that are sent, the most that a node accepts in a message."""
WINDOW_KEYS = 20_000
WINDOW_BYTES = 2 << 20
"""Limits of a window, beyond which it gets no further step; the second is for names."""
RETRY = Backoff(1.0, 8.0, jitter=0.5)
_STOP_S = 1.0
log = logging.getLogger(__name__)


class PlanSender:
    """Sends the plan of one iteration until it is closed. Steps are counted from the iteration's first one.

    Args:
        client: The store.
        draw: Returns the entries of a step of the plan. Called by another thread.
        steps: The plan's steps, in the order of the iteration.
        expect_steps: Maximum number of steps that are sent ahead, 1 to `MAX_STEPS`.
        buckets: The buckets of all entries, if they are known without drawing.
    """

    def __init__(
        self,
        client: ProcessClient,
        draw: Callable[[int], Sequence[EntryLike]],
        steps: range,
        expect_steps: int,
        buckets: Sequence[str] | None = None,
    ) -> None:
        self._buckets = buckets
        self._client = client
        self._draw = draw
        self._steps = steps
        self._ahead = expect_steps
        self._loader = os.urandom(16)
        self._remote: dict[str, bool] = {}
        """Whether the objects of a bucket can be fetched ahead, by name."""
        self._delivered = 0
        self._due = 0
        """Number of delivered steps at which the window is sent again."""
        self._changed = threading.Event()
        self._stopped = False
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._run, name="ais-loader plan", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:  # no more threads, or the interpreter ends
            self._stopped = True
            log.warning(_WARNING, error)

    def delivered(self, count: int) -> None:
        """Note how many steps the trainer has received, including the one that it receives now."""
        self._delivered = count
        if count >= len(self._steps):
            self._stopped = True
            self._changed.set()
        elif count >= self._due:
            self._changed.set()

    def close(self) -> None:
        """Have the store forget the plan, without waiting long for it. May be called again."""
        if self._pid != os.getpid():
            return  # inherited by a forked worker
        self._stopped = True
        self._changed.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():  # which may collect garbage
            self._thread.join(_STOP_S)

    # -- in the thread

    def _run(self) -> None:
        try:
            with self._client.opened() as client:
                self._send(client._transport)
        except Closed:
            pass
        except Exception as error:  # noqa: BLE001 - of the plan as well: whoever reads the step gets it
            log.warning(_WARNING, error)

    def _send(self, transport: Transport) -> None:
        window: deque[dict[str, list[str]]] = deque()
        position = sent = failures = 0
        is_sent = is_told = False
        if self._buckets is not None and not any(map(transport.can_expect, self._buckets)):
            return
        try:
            while not self._stopped:
                self._changed.clear()
                delivered = self._delivered
                while position < delivered:
                    position += 1
                    if window:
                        window.popleft()
                self._fill(window, position, transport)
                if not is_sent and not any(self._remote.values()):
                    return  # no remote bucket, and probably none later
                first_step = max(sent, position)
                request = self._request(position, first_step, itertools.islice(window, first_step - position, None))
                sent = first_step + len(request.step)
                is_sent = True
                pause_s = LIFETIME_S / RENEWALS
                try:
                    is_complete = transport.expect(request)
                except (Closed, Unsupported):
                    raise
                except LoaderError as error:
                    if failures == 1 and not is_told:  # the first one may be that of a node that restarts
                        log.warning(_WARNING, error)
                        is_told = True
                    pause_s, is_complete = RETRY.pause_s(failures), False
                    failures += 1
                else:
                    failures = 0
                    if sent < position + len(window) or (not is_complete and first_step > position):
                        self._changed.set()  # send the rest now, or all that was sent
                if not is_complete:
                    sent = 0
                self._wait(position + max(1, len(window) // RENEWED_PARTS), pause_s, failures)
        finally:
            if is_sent:
                with contextlib.suppress(LoaderError):
                    transport.expect(pb.ExpectRequest(loader=self._loader, position=self._delivered, done=True))

    def _wait(self, due: int, pause_s: float, failures: int) -> None:
        """Wait until `due` steps are delivered, for `pause_s` at most; after failures, for that time."""
        self._due = len(self._steps) if failures else due
        if failures:
            self._changed.clear()
        if not self._stopped and self._delivered < self._due:
            self._changed.wait(pause_s)

    def _fill(self, window: deque[dict[str, list[str]]], position: int, transport: Transport) -> None:
        """Draw steps until the window is full."""
        keys = size_bytes = 0
        for names in itertools.chain.from_iterable(step.values() for step in window):
            keys, size_bytes = keys + len(names), size_bytes + sum(map(len, names))
        for step in self._steps[position + len(window) : position + self._ahead]:
            if self._stopped or keys >= WINDOW_KEYS or size_bytes >= WINDOW_BYTES:
                return
            found: dict[str, list[str]] = {}
            entries = map(to_entry, self._draw(step))
            wanted = dict.fromkeys((entry.bucket, entry.name) for entry in entries if not _is_range(entry))
            for bucket, name in itertools.islice(wanted, STEP_KEYS):
                if bucket not in self._remote:
                    self._remote[bucket] = transport.can_expect(bucket)
                if self._remote[bucket] and _is_encodable(name):
                    found.setdefault(bucket, []).append(name)
                    keys, size_bytes = keys + 1, size_bytes + len(name)
            window.append(found)

    def _request(self, position: int, first_step: int, steps: Iterable[dict[str, list[str]]]) -> pb.ExpectRequest:
        """Return a message with as many of these steps as it can have."""
        request = pb.ExpectRequest(
            loader=self._loader, position=position, first_step=first_step, lifetime_ms=round(LIFETIME_S * 1000)
        )
        buckets: dict[str, int] = {}
        count = 0
        for step in steps:
            count += sum(map(len, step.values()))
            if count > MESSAGE_KEYS and request.step:
                break
            indices: list[int] = []
            message = request.step.add()
            for bucket, names in step.items():
                message.name.extend(names)
                indices += [buckets.setdefault(bucket, len(buckets))] * len(names)
            if any(indices):
                message.bucket_index.extend(indices)
        request.bucket.extend(buckets)
        return request


_WARNING = "the plan of a loader was not sent to the store, which fetches cold objects when they are read: %s"


def _is_range(entry: Entry) -> bool:
    """Whether only a part of an object is read, which need not have the whole object fetched."""
    return entry.member is None and bool(entry.start or entry.length is not None or entry.ranges)


def _is_encodable(name: str) -> bool:
    try:
        name.encode()
    except (UnicodeEncodeError, AttributeError):
        return False  # no object has such a name; the request for it reports the error
    return True
