"""gRPC servicers, thin layers over the store and the cluster.

In reading order: `objects`, `contents`, `compose`, `promote`, `snapshots`, `etl`, `node`; between nodes `replicas`.
Every call passes `access`, which decides who may call it and identifies the callers of the peer listener, and `calls`.
"""
