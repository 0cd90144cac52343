"""Settings of a node: fields with their ranges, and the ways in which operators set them."""
