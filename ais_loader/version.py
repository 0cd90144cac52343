"""The version of ais-loader, stated nowhere else: setup.cfg reads it from this file."""

__version__ = "0.1.0"
