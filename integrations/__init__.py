"""Integrations with other libraries, a folder each; importing ais_loader imports none of them."""
