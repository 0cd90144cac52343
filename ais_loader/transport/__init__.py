"""How a client reaches a store: in its own process (`embedded`) or over gRPC (`grpc`). `base` is the contract."""
