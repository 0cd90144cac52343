"""Fetches ahead of loaders: `plans` (what they have announced), and `prefetcher` (which fetches it in time)."""
