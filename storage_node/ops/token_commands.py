"""Token commands of an operator that nodes have to answer: which audience tokens need, and their revocation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import grpc

from ais_loader.wire.generated import ais_cluster_pb2 as pb
from ais_loader.wire.generated import ais_cluster_pb2_grpc as rpc
from storage_node.context.channels import Caller, read_secret
from storage_node.ops import cluster_identity, drive_commands, peer_secret
from storage_node.ops.ray_head import ClusterError
from storage_node.security.identity.identity_folder import IdentityFolder

CALL_TIMEOUT_S = 30.0
_OPTIONS = [("grpc.use_local_subchannel_pool", 1)]
_NOT_ANSWERING = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


class TokenNodes:
    """The nodes to ask, any one of which can answer for all."""

    def __init__(self, endpoints: list[str], caller: Caller) -> None:
        """`endpoints`: addresses at which clients reach the nodes."""
        self._endpoints, self._caller = endpoints, caller

    @classmethod
    def below(cls, root: Path) -> TokenNodes:
        """Find the nodes of a cluster. Raises ClusterError."""
        found = drive_commands.nodes_with_drives(root)
        return cls([node.endpoint for node in found if node.endpoint], peer_secret.operator(root))

    @classmethod
    def at(cls, endpoint: str, secret_file: Path | None, identity: Path | None = None) -> TokenNodes:
        """Use one node. `identity`: the identity folder of one with TLS.

        Raises ClusterError if the secret or the operator's certificate cannot be read.
        """
        credentials = cluster_identity.operator_of(IdentityFolder(identity)) if identity is not None else None
        try:
            caller = Caller(read_secret(secret_file or ""), credentials=credentials)
        except (OSError, ValueError) as error:
            raise ClusterError(f"the peer secret cannot be read: {error}") from error
        return cls([endpoint.removeprefix("grpcs://").removeprefix("grpc://")], caller)

    def listed(self) -> pb.ListRevokedTokensResponse:
        """Return the revoked tokens and the audience. Raises ClusterError."""
        return self._ask(lambda stub: stub.ListRevokedTokens(pb.ListRevokedTokensRequest(), timeout=CALL_TIMEOUT_S))

    def revoke(self, token_id: str, expires_s: int) -> pb.ListRevokedTokensResponse:
        """Revoke a token on all nodes. Raises ClusterError."""
        request = pb.RevokeTokenRequest(token=pb.RevokedToken(id=token_id, expires_s=expires_s))
        return self._ask(lambda stub: stub.RevokeToken(request, timeout=CALL_TIMEOUT_S))

    def _ask(self, call: Callable[[rpc.TokensStub], pb.ListRevokedTokensResponse]) -> pb.ListRevokedTokensResponse:
        problem = "there is no node to ask"
        for endpoint in self._endpoints:
            try:
                peer_endpoint = drive_commands.peer_endpoint_of(endpoint, self._caller)
                with self._caller.channel(peer_endpoint, _OPTIONS) as inside:
                    return call(rpc.TokensStub(inside))
            except grpc.RpcError as error:
                problem = f"{endpoint}: {error.details()}"
                if error.code() not in _NOT_ANSWERING:
                    break
        raise ClusterError(problem)
