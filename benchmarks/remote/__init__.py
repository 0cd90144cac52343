"""Benchmarks of remote buckets, against a simulated cloud."""
