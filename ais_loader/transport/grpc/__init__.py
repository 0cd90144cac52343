"""Transport to one node over gRPC. In reading order: `transport`, `connection`, `bucket_calls`, `contents_calls`,
`put_messages`, `put_calls` and `put_stream`, `download`, `watchdog`; batches are in `transport.session`."""
