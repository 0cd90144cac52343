"""Modules that protoc made of protos/*.proto: committed, never edited, kept in step by `make check`."""
