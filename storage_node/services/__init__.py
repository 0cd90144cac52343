"""gRPC servicers, thin layers over the store and the cluster, and `lane/`, which carries their calls over sockets.

In reading order: `objects`, `contents`, `compose`, `promote`, `snapshots`, `etl`, `node`; between nodes `replicas`.
Every call takes the path of `call_path`, by its row in `call_table`.
"""
