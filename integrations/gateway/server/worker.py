"""Worker: one of several processes of a gateway, which share the socket that listens.

It ends when its parent does. The control pipe carries its first message, READY or the error that kept it from serving,
and then its counters, each time the parent asks for them by a number.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from contextlib import closing, suppress
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from ais_loader.errors import LoaderError, StoreError
from storage_node.store.machine_memory import share_freed_memory

if TYPE_CHECKING:
    from ..app import Gateway
    from .plan import GatewayPlan

READY = "ready"


def run_worker(plan: GatewayPlan, listener: socket.socket, control: Connection) -> None:
    """Serve until SIGTERM, SIGINT, or the end of the parent."""
    os.umask(0o077)  # the access log, and spooled bodies
    share_freed_memory()
    try:
        with closing(plan.clients()) as clients:
            asyncio.run(_serve(plan, clients, listener, control))
    except LoaderError as error:
        _tell(control, error)
    except OSError as error:
        _tell(control, StoreError(str(error)))


async def _serve(plan: GatewayPlan, clients: Any, listener: socket.socket, control: Connection) -> None:
    from ..serve import serve_until, stopper

    stopping, loop = asyncio.Event(), asyncio.get_running_loop()
    stop = stopper(stopping, plan.options.limits)
    gateway = plan.gateway(clients)
    loop.add_reader(control.fileno(), _answer, gateway, control, stop)
    try:
        await serve_until(gateway, listener, stopping, lambda: _tell(control, READY), plan.certificate())
    finally:
        loop.remove_reader(control.fileno())


def _answer(gateway: Gateway, control: Connection, stop: Callable[[], None]) -> None:
    try:
        control.send((control.recv(), gateway.counters))
    except (EOFError, OSError):  # the parent has ended
        asyncio.get_running_loop().remove_reader(control.fileno())
        stop()


def _tell(control: Connection, message: Any) -> None:
    with suppress(OSError):  # the parent has ended
        control.send(message)
