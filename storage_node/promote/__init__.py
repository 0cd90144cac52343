"""Promotion: files that this machine sees become objects without passing through a client."""
