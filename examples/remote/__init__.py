"""Training from a remote bucket: see `train_from_bucket`."""
