"""Client side of remote buckets: what is warmed, evicted, listed from an inventory, or packed into shards."""
