"""Attacks on a peer listener by callers that do not know the secret, or have overheard calls of those who do."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from ais_loader import connect
from ais_loader.testing import eventually
from ais_loader.wire.peer_proof import (
    MAX_SKEW_S,
    OVERTAKEN,
    PROOF_KEY,
    CallClaim,
    ProofCheck,
    ProofError,
    Prover,
    StaleProof,
)
from storage_node.context.channels import Caller, make_secret, read_secret
from storage_node.server import NodeServer
from storage_node.settings.config import ServerConfig
from tests.node.cluster_kit import LocalCluster
from tests.node.write_kit import copies_of
from tests.peer_kit import OPTIONS
from tests.table import table

TIMEOUT_S = 180.0
PROGRESS = "/ais_loader.v1.Repair/Progress"
REFUSED = grpc.StatusCode.UNAUTHENTICATED


@pytest.fixture(scope="module")
def secret_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("secret") / "peer-secret"
    make_secret(path)
    return path


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, secret_file: Path) -> Iterator[LocalCluster]:
    config = {"peer_secret_file": str(secret_file)}
    with LocalCluster(tmp_path_factory.mktemp("nodes"), 2, copies=2, **config) as running:
        yield running


def call(node: NodeServer, metadata: Any, path: str = PROGRESS) -> tuple[grpc.StatusCode, str]:
    """Outcome of a call with this metadata and an empty request."""
    with grpc.insecure_channel(node.peer_endpoint, options=OPTIONS) as channel:
        try:
            channel.unary_unary(path)(b"", timeout=TIMEOUT_S, metadata=metadata)
        except grpc.RpcError as error:
            return error.code(), error.details() or ""
    return grpc.StatusCode.OK, ""


def proved(node: NodeServer, caller: Caller, path: str = PROGRESS) -> tuple[tuple[str, str], ...]:
    """Metadata of one call to a node, as it travels."""
    return caller.metadata(path, caller.prover(node.peer_endpoint))


@pytest.mark.slow
def test_no_secret_travels_with_a_call(cluster: LocalCluster, secret_file: Path) -> None:
    secret = read_secret(secret_file)
    sent = proved(cluster.nodes[0], Caller(secret))
    assert call(cluster.nodes[0], sent)[0] is grpc.StatusCode.OK
    assert all(secret not in value for _, value in sent)


def test_an_overheard_call_opens_nothing_else(cluster: LocalCluster, secret_file: Path) -> None:
    """An attacker has the metadata of a call that a node has answered."""
    one, other = cluster.nodes
    as_node = Caller(read_secret(secret_file), other.membership.node_uuid, lambda: 1)
    for caller in (as_node, Caller(as_node.secret)):
        sent = proved(one, caller)
        assert call(one, sent)[0] is grpc.StatusCode.OK
        code, why = call(one, sent)
        assert (code, "made before" in why) == (REFUSED, True)
        unheard = proved(one, caller)
        code, why = call(other, unheard)
        assert (code, f"the call was made to {one.peer_endpoint}" in why) == (REFUSED, True)
        assert other.peer_endpoint in why and "peer_advertise" in why
        assert call(one, unheard, "/ais_loader.v1.Drives/ListDrives")[0] is REFUSED
        assert call(one, unheard)[0] is grpc.StatusCode.OK  # it was as good as it could be


def test_a_call_cannot_be_changed_on_its_way(cluster: LocalCluster, secret_file: Path) -> None:
    node, secret = cluster.nodes[0], read_secret(secret_file)
    sent = dict(proved(node, Caller(secret, cluster.nodes[1].membership.node_uuid, lambda: 1)))
    proof = sent[PROOF_KEY]
    changes: list[dict[str, str]] = [
        {"ais-role": "operator"},
        {"ais-node": node.membership.node_uuid.hex()},
        {"ais-map-version": "2"},
        {PROOF_KEY: proof[:-1] + ("0" if proof[-1] != "0" else "1")},
        {PROOF_KEY: proof.replace(" ", "  ")},
        {PROOF_KEY: "2" + proof[1:]},
        {PROOF_KEY: proof.rpartition(" ")[0]},
        {PROOF_KEY: " ".join(["1", "a", "x", "y", "z", "0"])},
        {PROOF_KEY: ""},
        {PROOF_KEY: "1" * 5000},
    ]
    for change in changes:
        assert call(node, tuple((sent | change).items()))[0] is REFUSED, change
    for at in range(6):
        parts = proof.split(" ")
        parts[at] = {2: str(int(parts[2]) + 1), 3: str(int(parts[3]) + 1)}.get(at, parts[at] + "1")
        assert call(node, tuple((sent | {PROOF_KEY: " ".join(parts)}).items()))[0] is REFUSED, parts
    assert call(node, tuple(sent.items()))[0] is grpc.StatusCode.OK


def test_calls_of_other_times_are_refused_and_the_clock_is_named(cluster: LocalCluster, secret_file: Path) -> None:
    node, caller = cluster.nodes[0], Caller(read_secret(secret_file))

    def at(offset_s: float) -> tuple[grpc.StatusCode, str]:
        prover = Prover(caller.secret, node.peer_endpoint, lambda: time.time() + offset_s)
        return call(node, caller.metadata(PROGRESS, prover))

    assert at(MAX_SKEW_S - 20)[0] is grpc.StatusCode.OK
    code, why = at(MAX_SKEW_S + 20)
    assert (code, "s after this node's clock" in why, "synchronize the clocks" in why) == (REFUSED, True, True)
    code, why = at(-MAX_SKEW_S - 20)
    assert (code, "s before this node's clock" in why) == (REFUSED, True)
    # A node that has restarted does not know what it has seen before.
    code, why = at(-MAX_SKEW_S + 20)
    assert (code, "make it again" in why) == (grpc.StatusCode.UNAVAILABLE, True)


def test_the_side_without_a_secret_is_named(cluster: LocalCluster, secret_file: Path, tmp_path: Path) -> None:
    node, secret = cluster.nodes[0], read_secret(secret_file)
    code, why = call(node, proved(node, Caller()))
    assert (code, "this node has a peer secret, and the call has no proof of one" in why) == (REFUSED, True)
    code, why = call(node, proved(node, Caller(secret + "x")))
    assert (code, "the caller's peer secret is not this node's" in why) == (REFUSED, True)
    with NodeServer([tmp_path / "drive"], ServerConfig(port=0)) as bare:
        code, why = call(bare, proved(bare, Caller(secret)))
        assert (code, "this node has no peer secret, and the caller has one" in why) == (REFUSED, True)
        assert call(bare, proved(bare, Caller()))[0] is grpc.StatusCode.OK


def test_a_node_that_listens_everywhere_is_called_at_any_address_of_its_machine(
    secret_file: Path, tmp_path: Path
) -> None:
    config = ServerConfig(port=0, host="0.0.0.0", peer_host="0.0.0.0", peer_secret_file=str(secret_file))
    caller = Caller(read_secret(secret_file))
    with NodeServer([tmp_path / "drive"], config) as node:
        for host, code in (("127.0.0.1", "OK"), ("localhost", "OK"), ("192.0.2.1", "UNAUTHENTICATED")):
            prover = caller.prover(f"{host}:{node.peer_port}")
            with grpc.insecure_channel(f"127.0.0.1:{node.peer_port}", options=OPTIONS) as channel:
                try:
                    metadata = caller.metadata(PROGRESS, prover)
                    channel.unary_unary(PROGRESS)(b"", timeout=TIMEOUT_S, metadata=metadata)
                    found = "OK"
                except grpc.RpcError as error:
                    found = error.code().name
            assert found == code, host


def test_nodes_behind_links_know_each_other_by_the_map(secret_file: Path, tmp_path: Path) -> None:
    config = {"peer_secret_file": str(secret_file)}
    with LocalCluster(tmp_path, 2, copies=2, linked=True, **config) as cluster, connect(cluster.nodes[0].url) as client:
        client.bucket("b").put("a", b"bytes")
        expected = dict.fromkeys(range(2), b"bytes")
        eventually(lambda: {number: data for number, (_, data) in copies_of(cluster, "a").items()} == expected)


def test_a_listener_beyond_loopback_needs_a_secret(tmp_path: Path, secret_file: Path) -> None:
    with pytest.raises(ValueError, match=r"peer_host=0\.0\.0\.0 .* peer_secret_file"):
        NodeServer([tmp_path / "drive"], ServerConfig(port=0, peer_host="0.0.0.0")).start()
    assert not (tmp_path / "drive").exists()


# -- numbers of a channel


def test_numbers_may_overtake_each_other_and_come_once() -> None:
    secret, claim = secrets.token_hex(16), CallClaim(PROGRESS, "operator")
    check, prover = ProofCheck(secret), Prover(secret, "a:1")
    proofs = [prover.prove(claim) for _ in range(2 * OVERTAKEN)]
    late, recent = proofs[:OVERTAKEN], proofs[OVERTAKEN:]
    for proof in (*recent[::2], *recent[1::2]):
        assert check.check(proof, claim) == "a:1"
    for proof in (*recent, *late):
        with pytest.raises(ProofError, match="made before"):
            check.check(proof, claim)


def test_channels_are_forgotten_when_their_calls_are_too_old_and_not_before() -> None:
    secret, claim, now = secrets.token_hex(16), CallClaim(PROGRESS, "operator"), [1e9]
    check = ProofCheck(secret, lambda: now[0], lambda: now[0])
    heard = []
    for _ in range(5000):
        now[0] += 1.0
        heard.append(Prover(secret, "a:1", lambda: now[0]).prove(claim))
        check.check(heard[-1], claim)
        assert len(check._seen) <= 3 * MAX_SKEW_S
    for proof in heard:
        with pytest.raises(ProofError):
            check.check(proof, claim)


@table("ahead_s", [-7200.0, -10.0, 0.0, 10.0, 7200.0])
def test_a_node_that_started_with_a_wrong_clock_answers_when_that_is_right(ahead_s: float) -> None:
    secret, claim = secrets.token_hex(16), CallClaim(PROGRESS, "operator")
    now = {"right": 1e9, "wall": 1e9 + ahead_s, "elapsed": 5.0}
    prover = Prover(secret, "a:1", lambda: now["right"])
    before = prover.prove(claim)
    now["right"] += 1.0
    check = ProofCheck(secret, lambda: now["wall"], lambda: now["elapsed"])
    now |= {"right": 1e9 + 3.0, "wall": 1e9 + 3.0, "elapsed": 7.0}
    assert check.check(prover.prove(claim), claim) == "a:1"
    with pytest.raises(StaleProof):
        check.check(before, claim)
