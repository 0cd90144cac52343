"""Programs that use ais_loader from the source tree; not installed with it."""
