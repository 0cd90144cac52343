"""Drive manager of a serving node: adds, retires, gives up, disables and enables drives, monitors them, moves objects.

A drive that fails too often is disabled: its objects are answered as unavailable, which sends readers to the other
replicas. If it stays disabled for `drive_grace_s`, and other nodes have a replica of everything that can have been on
it, it is given up: its objects then belong to the node's other drives, and are fetched from those nodes.

A missing drive is used again when it reappears where it was, or at one of the node's paths.

One change at a time. Belongs to the node's event loop; code that waits for a drive runs on reader threads.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import time
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ais_loader.errors import InvalidRequest, LoaderError
from ais_loader.wire.backoff import Backoff
from ais_loader.wire.generated import ais_cluster_pb2 as pb
from ais_loader.wire.generated.ais_cluster_pb2_grpc import DrivesStub
from storage_node.cluster.consensus.acceptor_store import AcceptorStore, roots_of
from storage_node.cluster.drives.health import ROOM_BYTES, ErrorWindow, Neighbour, RoomWatch, why_groups_need, why_kept
from storage_node.cluster.repair.repair import Repair
from storage_node.cluster.repair.transfers import Throttle
from storage_node.context.channels import REACH_TIMEOUT_S, Channels
from storage_node.context.errors import ReplicaLost
from storage_node.context.membership import Membership
from storage_node.context.node import Node
from storage_node.limits.tasks import keep_going
from storage_node.limits.wakeup import Wakeup
from storage_node.store.drive import identity as identities
from storage_node.store.drive.drive import Drive
from storage_node.store.pool.membership import DriveState

WATCH_INTERVAL_S = 0.5
KEPT_INTERVAL_S = 5.0
"""Interval of asking the other nodes whether a drive may be given up."""
MOVE_OBJECTS, MOVE_BYTES, MOVE_S = 64, 8 << 20, 0.25
"""Limits of one step, which moves at most what is permitted for this time: the node cannot stop during a step."""
RETURN_INTERVAL_S = 2.0
"""Interval of checks for drives that have returned."""
BACKOFF = Backoff(0.25, 10.0, jitter=0)
log = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(slots=True)
class DriveMetrics:
    """Counters since the node started; plain numbers, readable from any thread."""

    objects_moved: int = 0
    bytes_moved: int = 0
    objects_left: int = 0
    """Approximate number of objects still to be moved."""
    disabled: int = 0
    """Drives that failed too often."""
    given_up: int = 0


@dataclass(slots=True)
class _Away:
    """A drive that the node does not use."""

    since_s: float
    path: str = ""
    by_hand: bool = False
    disabled: bool = False
    checked_at_s: float = float("-inf")
    kept_because: str = ""


class DriveManager:
    def __init__(
        self,
        node: Node,
        membership: Membership,
        acceptor_store: AcceptorStore,
        repair: Repair,
        find: Callable[[], Iterable[Path]],
        require_free: Callable[[Path], None],
    ) -> None:
        """
        Args:
            find: returns the paths at which drives of this node may be; called on a reader thread.
            require_free: raises InvalidRequest for a folder that this node uses for something else.
        """
        self._find = find
        self.require_free = require_free
        self._node = node
        self._store = node.store
        self._config = node.config
        self._membership = membership
        self._acceptor_store = acceptor_store
        self._repair = repair
        self._channels = Channels(node.caller)
        self._changing = asyncio.Lock()
        self._windows: dict[str, tuple[Drive, ErrorWindow]] = {}
        self._away: dict[str, _Away] = {}
        self._rooms: dict[str, RoomWatch] = {}
        self._presence_checks: dict[str, asyncio.Future[bool]] = {}
        """Pending or last check of each drive's folder: whether it still exists."""
        self._problems: dict[Path, str] = {}
        """Reasons why drives that have returned cannot be used."""
        self._throttle = Throttle(self._config.store.drive_move_bytes_per_s)
        self._tasks: list[asyncio.Task[None]] = []
        self._changes: set[asyncio.Task[Any]] = set()
        self._due, self._missed, self._changed = Wakeup(), Wakeup(), Wakeup()
        """Set when a drive has failed, is no longer used, and when the drives have changed."""
        self.counts = DriveMetrics()

    def start(self) -> None:
        self._refresh()
        steps = {
            "looking after drives": self._watch,
            "looking for drives that return": self._await_missing,
            "moving objects between drives": self._move,
        }
        self._tasks = [asyncio.create_task(keep_going(name, step)) for name, step in steps.items()]

    async def stop(self) -> None:
        """Stop. A step of moving, or a change, that is in progress is finished."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, *self._changes, *self._presence_checks.values(), return_exceptions=True)
        await self._channels.close()

    # -- changes; all raise LoaderError, including InvalidRequest

    async def add(self, path: str) -> None:
        """Make an empty or new folder a drive."""
        folder = Path(path)
        if not folder.is_absolute():
            raise InvalidRequest(f"{path!r}: need the absolute path of a folder on the node's machine")
        self.require_free(folder)
        await self._in_turn(self._change(lambda: self._store.pool.add_drive(folder)))
        log.warning("drive %s was added: objects move to it in the background", folder)

    async def retire(self, uuid: str) -> None:
        self._known(uuid)
        await self._in_turn(self._change(lambda: self._store.pool.retire_drive(uuid)))
        log.warning("drive %s retires: its objects move to the other drives", self._name(uuid))

    async def reinstate(self, uuid: str) -> None:
        self._known(uuid)
        await self._in_turn(self._change(lambda: self._store.pool.reinstate_drive(uuid)))

    async def forget(self, uuid: str, *, lost: bool) -> None:
        """Give up a drive that does not work. `lost`: even if data is lost with it."""
        if self._known(uuid) is not None:
            raise InvalidRequest(
                f"drive {self._name(uuid)} works: retire it, and nothing has to be made again; or disable it first"
            )
        if not lost and (reason := await self._why_kept(self._away[uuid])):
            raise InvalidRequest(f"drive {self._name(uuid)} is kept: {reason}")
        await self._in_turn(self._give_up(uuid))

    async def disable(self, uuid: str) -> None:
        if self._known(uuid) is None:
            self._away[uuid].by_hand = self._away[uuid].disabled = True
            return
        await self._in_turn(self._disable(uuid, "disabled by hand"))

    async def enable(self, uuid: str, path: str = "") -> None:
        """Use the drive again, as soon as its replicas have been compared with those of other nodes."""
        if self._known(uuid) is None:
            await self._in_turn(self._enable(uuid, Path(path) if path else None))

    # -- state

    async def report(self) -> pb.ListDrivesResponse:
        """Describe the drives. Raises Closed."""
        states = await self._node.read(self._store.pool.states)
        self._refresh()
        now, counts, grace_s = time.monotonic(), self.counts, self._config.store.drive_grace_s
        response = pb.ListDrivesResponse(
            moving=self._store.pool.moving,
            objects_left=counts.objects_left,
            objects_moved=counts.objects_moved,
            bytes_moved=counts.bytes_moved,
            refilling=self.refilling,
        )
        for state in states:
            away = self._away.get(state.uuid)
            one = response.drive.add(
                uuid=state.uuid,
                path=state.path or (away.path if away is not None else ""),
                problem=state.problem or "",
                state=pb.DriveCondition.State.Value(self.state(state).upper()),
                objects_estimate=state.objects_estimate,
                free_bytes=state.free_bytes,
                size_bytes=state.size_bytes,
                io_errors=state.io_errors,
                bad_checksums=state.checksum_errors,
            )
            if state.device is not None:
                one.device_read_bytes, one.device_written_bytes, one.device_busy_s = state.device
            if one.state == pb.DriveCondition.FAILING:
                one.problem = one.problem or state.last_io_error
            if away is not None:
                one.kept_because = "disabled by hand" if away.by_hand else away.kept_because
                if grace_s and not away.by_hand:
                    one.forgotten_in_s = max(0.0, away.since_s + grace_s - now)
        return response

    @property
    def refilling(self) -> bool:
        """Whether objects of a drive that was given up are still to be found, or fetched."""
        stale = self._store.replicas.stale
        return bool(stale.buckets_with_gaps() or stale.count())

    def problem_at(self, path: Path) -> str | None:
        """Return why a drive that has appeared at `path` cannot be used; empty if it is used, or is not missing; None
        if it has not been looked at yet. Thread-safe."""
        in_use = any(drive is not None and drive.root == path for drive in self._store.drives)
        return "" if in_use or not self._awaits_any() else self._problems.get(path)

    def state(self, found: DriveState) -> str:
        """Return `DriveState.status`, or "failing"."""
        window = self._windows.get(found.uuid)
        if found.status == "active" and window is not None and window[1].recent(time.monotonic()):
            return "failing"
        return found.status

    # -- one change at a time

    async def _in_turn(self, change: Coroutine[Any, Any, T]) -> T:
        """Run a change to its end, even if its caller is cancelled."""

        async def run() -> T:
            async with self._changing:
                try:
                    return await change
                finally:
                    self._refresh()
                    self._changed.set()

        task = asyncio.create_task(run())
        self._changes.add(task)
        task.add_done_callback(self._changes.discard)
        return await asyncio.shield(task)

    async def _change(self, change: Callable[[], object]) -> None:
        await self._node.read(self._acceptor_store.change_drives, change, lambda: roots_of(self._store))
        await self._follow()

    async def _follow(self) -> None:
        """Make the acceptor keep its state on the current drives."""
        retiring = self._store.record.current.retiring
        leaving = [drive.root for uuid, drive in self._drives().items() if drive is not None and uuid in retiring]
        await self._node.read(self._acceptor_store.follow, roots_of(self._store), leaving)

    async def _disable(self, uuid: str, reason: str, *, failed: Drive | None = None, gone: bool = False) -> None:
        """Disable a drive. `failed`: unless it was opened again meanwhile; None if it is disabled by hand. `gone`: use
        it again when it reappears."""
        drive = self._known(uuid)
        if drive is None or failed not in (None, drive):
            return
        path = str(drive.root)
        await self._node.read(functools.partial(self._store.pool.disable_drive, missing=gone), uuid, reason)
        self._away[uuid] = _Away(time.monotonic(), path, by_hand=failed is None, disabled=not gone)
        await self._follow()
        log.error("drive %s is disabled: %s", path, reason)
        if failed is not None:
            self.counts.disabled += 1
            await self._repair.drive_lost()

    async def _enable(self, uuid: str, path: Path | None, missing: _Away | None = None) -> None:
        """`missing`: only while the drive is still as it was then, and not disabled."""
        if missing is not None and (missing.disabled or self._away.get(uuid) is not missing):
            return
        loop = asyncio.get_running_loop()

        async def compare_again() -> None:
            self._repair.compare_again()

        def opened() -> None:  # only then: a drive that cannot be opened is tried again and again
            asyncio.run_coroutine_threadsafe(compare_again(), loop).result()  # it may have missed writes

        try:
            await self._node.read(self._store.pool.enable_drive, uuid, path, opened)
            await self._follow()
        finally:
            if self._drives().get(uuid) is not None:
                self._repair.compare_again()  # comparisons made meanwhile did not include it
        log.warning("drive %s is in use again", path or uuid)

    async def _give_up(self, uuid: str) -> None:
        name, moving = self._name(uuid), self._store.pool.moving
        self._mark_what_is_lost(moving)
        try:
            await self._change(lambda: self._store.pool.forget_drive(uuid))
        finally:
            self._mark_what_is_lost(moving)
        self.counts.given_up += 1
        log.error("drive %s was given up: its objects are fetched from other nodes", name)

    def _mark_what_is_lost(self, moving: bool) -> None:
        if moving:  # an older version of its objects may be on another drive
            self._repair.compare_again()
        self._repair.refill()

    def _known(self, uuid: str) -> Drive | None:
        """Return the drive; None if the node does not use it. Raises InvalidRequest."""
        self._refresh()
        drives = self._drives()
        if uuid not in drives:
            raise InvalidRequest(f"this node has no drive {uuid}")
        return drives[uuid]

    def _drives(self) -> dict[str, Drive | None]:
        """Return the store's drives by uuid; None for those that it does not use."""
        live = {drive.identity.drive_uuid: drive for drive in self._store.drives if drive is not None}
        return {uuid: live.get(uuid) for uuid in self._store.record.current.drives}

    def _name(self, uuid: str) -> str:
        drive, away = self._drives().get(uuid), self._away.get(uuid)
        if drive is not None:
            return str(drive.root)
        return away.path if away is not None and away.path else uuid

    # -- watching

    def _refresh(self) -> None:
        """Update the records of present and missing drives."""
        now, drives = time.monotonic(), self._drives()
        for uuid, drive in drives.items():
            if drive is None:
                self._windows.pop(uuid, None)
                self._away.setdefault(uuid, _Away(now))
                self._missed.set()
                continue
            self._away.pop(uuid, None)
            if uuid not in self._windows or self._windows[uuid][0] is not drive:
                window = ErrorWindow(self._config.store.drive_errors, self._config.store.drive_error_window_s)
                self._windows[uuid] = drive, window
                drive.faults.watch = self._due.set
        for gone in self._presence_checks.keys() - self._windows.keys():
            del self._presence_checks[gone]
        for gone in ({*self._windows, *self._away}) - set(drives):
            self._windows.pop(gone, None)
            self._away.pop(gone, None)

    async def _watch(self) -> None:
        logged: dict[str, str] = {}
        while True:
            self._refresh()
            now = time.monotonic()
            for uuid, (drive, window) in list(self._windows.items()):
                gone = self._is_gone(uuid, drive)
                if window.note(now, drive.faults.io_errors) or gone or drive.faults.sync_failed:
                    reason = (
                        f"{drive.root}: the folder is gone, or another one is in its place; "
                        "it is used again once it is back"
                        if gone
                        else f"a sync failed, and what it was for may be lost: {drive.faults.sync_failed}"
                        if drive.faults.sync_failed
                        else f"{window.recent(now)} I/O errors within {self._config.store.drive_error_window_s:g} s, "
                        f"the last one: {drive.faults.last_io_error}; it is used again after "
                        "`ais-loader cluster drive enable`, or a restart of the node"
                    )
                    try:
                        await self._in_turn(self._disable(uuid, reason, failed=drive, gone=gone))
                    except LoaderError as error:
                        if logged.get(uuid) != str(error):
                            log.error("drive %s is failing, but is not disabled: %s", drive.root, error)
                        logged[uuid] = str(error)
                elif await self._is_stuck(uuid, drive):
                    await self._in_turn(self._open_again(uuid))
            for uuid, away in list(self._away.items()):
                await self._perhaps_give_up(uuid, away)
            await self._due.wait_for_tick(WATCH_INTERVAL_S)

    def _awaits_any(self) -> bool:
        return not all(away.disabled for away in list(self._away.values()))

    async def _await_missing(self) -> None:
        """Use missing drives that have appeared. A disabled one stays disabled."""
        while True:
            while not self._awaits_any():
                self._problems = {}
                await self._missed.wait()
            await asyncio.sleep(RETURN_INTERVAL_S)
            in_use = {drive.root for drive in self._store.drives if drive is not None}
            last = [Path(away.path) for away in self._away.values() if away.path]
            for path in {*last, *await self._node.read(self._find)} - in_use:
                try:
                    identity = await self._node.read(identities.read, path)
                    self._refresh()
                    away = self._away.get(identity.drive_uuid) if identity is not None else None
                    if identity is not None and away is not None and not away.disabled:
                        await self._in_turn(self._enable(identity.drive_uuid, path, away))
                    self._problems.pop(path, None)
                except (LoaderError, OSError) as error:
                    if self._problems.get(path) != str(error):
                        log.warning("drive %s has returned, and cannot be used: %s", path, error)
                    self._problems[path] = str(error)

    async def _is_stuck(self, uuid: str, drive: Drive) -> bool:
        refused_s = drive.catalog.no_room_s
        has_room = refused_s is not None and await self._node.read(_free_bytes, drive.root) >= ROOM_BYTES
        return self._rooms.setdefault(uuid, RoomWatch()).is_stuck(refused_s, has_room=has_room)

    async def _open_again(self, uuid: str) -> None:
        if (drive := self._known(uuid)) is None:
            return
        log.error("drive %s has room, but its catalog refuses writes: reopening it", drive.root)
        self._rooms.pop(uuid, None)
        self._repair.compare_again()  # it has missed writes
        try:
            await self._node.read(self._store.pool.disable_drive, uuid, f"{drive.root} is being opened again")
            await self._enable(uuid, drive.root)
        except LoaderError as error:
            log.error("drive %s cannot be reopened: %s", drive.root, error)

    def _is_gone(self, uuid: str, drive: Drive) -> bool:
        """Return the result of the previous check, and start another one: a hanging disk delays nothing else."""
        check = self._presence_checks.get(uuid)
        if check is not None and not check.done():
            return False
        self._presence_checks[uuid] = following = asyncio.ensure_future(self._node.read(drive.is_there))
        if check is not None and _was_gone(check):
            return self._windows[uuid][0] is drive
        following.add_done_callback(self._note_presence)  # it is looked at without waiting for a tick
        return False

    def _note_presence(self, check: asyncio.Future[bool]) -> None:
        if _was_gone(check):
            self._due.set()

    async def _perhaps_give_up(self, uuid: str, away: _Away) -> None:
        now, grace_s = time.monotonic(), self._config.store.drive_grace_s
        if not grace_s or away.by_hand or now < away.since_s + grace_s or now < away.checked_at_s + KEPT_INTERVAL_S:
            return
        away.checked_at_s = now
        before = away.kept_because
        try:
            away.kept_because = await self._why_kept(away)
            if not away.kept_because:
                await self._in_turn(self._give_up_unneeded(uuid, away))
        except LoaderError as error:
            away.kept_because = str(error)
        if away.kept_because and away.kept_because != before:
            log.warning("drive %s is not given up: %s", self._name(uuid), away.kept_because)

    async def _give_up_unneeded(self, uuid: str, away: _Away) -> None:
        """Give up a drive unless the changes that this one has waited for are a reason to keep it."""
        if not away.by_hand and self._away.get(uuid) is away:
            away.kept_because = await self._why_kept(away)
            if not away.kept_because:
                await self._give_up(uuid)

    async def _why_kept(self, away: _Away) -> str:
        view, node_uuid = self._membership.view, self._membership.node_uuid
        nodes = [] if view is None else view.nodes
        found = dict(zip((node.uuid for node in nodes), await asyncio.gather(*map(self._ask, nodes)), strict=True))
        own = set(self._store.buckets()) - set(view.buckets if view is not None else ())
        reason = why_kept(view, [one for uuid, one in found.items() if uuid != node_uuid], own)
        if reason or view is None:
            return reason
        coding = {one.endpoint: one.progress.coding for one in found.values() if one.progress is not None}
        return why_groups_need(view, node_uuid, time.monotonic() - away.since_s, coding)

    async def _ask(self, node: pb.MapNode) -> Neighbour:
        endpoint = node.peer_endpoint
        try:
            drives = await self._channels.ask(
                endpoint, DrivesStub, "ListDrives", pb.ListDrivesRequest(), REACH_TIMEOUT_S, wait_for_ready=True
            )
            return Neighbour(endpoint, drives, await self._repair.peers.progress(endpoint))
        except ReplicaLost:
            return Neighbour(endpoint, None, None)

    # -- moving

    async def _move(self) -> None:
        """Move objects to the drives that they belong to, step by step."""
        failures, logged = 0, ""
        step_bytes = max(1, min(MOVE_BYTES, int(MOVE_S * self._config.store.drive_move_bytes_per_s)))
        while True:
            if not self._store.pool.moving:
                self.counts.objects_left = 0
                await self._changed.wait()
                continue
            try:
                record = self._store.record.current
                moved = await self._node.read(self._store.pool.move_some, MOVE_OBJECTS, step_bytes)
                self.counts.objects_moved += moved.objects
                self.counts.bytes_moved += moved.bytes
                self.counts.objects_left = moved.left_estimate
                if self._store.record.current.drives != record.drives:
                    await self._in_turn(self._follow())
                    log.warning("a retired drive is empty and no longer belongs to this node")
                if moved.problem and moved.problem != logged:
                    log.warning("some objects cannot be moved between drives for now: %s", moved.problem)
                logged = moved.problem or ""
                # A step that found everything in its place is progress, too.
                waits = bool(moved.problem) or not self._store.drive_set.all_live()
                stuck = self._store.pool.moving and not moved.objects and waits
            except LoaderError as error:
                if str(error) != logged:
                    log.warning("objects cannot be moved between drives for now: %s", error)
                logged, stuck = str(error), True
            except Exception as error:  # any error: objects must not stay in the wrong place
                log.exception("moving objects between drives")
                logged, stuck = str(error), True
            else:
                await self._throttle.spend(moved.bytes)
            failures = failures + 1 if stuck else 0
            await asyncio.sleep(BACKOFF.pause_s(failures) if stuck else 0)


def _was_gone(check: asyncio.Future[bool]) -> bool:
    return not check.cancelled() and check.exception() is None and not check.result()


def _free_bytes(folder: Path) -> int:
    """Return the free bytes; 0 if unknown."""
    try:
        space = os.statvfs(folder)
    except OSError:
        return 0
    return space.f_bavail * space.f_frsize
