"""Transports: how a client reaches a store. In reading order: `base` (the contract), `embedded` (in this process),
`cluster/` (remote: one node or many) over `grpc/` (calls to a node) and `session/` (GetBatch), `fork_safety`."""
