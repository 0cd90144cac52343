"""Lanes: stream sockets beside gRPC, opened through it, that carry GetBatch sessions and calls."""
