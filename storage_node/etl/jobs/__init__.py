"""Jobs: a bucket passed through a transform into a bucket, by every node that has sources of it."""
