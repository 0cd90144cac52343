"""Job calls over gRPC, to one node."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import grpc

from ais_loader import errors
from ais_loader.transport.base import EtlMethod
from ais_loader.transport.grpc.connection import Connection
from ais_loader.transport.grpc.put_calls import CALL_TIMEOUT_S
from ais_loader.transport.grpc.watchdog import Watchdog
from ais_loader.wire.generated import ais_etl_pb2 as pb

INIT_TIMEOUT_S = 90.0
"""The node starts a worker, which may load a model."""
INSTALL_TIMEOUT_S = 360.0
"""Additional time in which the worker's requirements are installed."""
SILENCE_S = 15.0
"""Longest silence of a node that reports on a job every few seconds."""


def call_job(here: Connection, method: EtlMethod, request: Any) -> Any:
    """Raises grpc.RpcError."""
    timeout_s = CALL_TIMEOUT_S
    if method == "InitTransform":
        timeout_s = INIT_TIMEOUT_S + (INSTALL_TIMEOUT_S if request.transform.python.requirement else 0.0)
    return getattr(here.etl, method)(request, timeout=timeout_s)


def watch_job(here: Connection, name: str) -> Generator[pb.JobInfo, None, None]:
    """Raises JobNotFound, NodeUnavailable, SilenceTimeout."""
    with here.in_use():
        call = here.etl.WatchJob(pb.WatchJobRequest(name=name, wait=True))
    watchdog = Watchdog(SILENCE_S)
    with watchdog.guard(call.cancel):
        try:
            while True:
                watchdog.seen()
                try:
                    info = next(call, None)
                except grpc.RpcError as error:
                    if watchdog.fired:
                        raise errors.SilenceTimeout(f"{here.endpoint}: silent for {SILENCE_S:g} s") from error
                    raise here.translate(error) from error
                if info is None:
                    return
                watchdog.rest()
                yield info
        finally:
            call.cancel()
