"""Benchmarks of several nodes: assembly of batches, replica choice, and a model of large clusters."""
