"""Benchmarks of writes: PUT, PutMany and promotion."""
