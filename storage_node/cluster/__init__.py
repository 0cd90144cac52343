"""Cluster, several nodes as one store. In reading order: `map/` (who takes part, and what they agree on), `consensus/`
(how the map changes), `replication/` (writes of several copies), `repair/` (copies made equal again), `snapshots/`,
`drives/` (of one node).
"""
