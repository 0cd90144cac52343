"""Remote transport, to a node or a cluster. In reading order: `discovery` (a node or a cluster?), `transport` with
`failover` (its map, connections and single calls), `merged_stream` over `routing`, `substream` and
`frame_filter` (batches)."""
