"""Context of a node, shared by its components: store, settings, identity, channels, clocks, place in the map."""
