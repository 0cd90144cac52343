"""ETL on a node: transforms that run beside the data, their inputs and their results."""
