"""Lanes under TLS: none leaves the machine, and a token is for the user who was offered it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import grpc
import psutil
import pytest

from ais_loader.wire.generated import ais_batch_pb2 as pb
from ais_loader.wire.lane import FAILED, GREETING, HEADER, MAGIC, VERSION, WELCOME
from storage_node.security.identity.identity_folder import IdentityFolder
from storage_node.server import NodeServer
from tests.security.tls_kit import OPTIONS, TIMEOUT_S

NOBODY = 65_534
GREET = """
import os, socket, sys
os.setuid(int(sys.argv[1]))
sock = socket.socket(socket.AF_UNIX)
sock.settimeout(60)
sock.connect("\\0" + sys.argv[2])
sock.sendall(bytes.fromhex(sys.argv[3]))
print(sock.recv(int(sys.argv[4]), socket.MSG_WAITALL).hex())
"""


def offered(node: NodeServer, identity: IdentityFolder, user: int | None) -> pb.OpenLaneResponse:
    credentials = grpc.ssl_channel_credentials(identity.ca_file.read_bytes())
    with grpc.secure_channel(node.endpoint, credentials, options=OPTIONS) as channel:
        ask = channel.unary_unary(
            "/ais_loader.v1.GetBatch/OpenLane",
            request_serializer=pb.OpenLaneRequest.SerializeToString,
            response_deserializer=pb.OpenLaneResponse.FromString,
        )
        answer: pb.OpenLaneResponse = ask(pb.OpenLaneRequest(port=node.port, user=user), timeout=TIMEOUT_S)
        return answer


def kind_of_answer(offer: pb.OpenLaneResponse) -> int:
    """Return the kind of the answer to a greeting of this process."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(TIMEOUT_S)
        sock.connect(f"\0{offer.unix_name}")
        sock.sendall(GREETING.pack(MAGIC, VERSION, offer.token))
        return int(HEADER.unpack(sock.recv(HEADER.size, socket.MSG_WAITALL))[1])


def test_a_lane_of_this_machine_stays_and_none_listens_on_tcp(node: NodeServer, identity: IdentityFolder) -> None:
    offer = offered(node, identity, os.geteuid())
    assert (offer.tcp_port, bool(offer.token)) == (0, True)
    assert kind_of_answer(offer) == WELCOME
    assert (node.lanes.port, node.peer_lanes.port) == (0, 0)
    listening = {one.laddr.port for one in psutil.Process().net_connections("tcp") if one.status == psutil.CONN_LISTEN}
    assert {node.port, node.peer_port} <= listening


def test_a_caller_who_does_not_say_its_user_is_offered_none(node: NodeServer, identity: IdentityFolder) -> None:
    assert offered(node, identity, None) == pb.OpenLaneResponse()


def test_a_token_works_once_and_only_for_its_user(node: NodeServer, identity: IdentityFolder) -> None:
    offer = offered(node, identity, os.geteuid())
    assert kind_of_answer(offer) == WELCOME
    assert kind_of_answer(offer) == FAILED
    assert kind_of_answer(offered(node, identity, os.geteuid() + 1)) == FAILED


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
def test_another_user_of_the_machine_cannot_use_a_stolen_token(node: NodeServer, identity: IdentityFolder) -> None:
    offer = offered(node, identity, os.geteuid())
    greeting = GREETING.pack(MAGIC, VERSION, offer.token).hex()
    words = [sys.executable, "-S", "-c", GREET, str(NOBODY), offer.unix_name, greeting, str(HEADER.size)]
    found = subprocess.run(words, capture_output=True, text=True, timeout=180, cwd="/")
    assert found.stdout, found.stderr
    assert HEADER.unpack(bytes.fromhex(found.stdout.strip()))[1] == FAILED
    assert kind_of_answer(offer) == FAILED  # it is spent
