"""Rights of clients: the tokens that carry them, their scopes, and what each method and each entry of a batch needs.

Everything here is decided without I/O, except that keys are files.
"""
