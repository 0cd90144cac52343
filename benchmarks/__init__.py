"""Benchmarks: speed as ratios in one run against a named baseline. `python -m benchmarks` lists them."""
