"""Wire: what clients and nodes share, and what both must compute alike.

`generated` holds the modules made of protos/*.proto; `frame` builds and reads the one message of the hot path without
copying its payload; `placement` says which node and drive own an object; `cluster_map` reads the map they are placed
by; `gather` puts in order what several senders deliver.
"""
