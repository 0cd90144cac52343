"""Loading: the trainer's process draws batches of numbers in order, and workers turn them into samples."""
