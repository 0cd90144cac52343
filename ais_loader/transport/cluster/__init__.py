"""Remote transport, to a node or a cluster. In reading order: `discovery` (a node or a cluster?), `membership` (its map
and connections), `transport` with `failover` (single calls), `merged_stream` over `routing`, `substream` and
`frame_filter` (batches)."""
