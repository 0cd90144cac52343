"""Cluster: several nodes as one store.

In reading order: `map/` (the members and what they agree on), `consensus/` (how the map changes), `replication/`
(writes to several replicas), `repair/` (makes replicas equal again), `snapshots/`, and `drives/` (of one node).
"""
