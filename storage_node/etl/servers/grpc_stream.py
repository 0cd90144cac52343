"""gRPC streams to a server, with the service in protos/ais_etl_server.proto."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import grpc.aio

from ais_loader.wire.channel_options import PROXY
from ais_loader.wire.generated import ais_etl_server_pb2 as pb
from ais_loader.wire.generated import ais_etl_server_pb2_grpc as rpc
from storage_node.etl.servers.channel import CONNECT_S, ServerFailed, Unanswered
from storage_node.etl.servers.message_channel import MessageChannel
from storage_node.etl.webserver.protocol import CHUNK_BYTES

_OPTIONS = (
    ("grpc.max_receive_message_length", 4 * CHUNK_BYTES),
    (PROXY, 0),
    # Reconnect soon after a failure: a server restarts within seconds.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)


class ServerCall:
    """One call of TransformStream/Run."""

    def __init__(self, call: Any, address: str) -> None:
        self._call, self._address = call, address

    @property
    def closed(self) -> bool:
        return bool(self._call.done())

    async def send(self, message: pb.ServerInput) -> None:
        try:
            await self._call.write(message)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            raise self._broken(error) from error
        except asyncio.CancelledError as error:
            self._raise_if_closed(error)
            raise

    async def receive(self) -> pb.ServerOutput:
        try:
            output = await self._call.read()
        except grpc.aio.AioRpcError as error:
            raise self._broken(error) from error
        except asyncio.CancelledError as error:
            self._raise_if_closed(error)
            raise
        if output is grpc.aio.EOF:
            raise Unanswered(f"{self._address} ended the stream", connected=True)
        assert isinstance(output, pb.ServerOutput)
        return output

    def _raise_if_closed(self, error: BaseException) -> None:
        """Raise Unanswered if the call was cancelled, which otherwise looks like a cancellation of the waiting task."""
        task = asyncio.current_task()
        if self._call.cancelled() and (task is None or not task.cancelling()):
            raise Unanswered(f"{self._address}: the stream was closed", connected=True) from error

    def _broken(self, error: Exception) -> Exception:
        if isinstance(error, grpc.aio.AioRpcError):
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                return ServerFailed(f"{self._address} has no service TransformStream")
            return Unanswered(f"{self._address} broke off: {error.code().name} {error.details()}", connected=True)
        return Unanswered(f"{self._address} broke off", connected=True)

    def close(self) -> None:
        self._call.cancel()


def grpc_channel(address: str) -> MessageChannel:
    target = address.removeprefix("grpc://")
    channel = grpc.aio.insecure_channel(target, options=_OPTIONS)
    stub = rpc.TransformStreamStub(channel)

    async def connect() -> ServerCall:
        try:
            async with asyncio.timeout(CONNECT_S):
                while (state := channel.get_state(try_to_connect=True)) is not grpc.ChannelConnectivity.READY:
                    if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE:  # a failure, not a connection in progress
                        raise Unanswered(f"nobody answers at {address}", connected=False)
                    await channel.wait_for_state_change(state)
        except TimeoutError as error:
            raise Unanswered(f"nobody answers at {address}", connected=False) from error
        return ServerCall(stub.Run(), address)

    async def release() -> None:
        await channel.close()

    return MessageChannel(connect, release)
