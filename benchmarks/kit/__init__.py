"""Harness of the benchmarks: rounds, client processes, baselines, tables and pictures."""
