"""Archive members: looked up by name and read by range, without unpacking the shard. No network, no buckets, no
catalog.

Read in this order: `member` (what a member is, how it is named), `kinds` (which object is an archive), `tar_header` and
`tar_index` (one pass over a tar), `zip_directory` and `zip_index`, `index` (the index file beside the shard, see
FORMAT.md), `inflating` with `frame_walk`, `zstd_frames` and `lz4_frames` (decompression in bounded steps), `restart`
and `gzip_points` (random access into compressed streams), `archive` (one interface for all kinds), `unpack_cache`
(decompressed copies of shards without restart points), `open_archives`.
"""
