"""Batch loader: fetches the data of a set of cuts with one GetBatch, in place of Lhotse's own AISBatchLoader."""

from __future__ import annotations

import logging
import os
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from lhotse import CutSet
from lhotse.ais.batch_loader import AISBatchLoader as LhotseBatchLoader

from ais_loader import Batch, Client, Entry, LoaderError, Status, errors

from ..shared_store import StoreReference
from .failures import AISBatchLoaderError, reason
from .layouts import HEADER_BYTES, Layout, layout_of
from .needs import Need, NeedAnswer, entry_of, filled, needs_of, without_wide_windows
from .shar_pointers import SharPointer, SharPointerError

logger = logging.getLogger(__name__)
MAX_LAYOUTS = 100_000
"""The number of recordings and arrays whose layouts are kept, those read last."""
Answers = dict[Entry, "bytes | LoaderError"]
_UNREACHABLE = (errors.NodeUnavailable, errors.SilenceTimeout, errors.Overloaded)
"""Errors that fail an entire request, and therefore each of its entries."""


class AISBatchLoader(LhotseBatchLoader):  # type: ignore[misc]  # Lhotse is not type-checked here
    """Loads cuts with one GetBatch: `loader(cuts)` returns the same cuts with their remote data in memory.

    It fetches everything that `ais://` URLs of the cuts name: all sources of recordings, in all tracks of mixed cuts,
    features, arrays and images, including custom fields. An entry that several of them name is fetched once. Of a large
    PCM WAV file or a large `.npy`, also within a tar, it fetches only the part that the cut covers. This takes one more
    request for the header, only once. Data that is elsewhere is left alone. So are the cuts that you pass: the data is
    put into shallow copies.

    By default, an entry that fails does not raise here. Instead, its cut gets a source whose loading raises
    AudioLoadingError with the URL, the status and the reason. A fault-tolerant caller therefore drops that cut, and any
    other caller raises. If no cut of the set is complete, the call raises immediately.

    Nothing is opened before the first remote entry. The loader pickles without its connection, and is safe in workers
    of every kind.
    """

    store = StoreReference()
    """The store of loaders that are created without one. `install` sets it."""

    def __init__(
        self,
        force_individual: bool = False,
        skip_failed_fetches: bool = False,
        *,
        store: str | os.PathLike[str] | None = None,
        strict: bool = False,
        windows: bool = True,
        timeout_s: float = 30.0,
    ) -> None:
        """
        Args:
            force_individual: Whether to send one request per entry instead of one for all.
            skip_failed_fetches: Whether to leave out cuts of which something failed, with a warning.
            store: The store's URL. None means the one passed to `install`, or else the value of AIS_LOADER_URL at each
                call.
            strict: Whether to raise one AISBatchLoaderError that names all failed entries.
            windows: False fetches recordings and arrays whole, for callers that read more of them than their cuts.
            timeout_s: The longest time to wait for the store's next data.
        """
        self.force_individual = force_individual
        self.skip_failed_fetches = skip_failed_fetches
        self.strict = strict
        self._windows = windows
        self._timeout_s = timeout_s
        self._store = self.store if store is None else StoreReference(store)
        self._layouts: OrderedDict[Entry, Layout | None] = OrderedDict()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_layouts": OrderedDict()}

    @property
    def client(self) -> Client:
        """The store's client, shared by its readers in this process. Raises the errors of `ais_loader.connect`."""
        return self._store.reader()

    def __call__(self, cuts: Iterable[Any]) -> Any:
        """Return the cuts, in order, with their data: a CutSet for a CutSet, otherwise a list.

        Raises ValueError for a lazy set; AISBatchLoaderError, as the class describes; InvalidRequest if no store is
        named.
        """
        if getattr(cuts, "is_lazy", False) or isinstance(cuts, Iterator):
            raise ValueError(
                "Lazy CutSets cannot be used with AISBatchLoader. "
                "Convert to eager via `cuts.to_eager()` before loading."
            )
        pending = self.begin(cuts)
        if not pending.needs:
            return cuts
        done = pending.finish()
        return CutSet.from_cuts(done) if isinstance(cuts, CutSet) else done

    def begin(self, cuts: Iterable[Any]) -> PendingCuts:
        """Request the data of these cuts, and return while it is still arriving. Raises the errors of a call.

        This waits only for headers that are needed for windows and are not yet known.
        """
        listed = list(cuts)
        needs = needs_of(listed, windows=self._windows)
        if not needs:
            return PendingCuts(self, listed, needs, {}, [], None)
        without_wide_windows(needs)
        client = self.client
        self._learn_layouts(client, needs)
        # A copy for this batch: another batch, in another thread, may invalidate one of the layouts.
        layouts = {need.entry: self._layouts.get(need.entry) for need in needs}
        entries = [entry_of(need, layouts) for need in needs]
        return PendingCuts(self, listed, needs, layouts, entries, Answering(self, client, entries))

    def _judge(
        self, cuts: Sequence[Any], needs: Sequence[Need], fetched: Sequence[NeedAnswer], bad: Mapping[int, str]
    ) -> None:
        """Raise AISBatchLoaderError if the failures require it. Otherwise, log a warning."""
        reasons = list(dict.fromkeys(one.why for one in fetched if one.data is None))
        if self.strict or len(bad) == len(cuts):
            all_of_them = "no cut of the batch is whole: " if len(bad) == len(cuts) else ""
            raise AISBatchLoaderError(
                f"{all_of_them}{len(reasons):,} of {len({need.url for need in needs}):,} entries failed: "
                + "; ".join(reasons)
            )
        logger.warning(
            "%s of %s cuts are not whole%s: %s",
            f"{len(bad):,}",
            f"{len(cuts):,}",
            " and left out" if self.skip_failed_fetches else "",
            "; ".join(reasons[:5]) + ("; …" if len(reasons) > 5 else ""),
        )

    # -- I/O

    def _retries(self, needs: Sequence[Need], entries: Sequence[Entry], answers: Answers) -> dict[int, Entry]:
        """Return the entries to request again, by position.

        These are whole objects or members that were replaced since their header was read, or are shorter than it says;
        and members, by name, that are not where a pointer says.
        """
        retries: dict[int, Entry] = {}
        for at, (need, entry) in enumerate(zip(needs, entries, strict=True)):
            answer = answers[entry]
            if entry.version is not None and isinstance(answer, (errors.NotFound, errors.RangeError)):
                self._layouts.pop(need.entry, None)
                retries[at] = need.entry
            elif need.pointer is not None and _is_elsewhere(need.pointer, answer):
                retries[at] = need.pointer.member_entry()
        return retries

    def _learn_layouts(self, client: Client, needs: Sequence[Need]) -> None:
        """Read unknown headers, in their current versions, of recordings and arrays of which a window suffices."""
        unknown = list(
            dict.fromkeys(
                need.entry
                for need in needs
                if (need.seconds is not None or need.rows is not None) and need.entry not in self._layouts
            )
        )
        if not unknown:
            return
        by_bucket: dict[str, dict[str, Any]] = {}
        for entry in unknown:
            by_bucket.setdefault(entry.bucket, {})[entry.name] = None
        try:
            for bucket, names in by_bucket.items():
                for name, info in zip(names, client.bucket(bucket).head_many(names), strict=True):
                    names[name] = info
        except LoaderError:
            return  # the entries themselves report the reason
        headers: dict[Entry, Entry] = {}
        for entry in unknown:
            info = by_bucket[entry.bucket][entry.name]
            if info is not None and info.size_bytes >= HEADER_BYTES:
                headers[entry] = Entry(entry.bucket, entry.name, entry.member, 0, HEADER_BYTES, info.version)
        answers = Answering(self, client, list(headers.values())).answers()
        for entry, header in headers.items():
            answer = answers[header]
            if isinstance(answer, (bytes, errors.RangeError)):  # a member may be shorter
                found = layout_of(answer, header.version or "") if isinstance(answer, bytes) else None
                self._layouts[entry] = found
        while len(self._layouts) > MAX_LAYOUTS:
            self._layouts.popitem(last=False)


class Answering:
    """The distinct entries of a request, and their answers."""

    def __init__(self, loader: AISBatchLoader, client: Client, entries: Sequence[Entry]) -> None:
        """Send one request for all, immediately. With `force_individual`, send one for each, one after another."""
        self._client, self._timeout_s = client, loader._timeout_s
        self._distinct = list(dict.fromkeys(entries))
        self._individually = loader.force_individual
        self._batch: Batch | LoaderError | None = None if self._individually else self._request_batch(self._distinct)

    def _request_batch(self, entries: Sequence[Entry]) -> Batch | LoaderError:
        try:
            return self._client.get_batch(entries, on_error="placeholder", timeout_s=self._timeout_s)
        except _UNREACHABLE as error:
            return error

    def answers(self) -> Answers:
        """Return the answers by entry, with an error in place of each one that failed."""
        found: Answers = {}
        for some in [[entry] for entry in self._distinct] if self._individually else [self._distinct]:
            batch = self._request_batch(some) if self._batch is None else self._batch
            try:
                if isinstance(batch, LoaderError):
                    raise batch
                data = batch.tobytes()
            except _UNREACHABLE as error:
                found |= dict.fromkeys(some, error)
                continue
            for at, (entry, one) in enumerate(zip(some, data, strict=True)):
                found[entry] = batch.failures[at] if one is None else one
        return found

    def close(self) -> None:
        """Abandon data that has not arrived."""
        if isinstance(self._batch, Batch):
            self._batch.close()


class PendingCuts:
    """Cuts whose data is in flight. Use it in one thread at a time, which need not be the one that created it."""

    def __init__(
        self,
        loader: AISBatchLoader,
        cuts: list[Any],
        needs: list[Need],
        layouts: Mapping[Entry, Layout | None],
        entries: list[Entry],
        answering: Answering | None,
    ) -> None:
        self.needs = needs
        self._loader = loader
        self._cuts = cuts
        self._layouts = layouts
        self._entries = entries
        self._answering = answering

    def finish(self) -> list[Any]:
        """Return copies of the cuts with their data, in order. Call this once. Raises AISBatchLoaderError."""
        if self._answering is None:
            return self._cuts
        fetched = self._fetched(self._answering)
        loader, needs = self._loader, self.needs
        bad = {need.cut_index: one.why for need, one in zip(needs, fetched, strict=True) if one.data is None}
        if bad:
            loader._judge(self._cuts, needs, fetched, bad)
        left_needs, left = iter(needs), iter(fetched)
        done = [filled(cut, left_needs, left) for cut in self._cuts]
        return [cut for at, cut in enumerate(done) if at not in bad] if loader.skip_failed_fetches else done

    def _fetched(self, answering: Answering) -> list[NeedAnswer]:
        """Return one result for each need."""
        answers = answering.answers()
        retries = self._loader._retries(self.needs, self._entries, answers)
        if retries:
            answers |= Answering(self._loader, self._loader.client, list(retries.values())).answers()
        return [
            _judged(need, retries.get(at, entry), answers, self._layouts)
            for at, (need, entry) in enumerate(zip(self.needs, self._entries, strict=True))
        ]

    def close(self) -> None:
        """Abandon data that has not arrived."""
        if self._answering is not None:
            self._answering.close()


def _is_elsewhere(pointer: SharPointer, answer: bytes | LoaderError) -> bool:
    """Return whether another member is there, but the intended one may be found by its name."""
    if pointer.name is None or pointer.strict or isinstance(answer, LoaderError):
        return pointer.name is not None and not pointer.strict and isinstance(answer, errors.RangeError)
    try:
        return pointer.payload(answer) is None
    except SharPointerError:
        return True


def _judged(need: Need, entry: Entry, answers: Answers, layouts: Mapping[Entry, Layout | None]) -> NeedAnswer:
    answer = answers[entry]
    if isinstance(answer, LoaderError):
        return NeedAnswer(None, reason(need.url, _status(answer), answer))
    if need.pointer is not None and entry.member is None:
        try:
            answer = need.pointer.payload(answer) or b""
        except SharPointerError as error:
            return NeedAnswer(None, f"{need.url}: {error}")
    if not answer:
        return NeedAnswer(None, reason(need.url, Status.OK, None))
    return NeedAnswer(answer, layout=layouts[need.entry] if entry.version is not None else None)


def _status(error: LoaderError) -> Status:
    """Return the status of an entry with this error."""
    for status, kind in (
        (Status.MEMBER_NOT_FOUND, errors.MemberNotFound),
        (Status.NOT_FOUND, errors.NotFound),
        (Status.OBJECT_DENIED, errors.ObjectDenied),
        (Status.RANGE, errors.RangeError),
        (Status.CORRUPT, errors.CorruptObject),
        (Status.TIMEOUT, errors.SilenceTimeout),
        (Status.UNAVAILABLE, errors.NodeUnavailable),
    ):
        if isinstance(error, kind):
            return status
    return Status.FAILED
