"""HTTP API of AIStore, for clients that cannot be changed: its SDK for Python, Lhotse, `ais` and `aisloader`."""
