"""Main function of `ais-loader gateway`: one process, or several and their parent."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import closing

from ais_loader.errors import InvalidRequest
from ais_loader.values.urls import is_remote
from storage_node.metrics.exporter import metrics_served, require_library
from storage_node.store.machine_memory import share_freed_memory

from ..clients import Clients
from ..serve import serve_until, stopper
from .counters import METRICS
from .plan import GatewayPlan
from .workers import GatewayWorkers


def run_gateway(
    plan: GatewayPlan,
    listener: socket.socket,
    announce: Callable[[int | None], None],
    *,
    processes: int = 1,
    metrics_host: str = "127.0.0.1",
    metrics_port: int | None = None,
    ends_with_input: bool = False,
) -> None:
    """Serve until SIGTERM or SIGINT. Must run on the main thread.

    Args:
        announce: Called with the port of the metrics, once connections are accepted.
        ends_with_input: Stop at the end of standard input, too.

    Raises the errors of `Clients`; InvalidRequest for several processes of a store in a folder; OSError.
    """
    if processes > 1 and not is_remote(plan.store):
        raise InvalidRequest(
            f"--processes {processes}: a store in a folder has one writer, and so one process. Serve it by "
            "`ais-loader serve`, and give the gateway the node's URL"
        )
    os.umask(0o077)  # the access log, and spooled bodies
    share_freed_memory()
    if metrics_port is not None:
        require_library()
    if ends_with_input:
        threading.Thread(target=_stop_at_end_of_input, name="gateway-input", daemon=True).start()
    if processes > 1:
        workers = GatewayWorkers(plan, listener, processes)
        try:
            with metrics_served(metrics_host, metrics_port, METRICS, workers.counters) as port:
                announce(port)
                workers.run()
        finally:
            workers.stop()
        return
    with closing(plan.clients()) as clients:
        asyncio.run(_serve(plan, clients, listener, announce, metrics_host, metrics_port))


async def _serve(
    plan: GatewayPlan,
    clients: Clients,
    listener: socket.socket,
    announce: Callable[[int | None], None],
    metrics_host: str,
    metrics_port: int | None,
) -> None:
    stopping = asyncio.Event()
    stopper(stopping, plan.options.limits)
    gateway = plan.gateway(clients)
    with metrics_served(metrics_host, metrics_port, METRICS, lambda: {"0": gateway.counters}) as port:
        await serve_until(gateway, listener, stopping, lambda: announce(port), plan.certificate())


def _stop_at_end_of_input() -> None:
    while os.read(0, 1 << 16):  # not by sys.stdin, whose lock the end of the interpreter would wait for
        pass
    os.kill(os.getpid(), signal.SIGTERM)
