"""A small speech model, trained through GetBatch on real recordings in five languages: see train.py."""
