"""Storage node: drives, the store on them, and the gRPC server that serves it to trainers.

From bottom to top: `store/` (one machine's storage, without networking), `cluster/` (several nodes as one store) with
`node` (the context shared by all parts of a node), `promote/`, `batch/` (GetBatch), `services/` (gRPC servicers),
`server` (assembles a node), `ops/` (Ray and processes), `cli/` (the operator's commands). Imports go downwards only.

Code shared with clients comes from `ais_loader.wire` and `ais_loader.errors`; only `cli` imports more of `ais_loader`.
Nothing here imports torch.
"""
