"""Workers of transforms: processes that run clients' code and commands, contained by fences and a sandbox."""
