"""Benchmarks of transforms: channels, jobs, direct put, and kept results."""
