"""Lanes: GetBatch sessions over stream sockets beside gRPC, opened through it."""
