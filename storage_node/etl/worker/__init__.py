"""Workers of transforms: processes that run clients' code and commands, within the kernel's limits and a sandbox."""
