"""Calls to one node over gRPC. In reading order: `node_calls`, `connection`, `watchdog`, `put`, `put_stream`,
`download`; batches are in `transport.session`."""
