"""Remote buckets: objects that live in S3, GCS, Azure, on an HTTP server or in a folder, and are stored here when read.

In reading order: `drivers` (single requests to a remote place), `location` (the location of one bucket), `tier` (cold
reads, validation and writes of a node), `arriving` (objects that are read while they are stored).
"""
