"""Transforms beside the data, each as a Python function for `client.etl.init` and, where it helps, as a server."""
