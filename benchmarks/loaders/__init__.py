"""Benchmarks against other libraries that load data."""
