"""Wire: code that clients and nodes share, and values that both must compute alike.

`generated` has the modules generated from protos/*.proto. `frame` encodes and decodes the message of the hot path
without copying its payload. `placement` computes which node and drive own an object; `cluster_map` reads the map that
this depends on. `gather` merges what several senders deliver.
"""
