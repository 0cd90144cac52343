"""Benchmarks of what a trainer sees: datasets, and batches of cuts for speech models."""
