"""Transforms: definitions and jobs that run functions, commands and servers beside the data."""
