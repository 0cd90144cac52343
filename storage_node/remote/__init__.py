"""Remote buckets: objects that live in S3, GCS, Azure, on an HTTP server or in a folder, and are stored here when read.

In reading order: `drivers` (single requests to a remote place), `location` (that of one bucket), `copies` (what is
stored here), `inventory` and `write_back`, `arriving` and `archives` (objects and parts that readers wait for),
`fetching`, then `tier` with its rooms for reads, descriptions and writes, and `ahead` (what loaders need next).
"""
