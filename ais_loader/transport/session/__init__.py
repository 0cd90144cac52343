"""GetBatch on the client's side. In reading order: `session` (many batches on one stream), `batch_stream` (one batch,
resumed and verified) over `answers`, `long_batch` and `single_get` on streams of their own, `stream_pool`,
`raw_stream`."""
