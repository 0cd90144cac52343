"""Values: what callers pass and receive. Entries, requests, batches, options, and the results of changes.

Nothing here opens a connection. `Batch` reads frames from whatever transport it was given.
"""
