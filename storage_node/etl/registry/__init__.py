"""Registry of transforms: which exist on a node or in a cluster, and the calls that change them."""
