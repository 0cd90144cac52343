"""The wire contract: `ais_*.proto`, the modules generated from them, and what both ends must compute alike.

Generated files (`*_pb2*`) are committed and never edited: `make protos` writes them, a test keeps them in step.
`frame` builds and reads the one message of the hot path without copying its payload; `placement` says which drive
owns an object.
"""
