"""Gateway: HTTP interfaces of other object stores in front of a store. It is a client of the store, and keeps nothing
that another gateway could lack."""
