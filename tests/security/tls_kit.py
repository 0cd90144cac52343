"""Certificates of every kind, right and wrong, and calls made with them."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path
from typing import Any

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ais_loader.wire.generated import ais_cluster_pb2 as pb
from ais_loader.wire.generated import ais_cluster_pb2_grpc as rpc
from storage_node.context.channels import Caller
from storage_node.security.identity.credentials import ChannelCredentials, TlsFiles
from storage_node.security.identity.identity_folder import IdentityFolder

TIMEOUT_S = 180.0
OPTIONS = (("grpc.use_local_subchannel_pool", 1),)
HOUR = datetime.timedelta(hours=1)


def forged(
    folder: Path,
    identity: IdentityFolder,
    *uris: str,
    begins_in: datetime.timedelta = -HOUR,
    ends_in: datetime.timedelta = HOUR,
    hosts: tuple[str, ...] = ("127.0.0.1",),
    uses: tuple[x509.ObjectIdentifier, ...] = (ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH),
) -> TlsFiles:
    """Return the files of a certificate of this CA that the CA itself would not issue."""
    ca = x509.load_pem_x509_certificate(identity.ca_file.read_bytes())
    ca_key: Any = serialization.load_pem_private_key((identity.path / "ca-key.pem").read_bytes(), None)
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
    of_uris = map(x509.UniformResourceIdentifier, uris)
    names = [*of_uris, *(x509.IPAddress(ipaddress.ip_address(host)) for host in hosts)]
    certificate = (
        x509.CertificateBuilder(
            ca.subject,
            x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "forged")]),
            key.public_key(),
            x509.random_serial_number(),
            now + begins_in,
            now + ends_in,
        )
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    folder.mkdir(exist_ok=True)
    (folder / "cert.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    pem, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (folder / "key.pem").write_bytes(key.private_bytes(serialization.Encoding.PEM, pem, plain))
    return TlsFiles(str(folder / "cert.pem"), str(folder / "key.pem"), str(identity.ca_file))


def caller(files: TlsFiles, node_uuid: bytes = b"") -> Caller:
    """Return a caller with these files that says that it is this node, or an operator."""
    return Caller("", node_uuid, int, ChannelCredentials(files))


def asked(caller: Caller, endpoint: str) -> pb.GetMapResponse:
    """Return the answer to GetMap at a peer listener."""
    with caller.channel(endpoint, OPTIONS) as channel:
        answer: pb.GetMapResponse = rpc.ClusterStub(channel).GetMap(pb.GetMapRequest(), timeout=TIMEOUT_S)
        return answer


def refusal(caller: Caller, endpoint: str) -> tuple[grpc.StatusCode, str]:
    """Return the status and the reason of a refused GetMap at a peer listener."""
    try:
        asked(caller, endpoint)
    except grpc.RpcError as error:
        return error.code(), error.details()
    raise AssertionError("the call was served")
