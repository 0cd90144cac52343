"""Transports: how a client reaches a store. In reading order: `base` (the contract), `embedded` (in this process),
`grpc/` (one node) with `session/` (GetBatch), `cluster/` (many nodes), `fork_safety`."""
