"""Speed, shown as ratios taken in one run against a named baseline. `python -m benchmarks.NAME --help` for each."""
