"""Report of one run: batches against GETs, limits of the machine, workers, and ratios that must not fall."""
