"""Integrations with other libraries and clients, one folder each. Importing ais_loader imports none of them."""
