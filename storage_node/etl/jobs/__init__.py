"""Jobs: pass a bucket through a transform into a bucket, on every node that owns some of the sources."""
