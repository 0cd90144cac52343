"""Consensus on the cluster's map: one Paxos instance per version.

In reading order: `acceptor` and `proposer` (the protocol, without I/O), `effects` (between a proposer and its driver),
`change` (the drivers), `acceptor_store`.
"""
