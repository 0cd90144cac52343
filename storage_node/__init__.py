"""Storage node: drives, the store over them, and the gRPC server that lends it to trainers.

From the ground upwards: `store/` (one machine's storage, without a network), `cluster/` (several nodes as one store)
with `node` (what all parts of a node work with), `promote/`, `batch/` (GetBatch), `services/` (gRPC servicers),
`server` (puts a node together), `ops/` (Ray and processes), `cli/` (the operator's commands). Imports run downwards
only.

What it shares with clients it imports from `ais_loader.wire` and `ais_loader.errors`; only `cli` imports more of
`ais_loader`. Nothing here imports torch.
"""
