"""Security: identities of callers (`identity/`), rights of clients (`rights/`), a log of what was done (`audit/`)."""
