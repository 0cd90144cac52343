"""Objects that are being fetched: readers that wait for one get its bytes as they arrive, while they are being stored.

Belongs to the event loop of the remote tier.
"""
