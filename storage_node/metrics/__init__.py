"""Metrics of a node: declarations, export for Prometheus, and the HTTP endpoint."""
