"""Load generator behind `ais-loader bench`: workloads, their measurement, and the comparison of two results."""
