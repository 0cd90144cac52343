"""Integrations with other libraries, one folder each. Importing ais_loader imports none of them."""
