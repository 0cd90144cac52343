"""Identities on the wire: the private CA of a cluster, the certificates of nodes and operators, and gRPC over TLS."""
