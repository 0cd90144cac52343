"""Canary-style training: one encoder-decoder that transcribes and translates five languages, told by a prompt which.

The recipe of NVIDIA's Canary in plain torch and Lhotse, small enough for two cores. Samplers, cuts and buckets are
Lhotse's; what reads the recordings is one of three: every batch one GetBatch, a GET for each sample, or shards from
one end to the other.

    python -m examples.canary.train                                     # a temporary embedded store, a few minutes
    python -m examples.canary.train --url grpc://127.0.0.1:7480         # a node or a cluster
    python -m examples.canary.train --source shards --source get --source getbatch    # the three beside each other
"""
