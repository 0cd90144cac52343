"""Benchmarks of reads: GetBatch and GETs, memory, fairness, lanes, ranges, and objects as files."""
