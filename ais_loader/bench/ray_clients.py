"""Client machines of a measurement on the nodes of a Ray cluster: one actor on each; all begin together.

An actor has a crew of its own, so that Ray's threads and memory are not part of the measurement. Actors end with the
connection of the conductor, and their processes end with them.
"""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import os
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from ais_loader.bench import machine
from ais_loader.bench.crew import END_S, FIGURES, START_S, Crew, Live, warm_up_s
from ais_loader.bench.plan import BenchPlan
from ais_loader.bench.result import ClientResult
from ais_loader.bench.tally import new_histogram
from ais_loader.errors import InvalidRequest, LoaderError, NodeUnavailable
from ais_loader.extras import needs
from ais_loader.values.urls import ENDPOINT_SCHEMES, endpoints_of

_CONNECT_S = 5.0
_ACTOR_S = 60.0
"""Additional time for Ray, beside the work of its actors."""
_POLL_S = 0.5


@dataclass(frozen=True, slots=True)
class RayNode:
    """A machine of the Ray cluster."""

    id: str
    address: str
    host: str


@contextlib.contextmanager
def connected(address: str) -> Iterator[RayCluster]:
    """Connect to the Ray cluster at HOST:PORT, or the one that "auto" finds. Raises NodeUnavailable, MissingExtra."""
    if os.environ.get("RAY_ADDRESS", "").startswith("http"):
        del os.environ["RAY_ADDRESS"]  # the address for job submission, which Ray would take for its own
    with needs("ray", "ais-loader bench --ray", extra="bench,ray"):
        import ray
    _check_listens(os.environ.get("RAY_ADDRESS", address) if address == "auto" else address)
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise NodeUnavailable(f"no connection to Ray at {address}: {error}") from error
    try:
        yield RayCluster(ray)
    finally:
        ray.shutdown()


def _check_listens(address: str) -> None:
    """Check that Ray listens: Ray itself would retry for two minutes, and write to the terminal meanwhile."""
    if address == "auto":
        return
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not (host and port.isascii() and port.isdigit()):
        raise NodeUnavailable(f"{address!r} is no address of a Ray cluster: need HOST:PORT, as `ray status` says it")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S).close()
    except (OSError, OverflowError) as error:
        raise NodeUnavailable(f"no Ray cluster at {address}: {error}") from None


class RayCluster:
    """A connected Ray cluster."""

    def __init__(self, ray: ModuleType) -> None:
        self.ray = ray

    def choose(self, count: int | None) -> list[RayNode]:
        """Return this number of its nodes, or all. Raises InvalidRequest if there are fewer."""
        nodes = sorted(
            (RayNode(one["NodeID"], one["NodeManagerAddress"], one["NodeManagerHostname"]) for one in self._alive()),
            key=lambda node: (node.address, node.id),
        )
        if count is not None and count > len(nodes):
            raise InvalidRequest(
                f"{count} clients are asked for, and Ray has {len(nodes)} nodes "
                f"({', '.join(node.host for node in nodes)}), each of which is one: take more --processes instead"
            )
        return nodes[:count]

    def _alive(self) -> list[dict[str, Any]]:
        return [one for one in self.ray.nodes() if one["Alive"]]


def check_reachable(url: str, described: Mapping[str, Any], nodes: Sequence[RayNode]) -> None:
    """Check that these nodes can reach the store, as far as its addresses tell. Raises InvalidRequest."""
    remote = sorted({node.host for node in nodes if not machine.is_local(node.address)})
    if not remote:
        return
    if not url.startswith(ENDPOINT_SCHEMES):
        raise InvalidRequest(
            f"{url} is a folder of this machine, which {', '.join(remote)} cannot read: serve it (`ais-loader serve`), "
            "and give the node's address"
        )
    addresses = endpoints_of(url)
    addresses += [str(node.get("endpoint") or node.get("url", "")) for node in described.get("nodes", ())]
    for address in addresses:
        if _means_itself(machine.host_of(address)):
            raise InvalidRequest(
                f"{address} means another machine on {', '.join(remote)}: the store's nodes need addresses that all "
                "clients can reach"
            )


def _means_itself(host: str) -> bool:
    """Whether this name or address refers to the local machine on every machine."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host.lower() == "localhost"
    return address.is_loopback or address.is_unspecified


class ClientActor:
    """One client machine, as a Ray actor."""

    def __init__(self, plan: BenchPlan, client: int) -> None:
        new_histogram()  # raises an error about packages that are missing here
        with _without_main():
            self._crew = Crew(plan, client)

    def start(self) -> None:
        self._crew.start()

    def warm_up(self) -> None:
        self._crew.warm_up()

    def measure(self) -> tuple[bool, dict[str, Any]]:
        whole = self._crew.follow()
        return whole, self._crew.parts[0].packed()

    def so_far(self) -> dict[str, int]:
        return self._crew.so_far

    def stop(self) -> None:
        self._crew.stop.set()

    def end(self) -> None:
        self._crew.end()


@contextlib.contextmanager
def _without_main() -> Iterator[None]:
    """Hide the main module: spawned processes import it, and Ray's worker takes 40 MiB that they do not need."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


class RayClients:
    """Client machines of one measurement, one on each of these nodes."""

    def __init__(self, cluster: RayCluster, nodes: Sequence[RayNode], plan: BenchPlan) -> None:
        self.lost: dict[str, str] = {}
        self._parts: dict[str, ClientResult] = {}
        self._ray = ray = cluster.ray
        self._plan = plan
        self._actors: dict[str, Any] = {}
        for number, node in enumerate(nodes):
            on_node = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node.id, soft=False)
            # No CPU is reserved: a busy cluster is measured as it is. Threads: one measures, others answer calls
            # meanwhile.
            made = ray.remote(ClientActor).options(num_cpus=0, scheduling_strategy=on_node, max_concurrency=4)
            self._actors[f"client {number + 1} on {node.host}"] = made.remote(plan, number)

    def start(self) -> None:
        self._all("start", START_S + _ACTOR_S)

    def warm_up(self) -> None:
        self._all("warm_up", warm_up_s(self._plan) + _ACTOR_S)

    def _all(self, step: str, timeout_s: float) -> None:
        """Make all clients take a step. Raises NodeUnavailable: without one of them the measurement does not begin."""
        requests = {getattr(actor, step).remote(): name for name, actor in self._actors.items()}
        end = time.monotonic() + timeout_s
        while requests:
            done, _ = self._ray.wait(list(requests), timeout=max(0.0, end - time.monotonic()))
            if not done:
                raise NodeUnavailable(f"{', '.join(requests.values())}: no answer within {timeout_s:.0f} s")
            name = requests.pop(done[0])
            try:
                self._ray.get(done[0])
            except self._ray.exceptions.RayError as error:
                raise NodeUnavailable(f"{name}: {_reason(error)}") from error

    def follow(self, live: Live | None = None) -> bool:
        """Measure until all have reported or are lost. Returns False if they were stopped before."""
        ray, start = self._ray, time.monotonic()
        running = {actor.measure.remote(): name for name, actor in self._actors.items()}
        requests: dict[Any, str] = {}
        of_each: dict[str, dict[str, int]] = {}
        deadline = None if self._plan.epochs else start + self._plan.duration_s + END_S + _ACTOR_S
        whole, stop_sent = True, False
        while running:
            try:
                done, _ = ray.wait(list(running), timeout=_POLL_S)
                for one in done:
                    whole = self._collect(running.pop(one), one) and whole
                if live is not None:
                    self._poll(running, requests, of_each)
                    live(
                        time.monotonic() - start,
                        *(sum(figures[name] for figures in of_each.values()) for name in FIGURES),
                    )
            except KeyboardInterrupt:
                if stop_sent:
                    raise  # a second interrupt ends it at once
                stop_sent = True
                for name in running.values():
                    self._actors[name].stop.remote()
                deadline = time.monotonic() + END_S + _ACTOR_S
            if deadline is not None and time.monotonic() > deadline:
                self.lost |= dict.fromkeys(running.values(), "it did not end in time")
                break
        return whole and not stop_sent

    @property
    def parts(self) -> list[ClientResult]:
        """Results of the clients that are not lost, after `follow`. Raises NodeUnavailable if there are none."""
        if not self._parts:
            raise NodeUnavailable("; ".join(f"{name}: {reason}" for name, reason in self.lost.items()))
        return [self._parts[name] for name in self._actors if name in self._parts]

    def _collect(self, name: str, done: Any) -> bool:
        """Store the result of a client. Return whether it is complete."""
        try:
            whole, packed = self._ray.get(done)
        except self._ray.exceptions.RayError as error:
            self.lost[name] = _reason(error)
            return True
        self._parts[name] = ClientResult.unpacked(packed, name)
        return bool(whole)

    def _poll(self, running: Mapping[Any, str], requests: dict[Any, str], of_each: dict[str, dict[str, int]]) -> None:
        """Request the progress of the running clients, and collect answers to earlier requests. Does not block."""
        for one in self._ray.wait(list(requests), num_returns=len(requests), timeout=0)[0] if requests else ():
            with contextlib.suppress(self._ray.exceptions.RayError):  # it is lost, and reported as such
                of_each[requests[one]] = self._ray.get(one)
            del requests[one]
        for name in running.values():
            if name not in requests.values():
                requests[self._actors[name].so_far.remote()] = name

    def end(self) -> None:
        """End all clients. The processes of one that does not answer end when it loses its actor."""
        try:
            ending = [actor.end.remote() for name, actor in self._actors.items() if name not in self.lost]
            if ending:
                self._ray.wait(ending, num_returns=len(ending), timeout=END_S)
        finally:
            for actor in self._actors.values():
                self._ray.kill(actor)


def _reason(error: Any) -> str:
    """Describe an error in one line: what the client raised, or how Ray lost it."""
    cause = getattr(error, "cause", None)
    if cause is not None:
        return str(cause) if isinstance(cause, LoaderError) else f"{type(cause).__name__}: {cause}"
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
