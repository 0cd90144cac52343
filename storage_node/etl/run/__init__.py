"""Runs of transforms: entries of batches on their way through the stages of a pipeline."""
