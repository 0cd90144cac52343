"""gRPC servicers, thin layers over the store and the cluster.

In reading order: `objects` (buckets, objects, the node), `contents`, `compose`, `reframing`, `promote`, `snapshots`,
`drives`; between nodes `cluster`, `replica`, `repair`, `snapshot_replicas`. `errors` and `call_metrics` are used by all
of them.
"""
